"""The protocol between a program and the ledger, once for synchronous and asynchronous callers.

One call is one transaction: `semel_begin`, the caller's work, `semel_complete`, commit. A failure is
recorded after the rollback, in a transaction of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import (
    Any,
    Awaitable,
    Callable,
    Dict,
    Generic,
    Mapping,
    NoReturn,
    Optional,
    Sequence,
    Type,
    TypeVar,
    Union,
)

from . import fingerprints, ulids
from .codecs import JSON, Codec
from .database import Call, Database, Row, Session
from .errors import (
    BackingOff,
    ClaimLost,
    Dead,
    EventConflict,
    Failed,
    InProgress,
    InvalidKey,
    InvalidResult,
    KeyReused,
    Misused,
    NotMigrated,
    Refused,
    ResultUnavailable,
    SemelError,
    Unavailable,
    Uncertain,
)
from .events import Event, derived_id, encode_payload, identity
from .keys import Key, Kind
from .public_ids import Resource

C = TypeVar("C")
T = TypeVar("T")

log = logging.getLogger("semel")

# The longest error text that the ledger keeps.
MAX_ERROR = 256

_REFUSALS: Dict[str, Type[Refused]] = {
    "mismatch": KeyReused,
    "in_progress": InProgress,
    "backoff": BackingOff,
    "failed": Failed,
    "dead": Dead,
    "uncertain": Uncertain,
    "conflict": EventConflict,
}

# SQLSTATEs: undefined function, table, schema; no right to them.
_NOT_MIGRATED = ("42883", "42P01", "3F000", "42501")
# No transaction, a claim that was not completed, a parameter that is not valid.
_MISUSED = ("25P01", "25000", "55000")


@dataclass(frozen=True)
class Execution(Generic[T]):
    """The result of an operation, and whether an earlier call produced it."""

    value: T
    replayed: bool
    operation_id: str
    #: A short text by which operators find the record, normally a public id.
    reference: Optional[str] = None


@dataclass(frozen=True)
class Handled:
    """The result of handling an event: `replayed` if this group had handled it before."""

    replayed: bool


class NotKept(Exception):
    """Ends work whose result is not stored: the transaction is rolled back. `recorded` is what is
    recorded for operators; None forgets the attempt."""

    def __init__(self, recorded: Optional[str]) -> None:
        super().__init__(recorded)
        self.recorded = recorded


@dataclass(frozen=True)
class Request:
    """What is asked of the ledger: a key, what makes two requests the same, and how long things last."""

    tenant: str
    operation: str
    key: str
    fingerprint: bytes = b""
    principal: Optional[str] = None
    lease: timedelta = timedelta(seconds=30)
    keep: timedelta = timedelta(hours=24)
    #: How long to wait while another caller holds the key.
    wait: timedelta = timedelta(0)
    #: After how long a failure may be tried again.
    retry_after: timedelta = timedelta(0)
    #: Failures that no repeat can change: they are kept, and repeats raise Failed.
    final: Sequence[Type[Exception]] = ()

    def __post_init__(self) -> None:
        # Validates the parts before anything is sent.
        Key(self.tenant, self.operation, self.key, kind=Kind.COMMAND)
        _check_principal(self.principal)
        if self.keep <= timedelta(0):
            raise Misused(
                "`keep` must be longer than nothing: it is how long repeats are recognised"
            )
        for name in ("wait", "retry_after"):
            if getattr(self, name) < timedelta(0):
                raise Misused(f"`{name}` is negative; give it a length of time")
        object.__setattr__(self, "final", tuple(self.final))

    def identity(self) -> "tuple[str, str, str, Optional[str]]":
        """Returns tenant, operation, key and request hash."""
        return self.tenant, self.operation, self.key, self.fingerprint.hex() or None


@dataclass
class State:
    """What the functions said about the claim of a transaction."""

    tenant: str
    operation_id: str
    claim: str
    reference: Optional[str] = None


class Work(Generic[C]):
    """The functions that work calls inside its transaction."""

    def __init__(self, call: Call[C], state: State) -> None:
        self._call = call
        self.state = state

    async def append(
        self,
        type: str,
        payload: Any,
        *,
        source: str,
        about: "Optional[tuple[str, str]]" = None,
        headers: Optional[Mapping[str, str]] = None,
        id: Optional[str] = None,
        name: Optional[str] = None,
        content_type: str = "application/json",
    ) -> str:
        """Appends an event to the outbox, in this transaction, and returns its id."""
        if id is None and name is not None:
            id = derived_id(self.state.operation_id, name)
        written = None if headers is None else fingerprints.to_json(dict(headers)).decode()
        kind, aggregate_id = about or (None, None)
        body = encode_payload(payload, content_type)
        row = await self._call(
            "semel_append",
            self.state.tenant,
            type,
            body,
            kind,
            aggregate_id,
            written,
            id,
            source,
            content_type,
        )
        return str(_value(row))

    async def register_id(self, resource: Resource, internal: bytes) -> str:
        """Binds the public id of a resource to its internal id, and returns the public id."""
        public_id = resource.encode(internal)
        arguments = (self.state.tenant, resource.name, public_id, ulids.write(internal))
        await self._call("semel_register_id", *arguments)
        return public_id

    async def resolve_id(self, resource: Resource, public_id: str) -> Optional[bytes]:
        """Returns the internal id of a public id; None if this tenant has no such resource."""
        resource.decode(public_id)
        row = await self._call("semel_resolve_id", self.state.tenant, resource.name, public_id)
        found = _value(row)
        return None if found is None else ulids.parse(found)


@dataclass
class Engine(Generic[C]):
    """Runs operations on one database."""

    database: Database[C]
    _random: random.Random = field(default_factory=random.Random, repr=False)

    async def execute(
        self,
        request: Request,
        work: Callable[[C, Work[C]], Awaitable[T]],
        codec: Optional[Codec[T]] = None,
    ) -> Execution[T]:
        """Runs `work` once under a key, in one transaction with its outcome."""
        until = time.monotonic() + request.wait.total_seconds()
        delay = 0.05
        while True:
            done = await self._attempt(request, work, codec or JSON)
            if isinstance(done, Execution):
                return done
            left = until - time.monotonic()
            if left <= 0:
                raise done
            pause = delay * self._random.uniform(0.5, 1)
            await self.database.sleep(min(left, pause))
            delay = min(2 * delay, 0.5)

    async def _attempt(
        self, request: Request, work: Callable[[C, Work[C]], Awaitable[T]], codec: Codec[T]
    ) -> "Union[Execution[T], InProgress]":
        """Makes one attempt; returns InProgress if another caller has the key. The InProgress that work
        raises is a failure of that work, and is raised."""
        session, failed = await self._open(), True
        try:
            call = Call(self.database, session)
            try:
                row = await self.begin(call, request)
            except InProgress as busy:
                return busy
            if row["verdict"] == "replay":
                failed = False
                return _replay(row, codec)
            state = State(request.tenant, row["operation_id"], row["claim"])
            try:
                value = await work(session.native, Work(call, state))
                stored = await self._complete(call, state, value, codec)
            except Exception as error:
                await session.close(True)
                await self._record_failure(request, state, error)
                raise
            try:
                await session.commit()
            except Exception as error:
                await session.close(True)
                done = await self._after_commit(request, row, error, codec)
                return done or Execution(stored, False, state.operation_id, state.reference)
            failed = False
            return Execution(stored, False, state.operation_id, state.reference)
        finally:
            await session.close(failed)

    async def _open(self) -> Session[C]:
        try:
            return await self.database.open()
        except SemelError:
            raise
        except Exception as error:
            if self.database.sqlstate(error) is None and not _is_lost(error):
                raise
            raise Unavailable() from error

    async def begin(self, call: Call[C], request: Request) -> Row:
        """Claims a key in the transaction of `call`; returns the row of `run` or `replay`."""
        tenant, operation, key, fingerprint = request.identity()
        row = await self._calling(
            call,
            "semel_begin",
            tenant,
            operation,
            key,
            fingerprint,
            request.lease,
            request.keep,
            request.principal,
        )
        if row["verdict"] not in ("run", "replay"):
            # The verdict may have changed the record: of a crashed attempt, to uncertain.
            await call.session.commit()
            _refuse(row)
        return row

    async def _complete(self, call: Call[C], state: State, value: T, codec: Codec[T]) -> T:
        content_type, body = codec.encode(value)
        try:
            # What a replay will give, so that the first answer is no other.
            stored = codec.decode(content_type, body)
        except Exception as error:
            reason = getattr(error, "reason", None) or error
            raise InvalidResult(
                f"the result cannot be read back as it would be stored: {reason}; nothing was committed"
            ) from error
        await self._calling(
            call, "semel_complete", state.claim, body, content_type, state.reference
        )
        return stored

    async def _after_commit(
        self, request: Request, begun: Row, error: Exception, codec: Codec[T]
    ) -> Optional[Execution[T]]:
        """Finds out what became of a commit that raised `error`: None if it happened, the result of another
        attempt if that one took effect. Else records the failure, if the server refused, and raises."""
        if isinstance(error, SemelError):
            raise error
        sqlstate = self.database.sqlstate(error)
        if sqlstate is not None and not sqlstate.startswith(("08", "57P")):
            # Refused, such as by a deferred constraint: certainly not committed.
            state = State(request.tenant, begun["operation_id"], begun["claim"])
            await self._record_failure(request, state, error)
            raise error
        # The commit may have happened, and only its answer been lost.
        found = await self._look_up(request)
        if found is None:
            raise error
        if found["fence"] != begun["fence"]:
            return _replay(found, codec)
        log.warning("the commit raised an error, but the operation is done", exc_info=error)
        return None

    async def _look_up(self, request: Request) -> Optional[Row]:
        """Returns the row of `replay`; None if the operation is not done, or the store cannot be read."""
        try:
            session = await self.database.open()
        except Exception:
            return None
        try:
            row = await self.begin(Call(self.database, session), request)
            return row if row["verdict"] == "replay" else None
        except Exception:
            return None
        finally:
            await session.close(False)

    async def _record_failure(self, request: Request, state: State, error: Exception) -> None:
        """Records a failure after the rollback. If that fails, the key is free: nothing is recorded."""
        is_free = isinstance(error, NotKept) and error.recorded is None
        if is_free or isinstance(error, (Refused, Misused, NotMigrated)):
            return
        is_final = isinstance(error, tuple(request.final))
        delay = None if is_final else round(request.retry_after.total_seconds() * 1000)
        try:
            session = await self.database.open()
        except Exception:
            return
        failed = True
        try:
            identity = (*request.identity(), _printable(error), delay)
            await Call(self.database, session)(
                "semel_fail", *identity, request.principal, state.operation_id, request.keep
            )
            await session.commit()
            failed = False
        except Exception:
            pass
        finally:
            await session.close(failed)

    async def handle(
        self, group: str, event: Event, handler: Callable[[C, Work[C]], Awaitable[Any]]
    ) -> Handled:
        """Handles an event once per group, in one transaction with the handler's writes."""
        session, failed = await self._open(), True
        try:
            call = Call(self.database, session)
            row = await self._calling(
                call, "semel_handle", group, event.tenant, event.id, event.type, event.source
            )
            verdict = _value(row)
            if verdict == "done":
                failed = False
                return Handled(replayed=True)
            if verdict != "run":
                await session.commit()
                _refuse({"verdict": verdict})
            state = State(event.tenant, handling_id(group, event), "")
            await handler(session.native, Work(call, state))
            await session.commit()
            failed = False
            return Handled(replayed=False)
        finally:
            await session.close(failed)

    async def _calling(self, call: Call[C], function: str, *arguments: Any) -> Row:
        try:
            return await call(function, *arguments)
        except Exception as error:
            sqlstate = self.database.sqlstate(error)
            if sqlstate == "40001" and function == "semel_complete":
                raise ClaimLost() from error
            if sqlstate == "40001" and function in ("semel_begin", "semel_handle"):
                raise InProgress() from error
            if sqlstate in _NOT_MIGRATED:
                raise NotMigrated() from error
            if sqlstate in _MISUSED:
                raise Misused(str(error)) from error
            # 08: the connection; 57P: the server is going down; 53300: it has too many connections.
            if function in ("semel_begin", "semel_handle") and (
                _is_lost(error) if sqlstate is None else sqlstate.startswith(("08", "57P", "53300"))
            ):
                raise Unavailable() from error
            raise


