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
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse
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

    def __init__(self, send: Send, tenant: str, app: str = "") -> None:
        self._send = send
        self.app = app
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
    if path == "/elsewhere":
        # As another call of the ledger does that the handler makes.
        raise semel.KeyReused()
    if order.get("sku") == "unknown":
        return 422, {"error": "no such sku"}
    if order.get("sku") == "taken":
        return 409, {"error": "sold out"}
    if order.get("sku") == "large" or order.get("large"):
        return 200, {"text": "x" * (1 << 20)}
    if order.get("sku") == "headers":
        return 200, {"text": "x" * 950_000}
    if order.get("sku") == "nobody":
        return 401, {}
    return 201, {"order": uuid.uuid4().hex}


def headers_of(order: Any) -> Dict[str, str]:
    link = "x" * (100_000 if order.get("sku") == "headers" else 1)
    return {"location": "/orders/1", "set-cookie": "seen=1", "x-own": "1", "link": link}


def caller(headers: Any) -> Any:
    """Names the caller; or gives something that is no name."""
    user = headers.get("x-user")
    if user == "later":

        async def named() -> str:
            return "u-9"

        return named()
    return 7 if user == "number" else user


PATHS = ["/orders", "/fail", "/elsewhere", "/any"]
# In routers in routers, and in another application.
DEEP, MOUNTED = "/v1/shop/orders/7", "/sub/orders/7"
#: How many orders others saw when what follows a response ran.
SEEN: List[int] = []


def look(tenant: str) -> None:
    (row,) = query("SELECT count(*) AS n FROM effect WHERE name = %s", f"{tenant}/o")
    SEEN.append(row["n"])


async def fastapi_app(tenant: str) -> "tuple[Send, Callable[[], Any]]":
    pool = AsyncConnectionPool(url(), min_size=1, max_size=4, open=False)
    await pool.open()
    app = FastAPI()
    app.add_middleware(
        semel.fastapi.IdempotencyMiddleware,
        ledger=semel.psycopg.async_ledger(pool),
        tenant=lambda request: request.headers.get("x-tenant", tenant) or None,
        principal=lambda request: caller(request.headers),
        routes={
            "POST /required": semel.fastapi.Rules(required=True),
            "POST /v1/shop/orders/{number}": semel.fastapi.Rules(required=True),
            "POST /sub/orders/{number}": semel.fastapi.Rules(required=True),
            "POST /any": semel.fastapi.Rules(stores=lambda status: True),
        },
    )

    async def place(
        request: Request,
        after: BackgroundTasks,
        unit: semel.AsyncUnit[Any] = Depends(semel.fastapi.unit),
    ) -> Any:
        await unit.connection.execute("INSERT INTO effect VALUES (%s)", (f"{tenant}/o",))
        order = await request.json()
        if order.get("sku") == "bad":
            raise HTTPException(400)
        if order.get("sku") == "after":
            after.add_task(look, tenant)
        status, body = outcome(request.url.path, order)
        return JSONResponse(body, status, headers_of(order), background=after)

    shop, orders, sub = APIRouter(prefix="/shop"), APIRouter(), FastAPI()
    orders.post("/orders/{number}")(lambda number: {"plain": number})
    shop.include_router(orders)
    app.include_router(shop, prefix="/v1")
    sub.post("/orders/{number}")(lambda number: {"plain": number})
    app.mount("/sub", sub)
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
    from flask import Blueprint, Flask, abort, make_response, request

    import semel.flask

    pool = ConnectionPool(url(), min_size=1, max_size=4, open=True)
    app = Flask("orders")
    semel.flask.Idempotency(
        app,
        ledger=semel.psycopg.ledger(pool),
        tenant=lambda request: request.headers.get("x-tenant", tenant) or None,
        principal=lambda request: caller(request.headers),
        routes={
            "POST /required": semel.flask.Rules(required=True),
            "POST /v1/shop/orders/<number>": semel.flask.Rules(required=True),
            "POST /any": semel.flask.Rules(stores=lambda status: True),
        },
    )

    def place() -> Any:
        semel.flask.unit().connection.execute("INSERT INTO effect VALUES (%s)", (f"{tenant}/o",))
        order = request.get_json()
        if order.get("sku") == "bad":
            abort(400)
        status, body = outcome(request.path, order)
        response = make_response(body, status, headers_of(order))
        if order.get("sku") == "after":
            response.call_on_close(lambda: look(tenant))
        return response

    outer, inner = Blueprint("v1", "orders", url_prefix="/v1"), Blueprint("shop", "orders")
    inner.post("/shop/orders/<number>", endpoint="deep")(lambda number: {"plain": number})
    outer.register_blueprint(inner)
    app.register_blueprint(outer)

    for path in PATHS:
        app.post(path, endpoint=path)(place)
    app.post("/plain", endpoint="plain")(lambda: {"plain": True})
    app.post("/required", endpoint="required")(lambda: {"plain": True})

    def call(path: str, body: bytes, headers: Dict[str, str]) -> Answer:
        overridden = {"SCRIPT_NAME": headers.pop("x-root", "")}
        client = app.test_client()
        response = client.post(path, data=body, headers=headers, environ_overrides=overridden)
        named = {name.lower(): value for name, value in response.headers.items()}
        data = response.data
        response.close()
        return response.status_code, named, data

    async def send(path: str, body: bytes, headers: Dict[str, str]) -> Answer:
        return await asyncio.to_thread(call, path, body, headers)

    return send, pool.close


