"""The ledger on psycopg 3, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Awaitable, Callable, Optional, Protocol, Sequence, Union

import psycopg
from psycopg.rows import dict_row

from .aio import AsyncLedger
from .database import Row, uninterrupted
from .errors import Misused
from .sync import Ledger


class Pool(Protocol):
    """A `psycopg_pool.ConnectionPool` or `AsyncConnectionPool`."""

    def getconn(self, timeout: Optional[float] = None) -> Any:
        """Takes a connection."""
        ...

    def putconn(self, conn: Any) -> Any:
        """Gives a connection back."""
        ...


def ledger(
    source: "Union[Pool, Callable[[], psycopg.Connection[Any]]]", **settings: Any
) -> "Ledger[psycopg.Connection[Any]]":
    """Returns a ledger on a `psycopg_pool.ConnectionPool`, or on connections that a function opens."""
    return Ledger(_Database(source), **settings)


def async_ledger(
    source: "Union[Pool, Callable[[], Awaitable[psycopg.AsyncConnection[Any]]]]", **settings: Any
) -> "AsyncLedger[psycopg.AsyncConnection[Any]]":
    """Returns a ledger on a `psycopg_pool.AsyncConnectionPool`, or on connections that an `async`
    function opens."""
    return AsyncLedger(_AsyncDatabase(source), **settings)


class _Session:
    def __init__(self, native: Any, give_back: Optional[Callable[[Any], Any]] = None) -> None:
        self.native = native
        self._give_back = give_back

    async def query(self, statement: str, arguments: Sequence[Any]) -> Optional[Row]:
        with self.native.cursor(row_factory=dict_row) as cursor:
            row: Optional[Row] = cursor.execute(statement, arguments).fetchone()
            return row

    async def commit(self) -> None:
        self.native.commit()

    async def close(self, failed: bool) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is None:
            return
        is_clean = False
        try:
            if not self.native.closed:
                self.native.rollback()
            is_clean = True
        except psycopg.Error:
            pass
        finally:
            if not is_clean:
                self.native.close()
            give_back(self.native)


class _Database:
    dialect = "postgresql"

    def __init__(self, source: Any) -> None:
        self._is_pool = is_pool = hasattr(source, "getconn")
        self._take: Any = source.getconn if is_pool else source
        self._give_back = source.putconn if is_pool else _close

    async def _check_idle(self, session: Any) -> None:
        """Raises Misused for a connection with a transaction of the caller, which is left as it is."""
        if session.native.info.transaction_status not in _OPEN:
            return
        if self._is_pool:
            await session.close(True)
        raise Misused(
            "the connection has an open transaction, which the ledger would commit; give it a connection "
            "of its own, or use `join`"
        )

    async def open(self) -> _Session:
        connection = self._take()
        session = _Session(connection, self._give_back)
        await self._check_idle(session)
        if connection.autocommit:
            await session.close(False)
            raise _autocommits()
        return session

    def join(self, native: Any) -> _Session:
        if native.autocommit and native.info.transaction_status == _IDLE:
            raise _autocommits()
        return _Session(native)

    def sqlstate(self, error: BaseException) -> Optional[str]:
        return getattr(error, "sqlstate", None)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class _AsyncSession(_Session):
    async def query(self, statement: str, arguments: Sequence[Any]) -> Optional[Row]:
        async with self.native.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement, arguments)
            row: Optional[Row] = await cursor.fetchone()
            return row

    async def commit(self) -> None:
        await self.native.commit()

    async def close(self, failed: bool) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            await uninterrupted(self._finish(give_back))

    async def _finish(self, give_back: Callable[[Any], Any]) -> None:
        is_clean = False
        try:
            if not self.native.closed:
                await self.native.rollback()
            is_clean = True
        except psycopg.Error:
            pass
        finally:
            if not is_clean:
                await self.native.close()
            await give_back(self.native)


class _AsyncDatabase(_Database):
    def __init__(self, source: Any) -> None:
        super().__init__(source)
        if not self._is_pool:
            self._give_back = _close_async

    async def open(self) -> _AsyncSession:
        connection = await self._take()
        session = _AsyncSession(connection, self._give_back)
        await self._check_idle(session)
        if connection.autocommit:
            await session.close(False)
            raise _autocommits()
        return session

    def join(self, native: Any) -> _AsyncSession:
        super().join(native)
        return _AsyncSession(native)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


_IDLE = psycopg.pq.TransactionStatus.IDLE
_OPEN = (
    psycopg.pq.TransactionStatus.ACTIVE,
    psycopg.pq.TransactionStatus.INTRANS,
    psycopg.pq.TransactionStatus.INERROR,
)


def _close(connection: Any) -> None:
    connection.close()


async def _close_async(connection: Any) -> None:
    await connection.close()


def _autocommits() -> Misused:
    return Misused(
        "the connection is in autocommit, where a claim protects nothing; open it with autocommit=False"
    )
