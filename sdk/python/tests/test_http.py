"""The HTTP contract, as a client sees it, on every framework."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import types
import uuid
from typing import Any, Awaitable, Callable, Dict, List, Optional, Tuple

import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from harness import query, url
from libraries import django_connection
from psycopg_pool import AsyncConnectionPool, ConnectionPool

import semel
import semel.fastapi
import semel.psycopg

Answer = Tuple[int, Dict[str, str], bytes]
Send = Callable[..., Awaitable[Answer]]


class Client:
    """Sends requests to an application of one tenant."""

    def __init__(self, send: Send, tenant: str) -> None:
        self._send = send
        self.tenant = tenant

    async def post(self, path: str, body: Any, key: Optional[str] = "k", **headers: str) -> Answer:
        named = {"content-type": "application/json", "x-user": "u-1"}
        if key is not None:
            named["idempotency-key"] = key
        named.update({name.replace("_", "-"): value for name, value in headers.items()})
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self._send(path, raw, {name: v for name, v in named.items() if v})

    def orders(self) -> int:
        (row,) = query("SELECT count(*) AS n FROM effect WHERE name LIKE %s", f"{self.tenant}/%")
        return int(row["n"])

    def record(self, key: str = "k") -> Dict[str, Any]:
        rows = query("SELECT * FROM semel_record WHERE tenant = %s AND id = %s", self.tenant, key)
        return rows[0] if rows else {}


def outcome(path: str, order: Any) -> Tuple[int, Any]:
    """What the handlers of all frameworks answer."""
    if path == "/fail":
        raise RuntimeError("the card was declined")
    if order.get("sku") == "unknown":
        return 422, {"error": "no such sku"}
    if order.get("sku") == "taken":
        return 409, {"error": "sold out"}
    if order.get("sku") == "large":
        return 200, {"text": "x" * (1 << 20)}
    return 201, {"order": uuid.uuid4().hex}


PATHS = ["/orders", "/fail"]


async def fastapi_app(tenant: str) -> "tuple[Send, Callable[[], Any]]":
    pool = AsyncConnectionPool(url(), min_size=1, max_size=4, open=False)
    await pool.open()
    app = FastAPI()
    app.add_middleware(
        semel.fastapi.IdempotencyMiddleware,
        ledger=semel.psycopg.async_ledger(pool),
        tenant=lambda request: request.headers.get("x-tenant", tenant) or None,
        principal=lambda request: request.headers.get("x-user"),
        routes={"POST /required": semel.fastapi.Rules(required=True)},
    )

    async def place(
        request: Request, unit: semel.AsyncUnit[Any] = Depends(semel.fastapi.unit)
    ) -> Any:
        await unit.connection.execute("INSERT INTO effect VALUES (%s)", (f"{tenant}/o",))
        status, body = outcome(request.url.path, await request.json())
        headers = {"location": "/orders/1", "set-cookie": "seen=1", "x-own": "1"}
        return JSONResponse(body, status, headers)

    for path in PATHS:
        app.post(path)(place)
    app.post("/plain")(lambda: {"plain": True})
    app.post("/required")(lambda: {"plain": True})
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://service")

    async def send(path: str, body: bytes, headers: Dict[str, str]) -> Answer:
        response = await client.post(path, content=body, headers=headers)
        return response.status_code, dict(response.headers), response.content

    return send, pool.close


async def flask_app(tenant: str) -> "tuple[Send, Callable[[], Any]]":
    from flask import Flask, request

    import semel.flask

    pool = ConnectionPool(url(), min_size=1, max_size=4, open=True)
    app = Flask("orders")
    semel.flask.Idempotency(
        app,
        ledger=semel.psycopg.ledger(pool),
        tenant=lambda request: request.headers.get("x-tenant", tenant) or None,
        principal=lambda request: request.headers.get("x-user"),
        routes={"POST /required": semel.flask.Rules(required=True)},
    )

    def place() -> Any:
        semel.flask.unit().connection.execute("INSERT INTO effect VALUES (%s)", (f"{tenant}/o",))
        status, body = outcome(request.path, request.get_json())
        return body, status, {"location": "/orders/1", "set-cookie": "seen=1", "x-own": "1"}

    for path in PATHS:
        app.post(path, endpoint=path)(place)
    app.post("/plain", endpoint="plain")(lambda: {"plain": True})
    app.post("/required", endpoint="required")(lambda: {"plain": True})

    def call(path: str, body: bytes, headers: Dict[str, str]) -> Answer:
        response = app.test_client().post(path, data=body, headers=headers)
        named = {name.lower(): value for name, value in response.headers.items()}
        return response.status_code, named, response.data

    async def send(path: str, body: bytes, headers: Dict[str, str]) -> Answer:
        return await asyncio.to_thread(call, path, body, headers)

    return send, pool.close


async def django_app(tenant: str) -> "tuple[Send, Callable[[], Any]]":
    await django_connection()
    from django.conf import settings
    from django.db import connections
    from django.http import JsonResponse
    from django.test import Client as DjangoClient
    from django.test.utils import override_settings
    from django.urls import path as route

    import semel.django
    import semel.django_http

    class Idempotency(semel.django_http.IdempotencyMiddleware):
        ledger = semel.django.ledger()
        routes = {"POST required": semel.django_http.Rules(required=True)}

        def tenant(self, request: Any) -> Optional[str]:
            return request.headers.get("x-tenant", tenant) or None

        def principal(self, request: Any) -> Optional[str]:
            return request.headers.get("x-user")

    def place(request: Any) -> Any:
        with semel.django_http.unit(request).connection.cursor() as cursor:
            cursor.execute("INSERT INTO effect VALUES (%s)", (f"{tenant}/o",))
        status, body = outcome(request.path, json.loads(request.body))
        response = JsonResponse(body, status=status)
        response["location"], response["x-own"] = "/orders/1", "1"
        response.set_cookie("seen", "1")
        return response

    plain = lambda request: JsonResponse({"plain": True})  # noqa: E731
    urls = types.ModuleType("semel_test_urls")
    urls.urlpatterns = [route(path[1:], place) for path in PATHS]  # type: ignore[attr-defined]
    urls.urlpatterns += [route("plain", plain), route("required", plain)]  # type: ignore[attr-defined]
    urls.Idempotency = Idempotency  # type: ignore[attr-defined]
    sys.modules["semel_test_urls"] = urls
    assert settings.configured
    overridden = override_settings(
        ROOT_URLCONF="semel_test_urls",
        MIDDLEWARE=["semel_test_urls.Idempotency"],
        ALLOWED_HOSTS=["*"],
    )
    overridden.enable()

    def call(path: str, body: bytes, headers: Dict[str, str]) -> Answer:
        client = DjangoClient(raise_request_exception=False)
        kind = headers.get("content-type", "")
        rest = {name: value for name, value in headers.items() if name != "content-type"}
        try:
            response = client.post(path, data=body, content_type=kind, headers=rest)
            named = {name.lower(): value for name, value in response.items()}
            if response.cookies:
                named["set-cookie"] = response.cookies.output(header="")
            return response.status_code, named, response.content
        finally:
            connections.close_all()

    async def send(path: str, body: bytes, headers: Dict[str, str]) -> Answer:
        return await asyncio.to_thread(call, path, body, headers)

    return send, overridden.disable


APPS = {"fastapi": fastapi_app, "flask": flask_app, "django": django_app}


def contract(test: Callable[[Client], Awaitable[None]]) -> Any:
    """Makes a test of the contract a test of every framework."""

    @pytest.mark.parametrize("app", list(APPS))
    def on_each(app: str, database: None) -> None:
        async def main() -> None:
            tenant = f"t-{uuid.uuid4().hex[:20]}"
            send, close = await APPS[app](tenant)
            try:
                await test(Client(send, tenant))
            finally:
                closing = close()
                if closing is not None:
                    await closing

        asyncio.run(main())

    on_each.__name__ = test.__name__
    return on_each


def problem(answer: Answer) -> Tuple[int, str]:
    status, headers, body = answer
    assert headers["content-type"] == "application/problem+json"
    assert headers["cache-control"] == "no-store"
    members = json.loads(body)
    assert members["status"] == status
    slug = members["type"].rpartition(":")[2]
    assert members["code"] == slug.upper().replace("-", "_")
    return status, slug


@contract
async def test_a_repeat_gets_the_stored_response(client: Client) -> None:
    first = await client.post("/orders", {"sku": "A", "n": 1}, key="k")
    again = await client.post("/orders", b'{ "n": 1.0, "sku": "A" }', key='"k"', x_trace="2")
    assert (first[0], again[0]) == (201, 201)
    assert first[2] == again[2]
    assert "idempotent-replayed" not in first[1] and again[1]["idempotent-replayed"] == "true"
    assert first[1]["location"] == again[1]["location"] == "/orders/1"
    # What belongs to one caller or one moment is delivered, and not stored.
    assert first[1]["x-own"] == "1" and "seen" in first[1]["set-cookie"]
    assert "x-own" not in again[1] and "set-cookie" not in again[1]
    assert client.orders() == 1
    zipped = gzip.compress(b'{"sku":"A","n":1}')
    assert (await client.post("/orders", zipped, content_encoding="gzip"))[0] == 201


@contract
async def test_another_request_under_the_key_is_refused(client: Client) -> None:
    await client.post("/orders", {"sku": "A"})
    for other in [
        await client.post("/orders", {"sku": "B"}),
        await client.post("/orders?a=1", {"sku": "A"}),
        await client.post("/orders", b'{"sku":"A"}', content_type="text/plain"),
    ]:
        assert problem(other) == (422, "key-reused")
    assert client.orders() == 1


@contract
async def test_keys_that_cannot_be_read_are_refused(client: Client) -> None:
    for bad in ["a,b", '"a', "x" * 256, "a b"]:
        assert problem(await client.post("/orders", {}, key=bad)) == (400, "key-invalid")
    differ = await client.post("/orders", {}, key="a", x_idempotency_key="b")
    assert problem(differ) == (400, "key-invalid")
    assert problem(await client.post("/required", {}, key=None)) == (400, "key-missing")
    status, headers, body = await client.post("/plain", {}, key=None)
    assert (status, json.loads(body)) == (200, {"plain": True})
    assert client.orders() == 0


@contract
async def test_callers_that_cannot_be_told_are_refused(client: Client) -> None:
    nobody = await client.post("/orders", {}, x_user="")
    assert problem(nobody) == (401, "principal-unknown")
    assert nobody[1]["www-authenticate"] == "Bearer"
    assert problem(await client.post("/orders", {}, x_tenant=" ")) == (401, "tenant-unknown")
    other = await client.post("/orders", {"sku": "A"}, x_user="u-2")
    mine = await client.post("/orders", {"sku": "B"})
    assert (other[0], mine[0], client.orders()) == (201, 201, 2)


@contract
async def test_responses_that_are_not_stored_commit_nothing(client: Client) -> None:
    # About the form of the request: the corrected one may use the key.
    assert (await client.post("/orders", {"sku": "unknown"}))[0] == 422
    assert client.record() == {}
    # About a state: recorded, and run again.
    assert (await client.post("/orders", {"sku": "taken"}, key="t"))[0] == 409
    assert client.record("t")["error"] == "the handler answered 409"
    assert (await client.post("/fail", {}, key="f"))[0] == 500
    assert client.record("f")["state"] == 2
    assert client.orders() == 0
    assert (await client.post("/orders", {"sku": "A"}))[0] == 201
    assert client.orders() == 1


@contract
async def test_what_is_too_large_is_refused(client: Client) -> None:
    large = await client.post("/orders", {"text": "x" * (1 << 20)})
    assert problem(large) == (413, "body-too-large")
    assert problem(await client.post("/orders", {"sku": "large"})) == (500, "result-too-large")
    assert client.orders() == 0


@contract
async def test_a_handler_that_takes_no_unit_is_refused(client: Client) -> None:
    assert problem(await client.post("/plain", {})) == (500, "misconfigured")
    assert client.record()["state"] == 2


@contract
async def test_concurrent_duplicates_have_one_effect(client: Client) -> None:
    answers: List[Answer] = list(
        await asyncio.gather(*(client.post("/orders", {"sku": "A"}) for _ in range(8)))
    )
    created = {answer[2] for answer in answers if answer[0] == 201}
    rest = [answer for answer in answers if answer[0] != 201]
    assert len(created) == 1 and client.orders() == 1
    for answer in rest:
        assert problem(answer) == (409, "in-progress")
        assert answer[1]["retry-after"] == "1"
