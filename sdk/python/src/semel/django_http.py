"""Idempotent views for Django: the same HTTP contract as Semel's gateway and Rust layers."""

from __future__ import annotations

import logging
from typing import Any, Callable, Iterator, Mapping, Optional, Tuple

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.handlers.exception import response_for_exception
from django.http import Http404, HttpResponse
from django.http import HttpRequest as DjangoRequest
from django.http.multipartparser import MultiPartParserError
from django.urls import URLResolver, get_resolver

from .database import run
from .engine import Work
from .errors import Misused
from .http.content import HttpRequest
from .http.contract import KEY_HEADERS, Response, problem
from .http.flow import EVERYBODY, Flow, Rules, Taken
from .sync import Ledger, Unit

__all__ = ["EVERYBODY", "IdempotencyMiddleware", "Rules", "unit"]

_ATTRIBUTE = "_semel_unit"
# What a view raises to answer with a status below 500.
_ANSWERS = (Http404, PermissionDenied, BadRequest, SuspiciousOperation, MultiPartParserError)

log = logging.getLogger("semel")


def unit(request: DjangoRequest) -> "Unit[Any]":
    """Returns the open transaction of this request. What the view writes with the ORM commits with the
    response, once the view has taken its unit."""
    taken: Optional[Taken] = getattr(request, _ATTRIBUTE, None)
    if taken is None:
        raise Misused(
            "this request has no unit: it has no idempotency key (make it required), or its method or "
            "view is not under IdempotencyMiddleware"
        )
    found: Unit[Any] = taken.take()
    return found


class IdempotencyMiddleware:
    """Runs each view with an idempotency key once, in one transaction with its response.

    Subclass it with `ledger`, `tenant` and `principal`, and name the subclass in MIDDLEWARE, last.
    """

    #: The ledger: `semel.django.ledger()`.
    ledger: "Ledger[Any]"
    #: Rules for all views, and for single operations, such as `"POST orders/<int:id>/"`.
    rules = Rules()
    routes: Mapping[str, Rules] = {}

    def __init__(self, get_response: Callable[[DjangoRequest], HttpResponse]) -> None:
        self._get_response = get_response
        self._is_checked = not self.routes
        self._flow = Flow(self.ledger.engine, self.tenant, self.principal, self.rules, self.routes)

    def tenant(self, request: DjangoRequest) -> Optional[str]:
        """Returns the tenant of a request; None is answered with 401."""
        raise NotImplementedError("a subclass says whose data a request is about")

    def principal(self, request: DjangoRequest) -> Any:
        """Returns who asks, or EVERYBODY; None is answered with 401."""
        raise NotImplementedError("a subclass says who asks")

    def __call__(self, request: DjangoRequest) -> HttpResponse:
        """Serves one request."""
        if not self._is_checked:
            methods = {name.partition(" ")[0] for name in self.routes}
            found = _routes(get_resolver(getattr(request, "urlconf", None)))
            self._flow.check_routes(f"{method} {route}" for route in found for method in methods)
            self._is_checked = True
        if self._has_key(request) and not self._is_too_large(request):
            # Before a view or another middleware parses it, which would consume it.
            request.body  # noqa: B018
        return self._get_response(request)

    def _has_key(self, request: DjangoRequest) -> bool:
        return any(name in request.headers for name in KEY_HEADERS)

    def _is_too_large(self, request: DjangoRequest) -> bool:
        most = max(rules.max_request for rules in [self.rules, *self.routes.values()])
        try:
            return int(request.META.get("CONTENT_LENGTH") or 0) > most
        except ValueError:
            return False

    def process_view(
        self, request: DjangoRequest, view: Callable[..., Any], args: Any, kwargs: Any
    ) -> Optional[HttpResponse]:
        """Runs the view at most once, if the request has a key."""
        operation = f"{request.method} {request.resolver_match.route}"
        headers = list(request.headers.items())
        key = self._flow.key(request.method, operation, request.path, headers)
        if key is None:
            return None
        if isinstance(key, Response):
            return _response(key)
        query = request.META.get("QUERY_STRING", "").encode("latin-1")
        root = request.META.get("SCRIPT_NAME", "")
        if iscoroutinefunction(view):
            log.error("%s is asynchronous, and the unit of a view is synchronous", operation)
            detail = "asynchronous views have no idempotency keys; the service's log says more"
            return _response(problem("misconfigured", detail, request.path))
        if self._is_too_large(request):
            detail = "the body of a request with a key is too large here"
            return _response(problem("body-too-large", detail, request.path))
        asked = HttpRequest(
            request.method, operation, request.path, query, headers, request.body, root
        )
        live = []

        async def handler(
            native: Any, calls: Work[Any], offer: Callable[[Any], Taken]
        ) -> Tuple[Response, Taken]:
            taken = offer(Unit(native, calls))
            setattr(request, _ATTRIBUTE, taken)
            try:
                response = view(request, *args, **kwargs)
            except _ANSWERS as error:
                # As Django answers it; inside the work, so that it is treated as an answer.
                response = response_for_exception(request, error)
            if hasattr(response, "render"):
                response = response.render()
            live.append(response)
            body = b"".join(response) if response.streaming else response.content
            return Response(response.status_code, list(response.items()), body), taken

        answer = run(self._flow.serve(key, asked, request, handler))
        if not answer.is_live:
            return _response(answer.response)
        response: HttpResponse = live[-1]
        if response.streaming:
            cookies, response = response.cookies, _response(answer.response)
            response.cookies.update(cookies)
        return response


def _routes(resolver: Any, prefix: str = "") -> Iterator[str]:
    """Yields the routes below a resolver, as a match names them."""
    for pattern in resolver.url_patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _routes(pattern, route)
        else:
            yield route


def _response(answer: Response) -> HttpResponse:
    response = HttpResponse(answer.body, status=answer.status)
    del response["Content-Type"]
    for name, value in answer.headers:
        if name.lower() != "content-length":
            response[name] = value
    return response
