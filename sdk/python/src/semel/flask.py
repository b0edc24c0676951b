"""Idempotent routes for Flask: the same HTTP contract as Semel's gateway and Rust layers."""

from __future__ import annotations

import io
from typing import Any, Callable, Iterable, List, Mapping, Optional, Tuple, Union

from flask import Request as FlaskRequest
from flask import request as current_request
from werkzeug.exceptions import HTTPException
from werkzeug.wsgi import ClosingIterator

from .database import run
from .engine import Work
from .errors import Misused
from .http.content import HttpRequest
from .http.contract import Response
from .http.flow import EVERYBODY, Everybody, Flow, Rules, Taken
from .sync import Ledger, Unit

__all__ = ["EVERYBODY", "Idempotency", "Rules", "unit"]

_KEY = "semel.unit"

Chooser = Union[str, Everybody, Callable[[FlaskRequest], Optional[str]]]


def unit() -> "Unit[Any]":
    """Returns the open transaction of the current request. What the view writes on `unit().connection`
    commits with the response."""
    taken: Optional[Taken] = current_request.environ.get(_KEY)
    if taken is None:
        raise Misused(
            "this request has no unit: it has no idempotency key (make it required), or its method or "
            "route is not under Idempotency"
        )
    found: Unit[Any] = taken.take()
    return found


def _chosen(chooser: Chooser) -> Callable[[FlaskRequest], Any]:
    if callable(chooser):
        return chooser
    return lambda _: chooser


class Idempotency:
    """Runs each request with an idempotency key once, in one transaction with its response.

    `tenant` is a text or a function of the request; `principal` is a function that names the caller, or
    EVERYBODY. Neither has a default: callers that share a key by accident get each other's responses.
    `routes` has rules for single operations, such as `"POST /orders/<order_id>"`; a name
    that is no route of the application fails its first request.

    What a response calls when it is closed (`call_on_close`) runs after the commit.
    """

    def __init__(
        self,
        app: Any,
        *,
        ledger: "Ledger[Any]",
        tenant: Chooser,
        principal: Chooser,
        rules: Optional[Rules] = None,
        routes: Optional[Mapping[str, Rules]] = None,
    ) -> None:
        self._urls = app.url_map
        self._is_checked = not routes
        self._app, app.wsgi_app = app.wsgi_app, self
        self._flow = Flow(
            ledger.engine, _chosen(tenant), _chosen(principal), rules or Rules(), routes or {}
        )

    def __call__(self, environ: Any, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Serves one request."""
        if not self._is_checked:
            rules = self._urls.iter_rules()
            self._flow.check_routes(
                f"{m} {rule.rule}" for rule in rules for m in rule.methods or ()
            )
            self._is_checked = True
        asked = FlaskRequest(environ, populate_request=False)
        root = asked.root_path.rstrip("/")
        path = root + asked.path
        operation = f"{asked.method} {self._template(environ, asked.path)}"
        headers = list(asked.headers.items())
        key = self._flow.key(asked.method, operation, path, headers)
        if key is None:
            passed: Iterable[bytes] = self._app(environ, start_response)
            return passed
        if isinstance(key, Response):
            return _send(key, start_response)
        limit = self._flow.rules_of(operation).max_request
        body = asked.stream.read(limit + 1)
        request = HttpRequest(
            asked.method, operation, path, asked.query_string, headers, body, root
        )
        closing: "List[Callable[[], Any]]" = []

        async def handler(
            native: Any, calls: Work[Any], offer: Callable[[Any], Taken]
        ) -> Tuple[Response, Taken]:
            taken = offer(Unit(native, calls))
            read = {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body)), _KEY: taken}
            return _run(self._app, {**environ, **read}, closing), taken

        try:
            answer = run(self._flow.serve(key, request, asked, handler))
        except BaseException:
            _close(closing)
            raise
        return ClosingIterator(_send(answer.response, start_response), [lambda: _close(closing)])

    def _template(self, environ: Any, path: str) -> str:
        try:
            rule, _ = self._urls.bind_to_environ(environ).match(return_rule=True)
            return str(rule.rule)
        except HTTPException:
            return path


def _close(closing: "List[Callable[[], Any]]") -> None:
    while closing:
        closing.pop()()


def _run(app: Any, environ: Any, closing: "List[Callable[[], Any]]") -> Response:
    """Runs the application, and collects its response."""
    started: List[Tuple[str, List[Tuple[str, str]]]] = []
    written: List[bytes] = []

    def start_response(status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], Any]:
        started.append((status, list(headers)))
        return written.append

    chunks = app(environ, start_response)
    if hasattr(chunks, "close"):
        closing.append(chunks.close)
    written.extend(chunks)
    status, headers = started[-1]
    return Response(int(status.split(" ", 1)[0]), headers, b"".join(written))


def _send(response: Response, start_response: Callable[..., Any]) -> List[bytes]:
    lines = [(name, value) for name, value in response.headers if name.lower() != "content-length"]
    # These statuses have no body.
    if response.status not in (204, 304):
        lines.append(("Content-Length", str(len(response.body))))
    start_response(f"{response.status} {_reason(response.status)}", lines)
    return [response.body]


def _reason(status: int) -> str:
    from http import HTTPStatus

    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
