"""The ledger on asyncpg."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any, Optional, Sequence

import asyncpg

from .aio import AsyncLedger
from .database import Row, uninterrupted
from .errors import Misused


def async_ledger(pool: "asyncpg.Pool", **settings: Any) -> "AsyncLedger[asyncpg.Connection]":
    """Returns a ledger on an `asyncpg.Pool`."""
    return AsyncLedger(_Database(pool), **settings)


@lru_cache(maxsize=None)
def _statement(statement: str) -> str:
    parts = statement.split("%s")
    numbered = [f"{part}${at}" for at, part in enumerate(parts[:-1], 1)]
    return "".join([*numbered, parts[-1]])


class _Session:
    def __init__(self, native: Any, pool: Any = None, transaction: Any = None) -> None:
        self.native = native
        self._pool = pool
        self._transaction = transaction

    async def query(self, statement: str, arguments: Sequence[Any]) -> Optional[Row]:
        row = await self.native.fetchrow(_statement(statement), *arguments)
        return None if row is None else dict(row)

    async def commit(self) -> None:
        transaction, self._transaction = self._transaction, None
        await transaction.commit()

    async def close(self, failed: bool) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await uninterrupted(self._give_back(pool))

    async def _give_back(self, pool: Any) -> None:
        is_clean = False
        try:
            if self._transaction is not None and not self.native.is_closed():
                await self._transaction.rollback()
            is_clean = True
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            pass
        finally:
            if not is_clean:
                self.native.terminate()
            await pool.release(self.native)


class _Database:
    dialect = "postgresql"

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def open(self) -> _Session:
        connection = await self._pool.acquire()
        transaction = connection.transaction()
        try:
            await transaction.start()
        except BaseException:
            await self._pool.release(connection)
            raise
        return _Session(connection, self._pool, transaction)

    def join(self, native: Any) -> _Session:
        if not native.is_in_transaction():
            raise Misused("the connection has no transaction; call this inside `transaction()`")
        return _Session(native)

    def sqlstate(self, error: BaseException) -> Optional[str]:
        return getattr(error, "sqlstate", None)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
