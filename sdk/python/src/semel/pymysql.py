"""The ledger on PyMySQL, for MariaDB and MySQL."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional, Sequence

import pymysql
from pymysql.cursors import DictCursor

from . import mysql
from .database import Row
from .errors import Misused
from .sync import Ledger


def ledger(
    connect: "Callable[[], pymysql.connections.Connection[Any]]", **settings: Any
) -> "Ledger[pymysql.connections.Connection[Any]]":
    """Returns a ledger on connections that a function opens; each is closed after its call.

    Rivals are told at once at READ COMMITTED, and on MariaDB; on MySQL at REPEATABLE READ, its default,
    after up to a second.
    """
    return Ledger(_Database(connect), **settings)


class _Session:
    def __init__(self, native: Any, owned: bool) -> None:
        self.native = native
        self._owned = owned

    async def query(self, statement: str, arguments: Sequence[Any]) -> Optional[Row]:
        with self.native.cursor(DictCursor) as cursor:
            cursor.execute(statement, arguments)
            row: Optional[Row] = cursor.fetchone()
            # A procedure sends its status as one more result.
            while cursor.nextset():
                pass
            return row

    async def commit(self) -> None:
        self.native.commit()

    async def close(self, failed: bool) -> None:
        owned, self._owned = self._owned, False
        if owned and self.native.open:
            # The server rolls back what was not committed.
            is_clean = False
            try:
                self.native.rollback()
                self.native.close()
                is_clean = True
            except pymysql.MySQLError:
                pass
            finally:
                if not is_clean:
                    self.native._force_close()


class _Database:
    dialect = "mysql"

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect

    async def open(self) -> _Session:
        connection = self._connect()
        if connection.server_status & _IN_TRANSACTION:
            raise Misused(
                "the connection has an open transaction, which the ledger would commit; give it a "
                "connection of its own, or use `join`"
            )
        # Also where the connection commits by itself: a transaction that was begun does not.
        connection.begin()
        return _Session(connection, True)

    def join(self, native: Any) -> _Session:
        if native.get_autocommit() and not native.server_status & _IN_TRANSACTION:
            raise Misused("the connection commits by itself and has no transaction; call `begin()`")
        return _Session(native, False)

    def sqlstate(self, error: BaseException) -> Optional[str]:
        return mysql.sqlstate(error)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


_IN_TRANSACTION = 1
