"""What the ledger needs of a database library, and the functions that it calls.

Everything here is asynchronous: an adapter for a synchronous library never suspends, and `run` drives it.
So the protocol is written once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import (
    Any,
    Coroutine,
    Dict,
    Generic,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Set,
    Tuple,
    TypeVar,
)

C = TypeVar("C")
T = TypeVar("T")

Row = Mapping[str, Any]


class Session(Protocol[C]):
    """A connection with an open transaction."""

    #: The connection or session of the library, on which the caller writes.
    native: C

    async def query(self, statement: str, arguments: Sequence[Any]) -> Optional[Row]:
        """Runs a statement with `%s` for its arguments, and returns its first row."""
        ...

    async def commit(self) -> None:
        """Commits."""
        ...

    async def close(self, failed: bool) -> None:
        """Rolls back what is not committed and gives the connection back; `failed` if it may be
        broken. Raises nothing."""
        ...


class Database(Protocol[C]):
    """A database through one library."""

    #: `postgresql` or `mysql`.
    dialect: str

    async def open(self) -> Session[C]:
        """Begins a transaction on a connection of its own."""
        ...

    def join(self, native: C) -> Session[C]:
        """Returns the open transaction of the caller."""
        ...

    def sqlstate(self, error: BaseException) -> Optional[str]:
        """Returns the SQLSTATE of an error of the library."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        ...


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("a synchronous adapter suspended")


_cleaning: "Set[asyncio.Future[None]]" = set()


async def uninterrupted(cleaning: Coroutine[Any, Any, None]) -> None:
    """Runs a cleanup to its end, even if the caller is cancelled while it waits for it."""
    task = asyncio.ensure_future(cleaning)
    # The loop itself keeps no task alive.
    _cleaning.add(task)
    task.add_done_callback(_cleaning.discard)
    await asyncio.shield(task)


#: The arguments of each function in their order: names, and types of PostgreSQL.
FUNCTIONS: Dict[str, Tuple[Tuple[str, str], ...]] = {
    "semel_begin": (
        ("tenant", "text"),
        ("operation", "text"),
        ("key", "text"),
        ("request_hash", "text"),
        ("lease", "interval"),
        ("keep", "interval"),
        ("principal", "text"),
    ),
    "semel_complete": (
        ("claim", "text"),
        ("body", "bytea"),
        ("content_type", "text"),
        ("reference", "text"),
    ),
    "semel_fail": (
        ("tenant", "text"),
        ("operation", "text"),
        ("key", "text"),
        ("request_hash", "text"),
        ("error", "text"),
        ("retry_after_ms", "bigint"),
        ("principal", "text"),
        ("operation_id", "text"),
        ("keep", "interval"),
    ),
    "semel_append": (
        ("tenant", "text"),
        ("type", "text"),
        ("payload", "text"),
        ("aggregate_type", "text"),
        ("aggregate_id", "text"),
        ("headers", "text"),
        ("id", "text"),
        ("source", "text"),
        ("content_type", "text"),
    ),
    "semel_handle": (
        ("consumer_group", "text"),
        ("tenant", "text"),
        ("event_id", "text"),
        ("type", "text"),
        ("source", "text"),
    ),
    "semel_register_id": (
        ("tenant", "text"),
        ("resource_type", "text"),
        ("public_id", "text"),
        ("internal_id", "text"),
    ),
    "semel_resolve_id": (("tenant", "text"), ("resource_type", "text"), ("public_id", "text")),
}


@dataclass(frozen=True)
class Call(Generic[C]):
    """The functions, as methods of a session."""

    database: Database[C]
    session: Session[C]

    async def __call__(self, function: str, *arguments: Any) -> Row:
        """Calls a function and returns its row; a single value has the function's name."""
        dialect = self.database.dialect
        if dialect == "mysql":
            # Durations are milliseconds there.
            arguments = tuple(map(_milliseconds, arguments))
        return await self.session.query(statement(dialect, function), arguments) or {}


def _milliseconds(argument: Any) -> Any:
    if isinstance(argument, timedelta):
        return round(argument.total_seconds() * 1000)
    return argument


@lru_cache(maxsize=None)
def statement(dialect: str, function: str) -> str:
    """Returns the statement that calls a function, with `%s` for each argument."""
    arguments = FUNCTIONS[function]
    if dialect == "mysql":
        placeholders = ", ".join("%s" for _ in arguments)
        # All parameters are given there; NULL stands for the default, here of `keep`.
        last = ", NULL" if function == "semel_handle" else ""
        return f"CALL {function}({placeholders}{last})"
    named = ", ".join(f"{name} => CAST(%s AS {kind})" for name, kind in arguments)
    return f"SELECT * FROM {function}({named})"
