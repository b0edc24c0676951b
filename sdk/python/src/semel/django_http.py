"""Idempotent views for Django: the same HTTP contract as Semel's gateway and Rust layers."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Tuple

from django.http import HttpRequest as DjangoRequest
from django.http import HttpResponse

from .database import run
from .engine import Work
from .errors import Misused
from .http.content import HttpRequest
from .http.contract import Response
from .http.flow import EVERYBODY, Flow, Rules, Taken
from .sync import Ledger, Unit

__all__ = ["EVERYBODY", "IdempotencyMiddleware", "Rules", "unit"]

_ATTRIBUTE = "_semel_unit"


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
        self._flow = Flow(self.ledger.engine, self.tenant, self.principal, self.rules, self.routes)

    def tenant(self, request: DjangoRequest) -> Optional[str]:
        """Returns the tenant of a request; None is answered with 401."""
        raise NotImplementedError("a subclass says whose data a request is about")

    def principal(self, request: DjangoRequest) -> Any:
        """Returns who asks, or EVERYBODY; None is answered with 401."""
        raise NotImplementedError("a subclass says who asks")

    def __call__(self, request: DjangoRequest) -> HttpResponse:
        """Serves one request."""
        return self._get_response(request)

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
        asked = HttpRequest(request.method, operation, request.path, query, headers, request.body)
        live = []

        async def handler(
            native: Any, calls: Work[Any], offer: Callable[[Any], Taken]
        ) -> Tuple[Response, Taken]:
            taken = offer(Unit(native, calls))
            setattr(request, _ATTRIBUTE, taken)
            response = view(request, *args, **kwargs)
            if hasattr(response, "render"):
                response = response.render()
            live.append(response)
            body = b"".join(response) if response.streaming else response.content
            return Response(response.status_code, list(response.items()), body), taken

        answer = run(self._flow.serve(key, asked, request, handler))
        if answer.is_live and not live[-1].streaming:
            response: HttpResponse = live[-1]
            return response
        return _response(answer.response)


def _response(answer: Response) -> HttpResponse:
    response = HttpResponse(answer.body, status=answer.status)
    del response["Content-Type"]
    for name, value in answer.headers:
        if name.lower() != "content-length":
            response[name] = value
    return response
