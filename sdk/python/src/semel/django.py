"""The ledger on Django's connection: work uses the ORM as ever, in the transaction of its outcome."""

from __future__ import annotations

import time
from typing import Any, Optional, Sequence

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction

from .database import Row
from .errors import Misused
from .sync import Ledger


def ledger(using: str = DEFAULT_DB_ALIAS, **given: Any) -> "Ledger[Any]":
    """Returns a ledger on a database of `DATABASES`. It opens the transaction itself: call it outside
    `atomic`, and without ATOMIC_REQUESTS for the view (`@transaction.non_atomic_requests`)."""
    return Ledger(_Database(using), **given)


class _Session:
    def __init__(self, native: Any, atomic: Any = None) -> None:
        self.native = native
        self._atomic = atomic

    async def query(self, statement: str, arguments: Sequence[Any]) -> Optional[Row]:
        with self.native.cursor() as cursor:
            cursor.execute(statement, arguments)
            row = cursor.fetchone()
            names = [column[0] for column in cursor.description]
        return None if row is None else dict(zip(names, row))

    async def commit(self) -> None:
        atomic, self._atomic = self._atomic, None
        if self.native.needs_rollback:
            atomic.__exit__(Error, Error(), None)
            raise Misused("the work caught an error of the database, and its transaction is lost")
        atomic.__exit__(None, None, None)

    async def close(self, failed: bool) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is not None:
            try:
                atomic.__exit__(Error, Error(), None)
            except Error:
                self.native.close()
        if failed:
            # Closes a connection that the server has closed, so that the next call opens another.
            self.native.close_if_unusable_or_obsolete()


class _Database:
    dialect = "postgresql"

    def __init__(self, using: str) -> None:
        self._using = using
        if settings.configured:
            self._check_vendor()

    def _check_vendor(self) -> None:
        vendor = connections[self._using].vendor
        if vendor != "postgresql":
            raise Misused(f"semel.django is for PostgreSQL, and `{self._using}` is {vendor}")

    async def open(self) -> _Session:
        self._check_vendor()
        connection = connections[self._using]
        if connection.in_atomic_block:
            raise Misused(
                "a transaction is open; the ledger commits its own: call it outside `atomic`, or use "
                "`join` inside it"
            )
        if not connection.get_autocommit():
            raise Misused(
                "the connection has AUTOCOMMIT off, where `atomic` commits nothing; turn it on, or use `join`"
            )
        atomic = transaction.atomic(using=self._using)
        atomic.__enter__()
        return _Session(connection, atomic)

    def join(self, native: Any) -> _Session:
        if not native.in_atomic_block:
            raise Misused("the connection has no transaction; call this inside `atomic`")
        return _Session(native)

    def sqlstate(self, error: BaseException) -> Optional[str]:
        cause = error.__cause__
        found = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        return found

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
