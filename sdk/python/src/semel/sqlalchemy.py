"""The ledger on SQLAlchemy 2, with synchronous and asynchronous sessions."""

from __future__ import annotations

import asyncio
import time
from functools import lru_cache
from typing import Any, Callable, Dict, Optional, Sequence, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from .aio import AsyncLedger
from .database import Row, uninterrupted
from .errors import Misused
from .sync import Ledger

S = TypeVar("S")


def ledger(sessions: Callable[[], S], **settings: Any) -> Ledger[S]:
    """Returns a ledger on the sessions that a `sessionmaker` makes. Work gets the session; what is
    pending in it is flushed with the outcome."""
    return Ledger(_Database(sessions), **settings)


def async_ledger(sessions: Callable[[], S], **settings: Any) -> AsyncLedger[S]:
    """Returns a ledger on the sessions that an `async_sessionmaker` makes."""
    return AsyncLedger(_AsyncDatabase(sessions), **settings)


@lru_cache(maxsize=None)
def _statement(statement: str) -> Any:
    parts = statement.split("%s")
    named = [f"{part}:p{at}" for at, part in enumerate(parts[:-1])]
    return text("".join([*named, parts[-1]]))


def _named(arguments: Sequence[Any]) -> Dict[str, Any]:
    return {f"p{at}": argument for at, argument in enumerate(arguments)}


class _Session:
    def __init__(self, native: Any, owned: bool) -> None:
        self.native = native
        self._owned = owned

    async def query(self, statement: str, arguments: Sequence[Any]) -> Optional[Row]:
        if hasattr(self.native, "flush"):
            self.native.flush()
        row = self.native.execute(_statement(statement), _named(arguments)).mappings().first()
        return None if row is None else dict(row)

    async def commit(self) -> None:
        self.native.commit()

    async def close(self, failed: bool) -> None:
        owned, self._owned = self._owned, False
        if not owned:
            return
        try:
            self.native.close()
        except SQLAlchemyError:
            self.native.invalidate()


class _Database:
    dialect = "postgresql"

    def __init__(self, sessions: Callable[[], Any]) -> None:
        self._sessions = sessions
        bind = getattr(sessions, "kw", {}).get("bind")
        if bind is not None:
            _check_dialect(bind)

    async def open(self) -> _Session:
        return _Session(_checked(self._sessions()), True)

    def join(self, native: Any) -> _Session:
        if not native.in_transaction():
            raise Misused("the session has no transaction; call this inside `session.begin()`")
        return _Session(native, False)

    def sqlstate(self, error: BaseException) -> Optional[str]:
        cause = getattr(error, "orig", None)
        return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def _check_dialect(bind: Any) -> None:
    name = bind.dialect.name
    if name != "postgresql":
        raise Misused(f"semel.sqlalchemy is for PostgreSQL, and this is {name}")


def _checked(session: Any) -> Any:
    """Returns the session; raises Misused if it has work of the caller, which is left as it is."""
    bind = session.get_bind()
    _check_dialect(bind)
    is_shared = isinstance(bind, Connection) and bind.in_transaction()
    if is_shared or session.in_transaction() or session.new or session.dirty or session.deleted:
        raise Misused(
            "the session has an open transaction or pending objects, which the ledger would commit; give "
            "it a session of its own, or use `join`"
        )
    return session


class _AsyncSession(_Session):
    async def query(self, statement: str, arguments: Sequence[Any]) -> Optional[Row]:
        if hasattr(self.native, "flush"):
            await self.native.flush()
        result = await self.native.execute(_statement(statement), _named(arguments))
        row = result.mappings().first()
        return None if row is None else dict(row)

    async def commit(self) -> None:
        await self.native.commit()

    async def close(self, failed: bool) -> None:
        owned, self._owned = self._owned, False
        if owned:
            await uninterrupted(self._give_back())

    async def _give_back(self) -> None:
        is_clean = False
        try:
            await self.native.close()
            is_clean = True
        except (SQLAlchemyError, OSError):
            pass
        finally:
            if not is_clean:
                await self.native.invalidate()


class _AsyncDatabase(_Database):
    async def open(self) -> _AsyncSession:
        return _AsyncSession(_checked(self._sessions()), True)

    def join(self, native: Any) -> _AsyncSession:
        super().join(native)
        return _AsyncSession(native, False)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
