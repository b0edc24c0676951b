"""The ledger for asynchronous programs: that of `sync`, with `await`."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Awaitable,
    Callable,
    Generic,
    Mapping,
    Optional,
    Sequence,
    Type,
    TypeVar,
    Union,
)

from .arguments import Selected, Selector, method_of, request_of, takes_self
from .codecs import Codec
from .database import Call, Database
from .engine import Engine, Execution, Handled, State, Work, internal_id
from .events import Event
from .public_ids import Resource
from .sync import replaced

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

C = TypeVar("C")
T = TypeVar("T")


class AsyncUnit(Generic[C]):
    """The open transaction of an operation: write your rows on `connection`, and do not commit."""

    def __init__(self, connection: C, work: Work[C]) -> None:
        #: The connection or session of your database library.
        self.connection = connection
        self._work = work

    @property
    def operation_id(self) -> str:
        """The id of the operation: the same in every attempt."""
        return self._work.state.operation_id

    @property
    def reference(self) -> Optional[str]:
        """A short text by which operators find the record, such as the public id of what was made."""
        return self._work.state.reference

    @reference.setter
    def reference(self, text: Optional[str]) -> None:
        self._work.state.reference = text

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
        """Appends an event to the outbox in this transaction, and returns its id.

        `source` names the service that sends it, such as `/orders`. `about` is the type and the id of
        what the event is about: events about the same thing keep their order. With a `name` the id is
        the same in every attempt of the operation.
        """
        return await self._work.append(
            type,
            payload,
            source=source,
            about=about,
            headers=headers,
            id=id,
            name=name,
            content_type=content_type,
        )

    async def create_id(self, resource: Resource) -> "tuple[bytes, str]":
        """Makes the ids of what this operation creates: the internal one, which is the operation's, and
        the public one, which becomes the reference."""
        internal = internal_id(self.operation_id)
        public = await self.register_id(resource, internal)
        self.reference = public
        return internal, public

    async def register_id(self, resource: Resource, internal: bytes) -> str:
        """Binds the public id of a resource to its internal id, and returns the public id."""
        return await self._work.register_id(resource, internal)

    async def resolve_id(self, resource: Resource, public_id: str) -> Optional[bytes]:
        """Returns the internal id of a public id; None if this tenant has no such resource."""
        return await self._work.resolve_id(resource, public_id)


class AsyncLedger(Generic[C]):
    """Runs operations once, each in one transaction with its outcome.

    Make one with the module of your library: `semel.psycopg.async_ledger(pool)`, and so on.
    """

    def __init__(
        self,
        database: Database[C],
        *,
        tenant: Optional[str] = None,
        lease: Optional[timedelta] = None,
        keep: Optional[timedelta] = None,
        wait: Optional[timedelta] = None,
    ) -> None:
        #: The protocol that the middleware shares.
        self.engine = Engine(database)
        self._tenant = tenant
        self._defaults = {"lease": lease, "keep": keep, "wait": wait}

    async def execute(
        self,
        work: Callable[[AsyncUnit[C]], Awaitable[T]],
        *,
        operation: str,
        key: str,
        tenant: Optional[str] = None,
        fields: Any = None,
        request_hash: Union[None, str, bytes] = None,
        principal: Optional[str] = None,
        keep: Optional[timedelta] = None,
        wait: Optional[timedelta] = None,
        retry_after: Optional[timedelta] = None,
        final: Sequence[Type[Exception]] = (),
        codec: Optional[Codec[T]] = None,
    ) -> Execution[T]:
        """Runs `work` once under a key. A repeat gets the stored result, and `work` does not run.

        `fields` (or `request_hash`) is what makes two calls the same: the same key with others raises
        KeyReused. What `work` raises rolls everything back, is recorded for operators, and is raised
        again; the next call runs it again, after `retry_after`. Errors of the types in `final` are kept
        instead: repeats raise Failed.
        """
        given = {"keep": keep, "wait": wait}
        settings = {**self._defaults, **{name: v for name, v in given.items() if v is not None}}
        request = request_of(
            tenant=self._tenant if tenant is None else tenant,
            operation=operation,
            key=key,
            fields=fields,
            request_hash=request_hash,
            principal=principal,
            retry_after=retry_after,
            final=final,
            **settings,
        )

        async def driven(native: C, calls: Work[C]) -> T:
            return await work(AsyncUnit(native, calls))

        return await self.engine.execute(request, driven, codec)

    def idempotent(
        self,
        *,
        operation: str,
        key: Selector,
        fields: Union[None, Sequence[str], Callable[..., Any]] = None,
        tenant: Optional[Selector] = None,
        principal: Optional[Selector] = None,
        codec: Optional[Codec[Any]] = None,
        **settings: Any,
    ) -> "Callable[[Callable[Concatenate[AsyncUnit[C], P], Awaitable[T]]], Callable[P, Awaitable[T]]]":
        """Makes a function run once per key. Its first argument is the unit, which callers do not pass.

        `key`, `fields`, `tenant` and `principal` name arguments (`"command.key"` for an attribute of
        one), or are functions of them. A class is decorated through its method `handle(self, unit, …)`;
        a method's first argument is named `self`.
        """
        given = {**self._defaults, **settings}
        known = {name: value for name, value in given.items() if value is not None}

        def decorate(target: Any) -> Any:
            function, method = method_of(target)
            skipped = 2 if method or takes_self(function) else 1
            selected = Selected(
                function,
                skipped=skipped,
                operation=operation,
                tenant=tenant,
                key=key,
                fields=fields,
                principal=principal,
                **known,
            )

            @functools.wraps(function)
            async def once(*args: Any, **kwargs: Any) -> Any:
                owner, args = args[: skipped - 1], args[skipped - 1 :]
                request = selected.request(self._tenant, args, kwargs)

                async def driven(native: C, calls: Work[C]) -> Any:
                    return await function(*owner, AsyncUnit(native, calls), *args, **kwargs)

                return (await self.engine.execute(request, driven, codec)).value

            return replaced(target, method, once)

        return decorate

    def handler(
        self, *, group: str
    ) -> "Callable[[Callable[[AsyncUnit[C], Event], Awaitable[Any]]], Callable[[Event], Awaitable[Handled]]]":
        """Makes a function handle each event once for a consumer group, in one transaction with its
        writes. Acknowledge the message once it returned; if it raises, the event is delivered again."""

        def decorate(
            function: Callable[[AsyncUnit[C], Event], Awaitable[Any]],
        ) -> Callable[[Event], Awaitable[Handled]]:
            @functools.wraps(function)
            async def handle(event: Event) -> Handled:
                async def driven(native: C, calls: Work[C]) -> None:
                    await function(AsyncUnit(native, calls), event)

                return await self.engine.handle(group, event, driven)

            return handle

        return decorate

    def join(self, connection: C, *, tenant: Optional[str] = None) -> AsyncUnit[C]:
        """Returns the functions for a transaction that you opened and will commit: `append`,
        `register_id` and `resolve_id` without a key."""
        database = self.engine.database
        call = Call(database, database.join(connection))
        owner = self._tenant if tenant is None else tenant
        return AsyncUnit(connection, Work(call, State(owner or "", "", "")))
