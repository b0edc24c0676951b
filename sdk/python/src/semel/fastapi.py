"""Idempotent routes for FastAPI and Starlette: the same HTTP contract as Semel's gateway and Rust layers."""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, List, Mapping, Optional, Tuple, Union

from starlette.requests import Request as StarletteRequest
from starlette.routing import Match

from .aio import AsyncLedger, AsyncUnit
from .engine import Work
from .errors import Misused
from .http.content import HttpRequest
from .http.contract import Response
from .http.flow import EVERYBODY, Everybody, Flow, Rules, Taken

__all__ = ["EVERYBODY", "IdempotencyMiddleware", "Rules", "unit"]

_KEY = "semel.unit"

Chooser = Union[str, Everybody, Callable[[StarletteRequest], Optional[str]]]


def unit(request: StarletteRequest) -> "AsyncUnit[Any]":
    """Returns the open transaction of this request, for `Depends(unit)`. What the handler writes on
    `unit.connection` commits with the response."""
    taken: Optional[Taken] = request.scope.get(_KEY)
    if taken is None:
        raise Misused(
            "this request has no unit: it has no idempotency key (make it required), or its method or "
            "route is not under IdempotencyMiddleware"
        )
    found: AsyncUnit[Any] = taken.take()
    return found


def _chosen(chooser: Chooser) -> Callable[[StarletteRequest], Any]:
    if callable(chooser):
        return chooser
    return lambda _: chooser


class IdempotencyMiddleware:
    """Runs each request with an idempotency key once, in one transaction with its response.

    `tenant` is a text or a function of the request; `principal` is a function that names the caller, or
    EVERYBODY. Neither has a default: callers that share a key by accident get each other's responses.
    `routes` has rules for single operations, such as `"POST /orders/{order_id}"`.
    """

    def __init__(
        self,
        app: Any,
        *,
        ledger: "AsyncLedger[Any]",
        tenant: Chooser,
        principal: Chooser,
        rules: Optional[Rules] = None,
        routes: Optional[Mapping[str, Rules]] = None,
    ) -> None:
        self.app = app
        self._flow = Flow(
            ledger.engine, _chosen(tenant), _chosen(principal), rules or Rules(), routes or {}
        )

    async def __call__(
        self,
        scope: Any,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        ]
        method, path = scope["method"], scope["path"]
        operation = f"{method} {_template(scope)}"
        key = self._flow.key(method, operation, path, headers)
        if key is None:
            await self.app(scope, receive, send)
            return
        if isinstance(key, Response):
            await _send(key, send)
            return
        body = await _body(receive, self._flow.rules_of(operation).max_request)
        if body is None:
            return
        request = HttpRequest(method, operation, path, scope["query_string"], headers, body)

        async def handler(
            native: Any, calls: Work[Any], offer: Callable[[Any], Taken]
        ) -> Tuple[Response, Taken]:
            taken = offer(AsyncUnit(native, calls))
            return await _run(self.app, {**scope, _KEY: taken}, body), taken

        answer = await self._flow.serve(key, request, StarletteRequest(scope), handler)
        await _send(answer.response, send)


def _template(scope: Any) -> str:
    for route in getattr(scope.get("app"), "routes", ()):
        match, _ = route.matches(scope)
        if match == Match.FULL:
            return str(getattr(route, "path", scope["path"]))
    return str(scope["path"])


async def _body(receive: Callable[[], Awaitable[Any]], limit: int) -> Optional[bytes]:
    """Reads the body, at most one byte more than the limit; None if the caller has left."""
    chunks: List[bytes] = []
    size = 0
    while size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if not message.get("more_body", False):
            break
    return b"".join(chunks)


async def _run(app: Any, scope: Any, body: bytes) -> Response:
    """Runs the application, and collects its response."""
    sent = [{"type": "http.request", "body": body, "more_body": False}]
    start: "dict[str, Any]" = {}
    chunks: List[bytes] = []

    async def receive() -> Any:
        # The caller is not told of a disconnect: what it asked for goes on, and its repeat gets it.
        return sent.pop() if sent else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        elif message["type"] == "http.response.body":
            chunks.append(message.get("body", b""))

    await app(scope, receive, send)
    lines = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
    return Response(start["status"], lines, b"".join(chunks))


async def _send(response: Response, send: Callable[[Any], Awaitable[None]]) -> None:
    lines = [(name, value) for name, value in response.headers if name.lower() != "content-length"]
    # These statuses have no body.
    if response.status not in (204, 304):
        lines.append(("content-length", str(len(response.body))))
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in lines]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