async def django_app(tenant: str) -> "tuple[Send, Callable[[], Any]]":
    await django_connection()
    from django.conf import settings
    from django.core.exceptions import BadRequest
    from django.db import connections
    from django.http import JsonResponse, StreamingHttpResponse
    from django.test import Client as DjangoClient
    from django.test.utils import override_settings
    from django.urls import include
    from django.urls import path as route

    import semel.django
    import semel.django_http

    class Idempotency(semel.django_http.IdempotencyMiddleware):
        ledger = semel.django.ledger()
        routes = {
            "POST required": semel.django_http.Rules(required=True),
            "POST v1/shop/orders/<number>": semel.django_http.Rules(required=True),
            "POST any": semel.django_http.Rules(stores=lambda status: True),
        }

        def tenant(self, request: Any) -> Optional[str]:
            return request.headers.get("x-tenant", tenant) or None

        def principal(self, request: Any) -> Optional[str]:
            return caller(request.headers)  # type: ignore[no-any-return]

    def place(request: Any) -> Any:
        with semel.django_http.unit(request).connection.cursor() as cursor:
            cursor.execute("INSERT INTO effect VALUES (%s)", (f"{tenant}/o",))
        order = json.loads(request.body) if request.content_type[:5] != "multi" else request.POST
        if order.get("sku") == "bad":
            raise BadRequest()
        status, body = outcome(request.path, order)
        response: Any = JsonResponse(body, status=status)
        if order.get("sku") == "stream":
            response = StreamingHttpResponse([b"{}"])
        for name, value in headers_of(order).items():
            if name != "set-cookie":
                response[name] = value
        response.set_cookie("seen", "1")
        return response

    async def suspends(request: Any) -> Any:
        raise AssertionError("ran")

    class Parses:
        """Reads the form of a request before its view does, as the CSRF middleware does."""

        def __init__(self, get_response: Any) -> None:
            self._get_response = get_response

        def __call__(self, request: Any) -> Any:
            return self._get_response(request)

        def process_view(self, request: Any, view: Any, args: Any, kwargs: Any) -> None:
            assert request.POST is not None

    plain = lambda request: JsonResponse({"plain": True})  # noqa: E731
    urls = types.ModuleType("semel_test_urls")
    urls.urlpatterns = [route(path[1:], place) for path in PATHS]  # type: ignore[attr-defined]
    urls.urlpatterns += [route("plain", plain), route("required", plain)]  # type: ignore[attr-defined]
    deep = [route("orders/<number>", lambda request, number: plain(request))]
    urls.urlpatterns += [route("v1/", include([route("shop/", include(deep))]))]  # type: ignore[attr-defined]
    urls.urlpatterns += [route("suspends", suspends)]  # type: ignore[attr-defined]
    urls.Parses = Parses  # type: ignore[attr-defined]
    urls.Idempotency = Idempotency  # type: ignore[attr-defined]
    sys.modules["semel_test_urls"] = urls
    assert settings.configured
    overridden = override_settings(
        ROOT_URLCONF="semel_test_urls",
        MIDDLEWARE=["semel_test_urls.Parses", "semel_test_urls.Idempotency"],
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
            streams = response.streaming
            content = b"".join(response.streaming_content) if streams else response.content
            return response.status_code, named, content
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
                await test(Client(send, tenant, app))
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


@contract
async def test_the_rules_of_a_nested_route_hold(client: Client) -> None:
    paths = [DEEP, MOUNTED] if client.app == "fastapi" else [DEEP]
    for path in paths:
        assert problem(await client.post(path, {}, key=None)) == (400, "key-missing")


@contract
async def test_callers_without_a_name_share_no_key(client: Client) -> None:
    assert problem(await client.post("/orders", {}, x_user="number")) == (500, "misconfigured")
    if client.app != "fastapi":
        assert problem(await client.post("/orders", {}, x_user="later")) == (500, "misconfigured")
        assert client.orders() == 0
        return
    first, again = [await client.post("/orders", {"sku": "A"}, x_user="later") for _ in range(2)]
    assert (first[0], again[0], again[1]["idempotent-replayed"]) == (201, 201, "true")
    assert client.record()["principal"] == semel.keys.principal("u-9")


@contract
async def test_what_a_handler_is_refused_elsewhere_is_its_own_error(client: Client) -> None:
    answer = await client.post("/elsewhere", {})
    assert answer[0] == 500 and b"urn:semel" not in answer[2]
    assert client.orders() == 0


@contract
async def test_an_error_that_is_an_answer_frees_the_key(client: Client) -> None:
    assert (await client.post("/orders", {"sku": "bad"}))[0] == 400
    assert client.record() == {}
    assert (await client.post("/orders", {"sku": "A"}))[0] == 201
    assert client.orders() == 1


@contract
async def test_answers_about_the_caller_are_never_stored(client: Client) -> None:
    assert (await client.post("/any", {"sku": "nobody"}))[0] == 401
    assert (await client.post("/any", {"sku": "A"}, key="A"))[0] == 201
    assert client.record()["state"] == 2 and client.orders() == 1


@contract
async def test_headers_count_as_what_is_stored(client: Client) -> None:
    assert problem(await client.post("/orders", {"sku": "headers"})) == (500, "result-too-large")
    assert client.orders() == 0


@contract
async def test_what_follows_a_response_follows_the_commit(client: Client) -> None:
    if client.app == "django":
        # There it is `transaction.on_commit`.
        return
    SEEN.clear()
    assert (await client.post("/orders", {"sku": "after"}))[0] == 201
    assert SEEN == [1]
    if client.app == "fastapi":
        # Nothing was answered by the handler, so nothing of it follows.
        assert (await client.post("/orders", {"sku": "after", "large": True}, key="l"))[0] == 500
        assert SEEN == [1]


@contract
async def test_a_form_that_was_parsed_before_is_read(client: Client) -> None:
    if client.app != "django":
        return
    form = b'--b\r\nContent-Disposition: form-data; name="sku"\r\n\r\nA\r\n--b--\r\n'
    for _ in range(2):
        sent = await client.post("/orders", form, content_type="multipart/form-data; boundary=b")
        assert sent[0] == 201
    assert client.orders() == 1
    streamed = await client.post("/orders", {"sku": "stream"}, key="s")
    assert (streamed[0], streamed[2]) == (200, b"{}") and "seen" in streamed[1]["set-cookie"]
    assert problem(await client.post("/suspends", {}, key="a")) == (500, "misconfigured")


@contract
async def test_an_application_under_two_paths_has_two_operations(client: Client) -> None:
    if client.app != "flask":
        return
    for root in ("/shop", "/store"):
        assert (await client.post("/orders", {"sku": "A"}, x_root=root))[0] == 201
    assert client.orders() == 2


def test_rules_for_no_route_are_refused(database: None) -> None:
    from flask import Flask

    import semel.flask

    app = Flask("orders")
    pool = ConnectionPool(url(), open=False)
    semel.flask.Idempotency(
        app,
        ledger=semel.psycopg.ledger(pool),
        tenant="acme",
        principal=semel.flask.EVERYBODY,
        routes={"POST /ordres": semel.flask.Rules(required=True)},
    )
    with pytest.raises(semel.Misused, match="POST /ordres"):
        app.test_client().post("/orders")

    started: List[Any] = []
    service = FastAPI()
    service.add_middleware(
        semel.fastapi.IdempotencyMiddleware,
        ledger=semel.psycopg.async_ledger(AsyncConnectionPool(url(), open=False)),
        tenant="acme",
        principal=semel.fastapi.EVERYBODY,
        routes={"POST /ordres": semel.fastapi.Rules(required=True)},
    )

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        started.append(message)

    asyncio.run(service({"type": "lifespan", "app": service, "state": {}}, receive, send))
    assert started[0]["type"] == "lifespan.startup.failed" and "/ordres" in started[0]["message"]


def test_a_file_is_stored_whatever_the_server_can_do(database: None) -> None:
    tenant = f"t-{uuid.uuid4().hex[:20]}"

    async def main() -> None:
        pool = AsyncConnectionPool(url(), min_size=1, max_size=4, open=False)
        await pool.open()
        service = FastAPI()

        @service.post("/file")
        async def file(unit: semel.AsyncUnit[Any] = Depends(semel.fastapi.unit)) -> Any:
            return FileResponse(__file__)

        guarded = semel.fastapi.IdempotencyMiddleware(
            service,
            ledger=semel.psycopg.async_ledger(pool),
            tenant=tenant,
            principal=semel.fastapi.EVERYBODY,
            # Also found where the middleware is around the application.
            routes={"POST /file": semel.fastapi.Rules(required=True)},
        )

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await guarded({**scope, "extensions": {"http.response.pathsend": {}}}, receive, send)

        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
        assert (await client.post("/file")).status_code == 400
        for _ in range(2):
            response = await client.post("/file", headers={"idempotency-key": "k"})
            assert b"whatever the server can do" in response.content or len(response.content) > 9000
        await pool.close()

    asyncio.run(main())
