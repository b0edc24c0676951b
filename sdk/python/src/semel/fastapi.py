"""Idempotent routes for FastAPI and Starlette: the same HTTP contract as Semel's gateway and Rust layers."""

from __future__ import annotations

import asyncio
from typing import (
    Any,
    Awaitable,
    Callable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

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
# Those of a route that names none.
_METHODS = ("POST", "PATCH", "PUT", "DELETE")

Chooser = Union[
    str, Everybody, Callable[[StarletteRequest], Union[None, str, Awaitable[Optional[str]]]]
]


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
    EVERYBODY; both functions may be asynchronous. Neither has a default: callers that share a key by
    accident get each other's responses. `routes` has rules for single operations, such as
    `"POST /orders/{order_id}"`; a name that is no route of the application fails its start.

    Background tasks, and what dependencies do after their `yield`, run after the commit.
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
            ledger.engine, _chosen(tenant), _chosen(principal), rules or Rules(), routes or {}, True
        )
        self._is_checked = not routes

    async def __call__(
        self,
        scope: Any,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Serves one request."""
        if scope["type"] == "lifespan" and not self._is_checked:
            try:
                self._check_routes(scope)
            except Misused as misused:
                await receive()
                # What is raised here is taken for an application without a lifespan.
                await send({"type": "lifespan.startup.failed", "message": str(misused)})
                return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self._check_routes(scope)
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        ]
        method, path = scope["method"], scope["path"]
        operation = f"{method} {_template(self._routes(scope), scope) or path}"
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
        root = scope.get("root_path", "")
        request = HttpRequest(method, operation, path, scope["query_string"], headers, body, root)
        running: "List[_Running]" = []

        async def handler(
            native: Any, calls: Work[Any], offer: Callable[[Any], Taken]
        ) -> Tuple[Response, Taken]:
            taken = offer(AsyncUnit(native, calls))
            # No extensions: with some of them a response has no body here.
            inner = {**scope, "extensions": {}, _KEY: taken}
            running.append(_Running(self.app, inner, body))
            return await running[0].response(), taken

        try:
            answer = await self._flow.serve(key, request, StarletteRequest(scope), handler)
            await _send(answer.response, send)
            if answer.is_live:
                for each in running:
                    await each.finish()
        finally:
            for each in running:
                await each.stop()

    def _routes(self, scope: Any) -> Sequence[Any]:
        app = scope.get("app") or self.app
        # Below other middleware.
        while not hasattr(app, "routes") and hasattr(app, "app"):
            app = app.app
        return getattr(app, "routes", ())

    def _check_routes(self, scope: Any) -> None:
        if not self._is_checked:
            self._flow.check_routes(_operations(self._routes(scope)))
            self._is_checked = True


def _included(route: Any) -> "Optional[List[Any]]":
    """Returns the routes of a router that FastAPI keeps as one route; None for others."""
    candidates = getattr(route, "effective_candidates", None)
    if candidates is None:
        return None
    return [getattr(each, "starlette_route", None) or each for each in candidates()]


def _template(routes: Sequence[Any], scope: Any) -> Optional[str]:
    """Returns the template of the route of a request, with those of the routers that it is in."""
    for route in routes:
        included = _included(route)
        if included is not None:
            found = _template(included, scope)
            if found is not None:
                return found
            continue
        # A copy, since a match may write into it.
        match, child = route.matches({**scope, "fastapi": {}})
        if match != Match.FULL:
            continue
        path = str(getattr(route, "path", ""))
        nested = getattr(route, "routes", None)
        if not nested:
            return path or None
        below = _template(nested, {**scope, **child})
        return None if below is None else path + below
    return None


def _operations(routes: Sequence[Any], prefix: str = "") -> Iterator[str]:
    """Yields the operations of an application, as `_template` names them."""
    for route in routes:
        included = _included(route)
        path = prefix + str(getattr(route, "path", ""))
        nested = included if included is not None else getattr(route, "routes", None)
        if nested:
            yield from _operations(nested, prefix if included is not None else path)
        else:
            for method in getattr(route, "methods", None) or _METHODS:
                yield f"{method} {path}"


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


class _Running:
    """The application while it runs one request. It goes on after its response: with background tasks."""

    def __init__(self, app: Any, scope: Any, body: bytes) -> None:
        self._unread = [{"type": "http.request", "body": body, "more_body": False}]
        self._start: "dict[str, Any]" = {}
        self._chunks: List[bytes] = []
        self._is_answered = asyncio.Event()
        self._is_released = asyncio.Event()
        self._task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        # The caller is not told of a disconnect: what it asked for goes on, and its repeat gets it.
        if self._unread:
            return self._unread.pop()
        return await asyncio.get_running_loop().create_future()

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._start.update(message)
        elif message["type"] == "http.response.body":
            self._chunks.append(message.get("body", b""))
            if not message.get("more_body", False):
                self._is_answered.set()
                # What follows the response, such as background tasks, waits for the commit.
                await self._is_released.wait()

    async def response(self) -> Response:
        """Waits for the end of the response. Raises what the application raises before."""
        answered = asyncio.ensure_future(self._is_answered.wait())
        try:
            await asyncio.wait([answered, self._task], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            await self.stop()
            raise
        finally:
            answered.cancel()
        if self._task.done() and not self._is_answered.is_set():
            self._task.result()
            raise RuntimeError("the application ended without a response")
        lines = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in self._start["headers"]
        ]
        return Response(self._start["status"], lines, b"".join(self._chunks))

    async def finish(self) -> None:
        """Lets the application go on, and waits until it is done. Raises what it raises then."""
        self._is_released.set()
        await self._task

    async def stop(self) -> None:
        """Ends the application, if it is not done."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()


async def _send(response: Response, send: Callable[[Any], Awaitable[None]]) -> None:
    lines = [(name, value) for name, value in response.headers if name.lower() != "content-length"]
    # These statuses have no body.
    if response.status not in (204, 304):
        lines.append(("content-length", str(len(response.body))))
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in lines]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
