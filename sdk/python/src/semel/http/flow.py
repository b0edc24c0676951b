"""One request from its key to its response, for any framework.

The handler runs in the transaction of its claim: a response that is stored commits it, any other rolls it
back. The response is sent after the commit.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import (
    Any,
    Awaitable,
    Callable,
    Generic,
    Iterable,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

from ..engine import Engine, NotKept, Request, Work
from ..errors import InvalidKey, Misused, NotMigrated, Refused, ResultUnavailable, Unavailable
from ..keys import MAX_SCOPE
from .content import HttpRequest, fingerprint
from .contract import REPLAYED, Damaged, InvalidKeyHeader, Response, key_in, problem

C = TypeVar("C")

log = logging.getLogger("semel")

#: Statuses about the caller or the moment: another try may be answered otherwise.
_NEVER_STORED = {401, 403, 408, 413, 425, 429}
#: Statuses about the form of a request: it was refused before it had an effect, and the key is free again.
_FORM = {400, 405, 406, 411, 413, 414, 415, 416, 417, 421, 422, 425, 426, 428, 431}
_STORED = {
    "content-type",
    "content-encoding",
    "content-language",
    "location",
    "content-location",
    "etag",
    "last-modified",
    "link",
    "vary",
}
_NEVER = {
    "set-cookie",
    "set-cookie2",
    "authorization",
    "proxy-authorization",
    "proxy-authenticate",
    "www-authenticate",
    "authentication-info",
    "proxy-authentication-info",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "date",
}


#: The most bytes that the ledger keeps of an outcome, its content type with it.
MAX_STORED = 1 << 20


class Everybody:
    """The principal where all callers of a tenant share its keys: whoever knows a key gets the stored
    response."""


EVERYBODY = Everybody()


@dataclass(frozen=True)
class Rules:
    """How the requests of a route are treated. The defaults are those of the Rust layers."""

    #: Whether a request without a key is refused; else it passes through, without a unit.
    required: bool = False
    methods: Tuple[str, ...] = ("POST", "PATCH")
    max_request: int = 1 << 20
    max_response: int = (1 << 20) - (64 << 10)
    wait: timedelta = timedelta(0)
    keep: timedelta = timedelta(hours=24)
    #: The status for a key that was used for another request.
    mismatch_status: int = 422
    #: Headers that are stored with a response, beside those that always are.
    kept_headers: Sequence[str] = ()
    #: Request headers that are part of what makes two requests the same.
    matched_headers: Sequence[str] = ()
    #: Which responses are stored; default those below 400. Never 401, 403, 408, 413, 425 and 429.
    stores: Callable[[int], bool] = field(default=lambda status: status < 400)


@dataclass(frozen=True)
class Answer:
    """What is sent: the live response of the handler (None: nothing of it), or one made here."""

    response: Response
    is_live: bool = False


class _Codec:
    def encode(self, value: Response) -> Tuple[str, bytes]:
        return Response.CONTENT_TYPE, value.encode()

    def decode(self, content_type: str, body: bytes) -> Response:
        if content_type != Response.CONTENT_TYPE:
            raise ResultUnavailable(reason=f"stored as {content_type}")
        try:
            return Response.decode(body)
        except Damaged as damaged:
            raise ResultUnavailable(reason=str(damaged)) from damaged


class Taken:
    """The unit that is offered to a handler, and whether the handler took it."""

    def __init__(self, unit: Any) -> None:
        self._unit = unit
        self.is_taken = False

    def take(self) -> Any:
        """Returns the unit."""
        self.is_taken = True
        return self._unit


class _Unused(Exception):
    """The handler did not take its unit, so that nothing would commit with its response."""


class _TooLarge(Exception):
    """The response is larger than what is stored."""


@dataclass
class Flow(Generic[C]):
    """The contract for the requests of one application."""

    engine: Engine[C]
    tenant: Callable[[Any], Optional[str]]
    principal: Callable[[Any], Any]
    rules: Rules
    routes: Mapping[str, Rules]
    #: Whether `tenant` and `principal` may be asynchronous.
    awaits: bool = False

    def check_routes(self, operations: Iterable[str]) -> None:
        """Raises Misused for rules of an operation that the application does not have."""
        known = set(operations)
        for name in self.routes:
            if name not in known:
                raise Misused(
                    f"`routes` has rules for `{name}`, which is no route; the routes are {sorted(known)}"
                )

    def rules_of(self, operation: str) -> Rules:
        """Returns the rules of an operation such as `POST /orders/{id}`."""
        return self.routes.get(operation, self.rules)

    def key(self, method: str, operation: str, path: str, headers: Any) -> "str | Response | None":
        """Returns the key of a request, a problem, or None for a request that passes through."""
        rules = self.rules_of(operation)
        if method not in rules.methods:
            return None
        try:
            key = key_in(headers)
        except InvalidKeyHeader as invalid:
            return problem("key-invalid", str(invalid), path)
        if key is None and rules.required:
            detail = "send a value that is unique to this request in the header idempotency-key"
            return problem("key-missing", detail, path)
        return key

    async def serve(
        self,
        key: str,
        request: HttpRequest,
        original: Any,
        handler: Callable[[C, Work[C], Callable[[Any], Taken]], Awaitable[Tuple[Response, Taken]]],
    ) -> Answer:
        """Runs the handler at most once under the key. `original` is the framework's request."""
        rules, path = self.rules_of(request.operation), request.path
        asked_of = self.tenant(original), self.principal(original)
        try:
            tenant = await self._identity("tenant", asked_of[0])
            principal = await self._identity("principal", asked_of[1])
        except Misused as misused:
            return Answer(_misconfigured(misused, path))
        if not tenant:
            return _answer("tenant-unknown", "the tenant could not be determined", path)
        if not principal:
            detail = "a key belongs to a caller, and the caller of this request is unknown"
            return _answer("principal-unknown", detail, path)
        if len(request.body) > rules.max_request:
            detail = (
                f"the body of a request with a key may have at most {rules.max_request} bytes here"
            )
            return _answer("body-too-large", detail, path)
        live: "list[Response]" = []

        raised: "list[Exception]" = []

        async def work(native: C, calls: Work[C]) -> Response:
            try:
                response, taken = await handler(native, calls, Taken)
            except Exception as error:
                raised.append(error)
                raise
            live.append(response)
            return _stored(response, taken, rules)

        try:
            asked = Request(
                tenant=tenant,
                operation=scope_of(_mounted(request)),
                key=key,
                fingerprint=fingerprint(request, rules.max_request, rules.matched_headers),
                principal=None if principal is EVERYBODY else principal,
                keep=rules.keep,
                wait=rules.wait,
            )
            result = await self.engine.execute(asked, work, _Codec())
        except Exception as error:
            # What the handler raises is its own, even if another call of the ledger raised it.
            if any(error is each for each in raised):
                raise
            if isinstance(error, NotKept):
                return Answer(live[0], True)
            refused = _refusal(error, path, rules)
            if refused is None:
                raise
            return Answer(refused)
        if not result.replayed:
            return Answer(live[0], True)
        stored = result.value
        return Answer(Response(stored.status, [*stored.headers, (REPLAYED, "true")], stored.body))

    async def _identity(self, part: str, given: Any) -> Any:
        """Returns a tenant or a principal: text, None or EVERYBODY, or what an awaitable gives of these."""
        if inspect.isawaitable(given):
            if self.awaits:
                given = await given
            elif inspect.iscoroutine(given):
                given.close()
        if given is None or isinstance(given, str):
            return given
        if given is EVERYBODY and part == "principal":
            return given
        raise Misused(f"the {part} of a request is text, got {type(given).__name__}; convert it")


