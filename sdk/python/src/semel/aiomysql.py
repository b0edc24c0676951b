"""The ledger on aiomysql, for MariaDB and MySQL."""

from __future__ import annotations

import asyncio
from typing import Any, Optional, Sequence, Tuple

import aiomysql
import pymysql

from . import mysql
from .aio import AsyncLedger
from .database import Row, uninterrupted
from .errors import Misused


def async_ledger(pool: "aiomysql.Pool", **settings: Any) -> "AsyncLedger[Any]":
    """Returns a ledger on an `aiomysql.Pool`.

    Rivals are told at once at READ COMMITTED, and on MariaDB; on MySQL at REPEATABLE READ, its default,
    after up to a second.
    """
    return AsyncLedger(_Database(pool), **settings)


class _Session:
    def __init__(self, native: Any, pool: Any) -> None:
        self.native = native
        self._pool = pool

    async def query(self, statement: str, arguments: Sequence[Any]) -> Optional[Row]:
        async with self.native.cursor(aiomysql.DictCursor) as cursor:
            await cursor.execute(*_as_text(statement, arguments))
            row: Optional[Row] = await cursor.fetchone()
            # A procedure sends its status as one more result.
            while await cursor.nextset():
                pass
            return row

    async def commit(self) -> None:
        await self.native.commit()

    async def close(self, failed: bool) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await uninterrupted(self._give_back(pool))

    async def _give_back(self, pool: Any) -> None:
        is_clean = False
        try:
            await self.native.rollback()
            is_clean = True
        except (pymysql.MySQLError, OSError, RuntimeError):
            pass
        finally:
            if not is_clean:
                self.native.close()
            pool.release(self.native)


def _as_text(statement: str, arguments: Sequence[Any]) -> Tuple[str, Sequence[Any]]:
    """Passes bytes as hexadecimal digits: aiomysql 0.3 cannot pass bytes with PyMySQL 1.2."""
    parts = statement.split("%s")
    places = ["UNHEX(%s)" if isinstance(given, bytes) else "%s" for given in arguments]
    written = "".join(part + place for part, place in zip(parts, places)) + parts[-1]
    return written, [given.hex() if isinstance(given, bytes) else given for given in arguments]


class _Database:
    dialect = "mysql"

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def open(self) -> _Session:
        connection = await self._pool.acquire()
        session = _Session(connection, self._pool)
        try:
            await connection.begin()
        except BaseException:
            await session.close(True)
            raise
        return session

    def join(self, native: Any) -> _Session:
        if native.get_autocommit() and not native.get_transaction_status():
            raise Misused("the connection commits by itself and has no transaction; call `begin()`")
        return _Session(native, None)

    def sqlstate(self, error: BaseException) -> Optional[str]:
        return mysql.sqlstate(error)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