def _refuse(row: Mapping[str, Any]) -> NoReturn:
    delay = row.get("retry_after_ms")
    refused = _REFUSALS.get(str(row["verdict"]))
    if refused is None:
        raise SemelError(f"the database answered {row['verdict']!r}; upgrade this package")
    raise refused(
        operation_id=row.get("operation_id"),
        retry_after=None if delay is None else int(delay) / 1000,
        reason=row.get("error"),
    )


def _replay(row: Row, codec: Codec[T]) -> Execution[T]:
    if row["body"] is None:
        raise ResultUnavailable(operation_id=row["operation_id"], reason=row.get("error"))
    value = codec.decode(row["content_type"], bytes(row["body"]))
    return Execution(value, True, row["operation_id"], row.get("reference"))


def _printable(error: Exception) -> str:
    """Returns the text of an error as databases take it: without NUL and lone surrogates."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, NotKept):
        text = error.recorded or ""
    text = text[:MAX_ERROR].replace("\0", "\ufffd")
    return text.encode("utf-8", "replace").decode()


def _is_lost(error: BaseException) -> bool:
    """Whether an error without a SQLSTATE is about the connection, by its names in PEP 249."""
    if isinstance(error, (OSError, EOFError, asyncio.TimeoutError)):
        return True
    names = {each.__name__ for each in type(error).__mro__}
    # asyncpg's errors about arguments are InterfaceErrors, too.
    return bool(names & {"OperationalError", "InterfaceError", "TimeoutError"}) and not isinstance(
        error, ValueError
    )


def _check_principal(principal: Optional[str]) -> None:
    if principal is None:
        return
    if not isinstance(principal, str):
        raise Misused(f"a principal is text, got {type(principal).__name__}; convert it")
    if "\0" in principal:
        raise InvalidKey("the principal has a NUL character", part="principal", reason="control")
    try:
        principal.encode()
    except UnicodeEncodeError:
        raise InvalidKey(
            "the principal has a lone surrogate; it is no text",
            part="principal",
            reason="surrogate",
        ) from None


def handling_id(group: str, event: Event) -> str:
    """Returns what takes the place of the operation while a group handles an event: the same in every
    delivery, and another one for every group and every event."""
    event_id = identity(event.source, event.id)
    digest = hashlib.sha256(b"semel/handling/1\0")
    for part in (event.tenant, group, event_id):
        digest.update(len(part.encode()).to_bytes(8, "big") + part.encode())
    return ulids.write(ulids.parse(event_id)[:6] + digest.digest()[:10])


def _value(row: Row) -> Any:
    return next(iter(row.values()), None)


def internal_id(operation_id: str) -> bytes:
    """Returns the 16 bytes of an operation id, the internal id of what the operation creates."""
    return ulids.parse(operation_id)