def _stored(response: Response, taken: Taken, rules: Rules) -> Response:
    """Returns what is stored of a response; raises NotKept if nothing is."""
    status = response.status
    if status in _NEVER_STORED or not rules.stores(status):
        raise NotKept(None if status in _FORM else f"the handler answered {status}")
    if status < 400 and not taken.is_taken:
        raise _Unused()
    if len(response.body) > rules.max_response:
        raise _TooLarge(
            f"the response has {len(response.body)} bytes, at most {rules.max_response} are kept"
        )
    kept = _STORED.union(name.lower() for name in rules.kept_headers) - _NEVER
    lines = [(name, value) for name, value in response.headers if name.lower() in kept]
    stored = Response(status, lines, response.body)
    if len(stored.encode()) > MAX_STORED - len(Response.CONTENT_TYPE):
        raise _TooLarge(f"the response and its headers have more than {MAX_STORED} bytes")
    return stored


def _mounted(request: HttpRequest) -> str:
    """Returns the name of an operation, with the path under which its application is mounted."""
    method, _, template = request.operation.partition(" ")
    root = request.root.rstrip("/")
    return f"{method} {root}/{template.lstrip('/')}" if root else request.operation


def _misconfigured(misused: Exception, path: str) -> Response:
    log.error("%s", misused)
    detail = "the ledger is not set up; the service's log says why"
    return problem("misconfigured", detail, path)


def _answer(slug: str, detail: str, path: str) -> Answer:
    return Answer(problem(slug, detail, path))


def _refusal(error: Exception, path: str, rules: Rules) -> Optional[Response]:
    """Returns the problem for an error of the ledger; None for any other error."""
    if isinstance(error, Refused):
        delay = error.retry_after
        if error.retryable and delay is None:
            delay = 1
        return problem(
            error.slug,
            str(error),
            path,
            retry_after=delay if error.retryable else None,
            operation_id=error.operation_id,
            status=rules.mismatch_status if error.slug == "key-reused" else None,
        )
    if isinstance(error, Unavailable):
        log.error("the ledger failed under a request with a key: %s", error.__cause__)
        detail = "nothing is known to have run; retry with the same key"
        return problem("store-unavailable", detail, path, retry_after=1)
    if isinstance(error, _TooLarge):
        return problem("result-too-large", str(error), path)
    if isinstance(error, _Unused):
        log.error("a handler under an idempotency key did not take its unit; nothing was committed")
        detail = "the handler did not take its transaction (the unit); nothing was committed"
        return problem("misconfigured", detail, path)
    if isinstance(error, (Misused, NotMigrated)):
        return _misconfigured(error, path)
    if isinstance(error, InvalidKey):
        return problem("tenant-unknown", str(error), path)
    return None


def scope_of(operation: str) -> str:
    """Returns the scope of an operation: its name, or its method and a digest if that is too long."""
    if len(operation.encode()) <= MAX_SCOPE and not re.search("[\0-\x1f\x7f-\x9f]", operation):
        return operation
    method = re.match(r"[A-Za-z0-9-]{0,32}", operation)
    digest = hashlib.sha256(operation.encode()).hexdigest()
    return f"{method.group() if method else ''} #{digest}".lstrip()
