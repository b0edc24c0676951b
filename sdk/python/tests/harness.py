"""One suite for all libraries: each is driven as if it were asynchronous."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from typing import Any, Awaitable, Callable, Dict, List, Optional
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest
from pymysql.cursors import DictCursor

from semel.database import run

URL = "SEMEL_TEST_POSTGRES_URL"
MYSQL_URL = "SEMEL_TEST_MYSQL_URL"


def url(variable: str = URL) -> str:
    found = os.environ.get(variable)
    if not found:
        pytest.fail(
            f"set {variable} to a database that `semel migrate apply` has prepared", pytrace=False
        )
    return found


class AsSync:
    """A synchronous object whose methods can be awaited. Work that is given to it is a coroutine
    function, which must not suspend."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or name == "connection":
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            return found(*args, **kwargs)

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_inner":
            object.__setattr__(self, name, value)
        else:
            setattr(self._inner, name, value)

    async def execute(self, work: Callable[[Any], Awaitable[Any]], **named: Any) -> Any:
        return self._inner.execute(lambda unit: run(work(AsSync(unit))), **named)

    def idempotent(self, **named: Any) -> Any:
        def decorate(function: Any) -> Any:
            @self._inner.idempotent(**named)
            def work(unit: Any, command: Any) -> Any:
                return run(function(AsSync(unit), command))

            async def once(*args: Any, **kwargs: Any) -> Any:
                return work(*args, **kwargs)

            return once

        return decorate

    def handler(self, **named: Any) -> Any:
        def decorate(function: Any) -> Any:
            handle = self._inner.handler(**named)(
                lambda unit, event: run(function(AsSync(unit), event))
            )

            async def once(event: Any) -> Any:
                return handle(event)

            return once

        return decorate


class Library:
    """A ledger through one library, and how its users write."""

    def __init__(
        self,
        ledger: Any,
        insert: Callable[[Any, str], Awaitable[None]],
        close: Optional[Callable[[], Any]] = None,
        query: Callable[..., List[Dict[str, Any]]] = None,  # type: ignore[assignment]
    ) -> None:
        self.query = query or globals()["query"]
        self.ledger = ledger
        self._insert = insert
        self.close = close
        self.tenant = f"t-{uuid.uuid4().hex[:20]}"

    async def effect(self, unit: Any, name: str) -> None:
        """Writes one effect of an operation, in its transaction."""
        await self._insert(unit.connection, f"{self.tenant}/{name}")

    async def execute(self, work: Callable[[Any], Awaitable[Any]], **named: Any) -> Any:
        named.setdefault("operation", "CreateOrder")
        named.setdefault("key", "k")
        return await self.ledger.execute(work, tenant=self.tenant, **named)

    async def elsewhere(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Runs a call as another caller does: with a connection of its own."""
        if not isinstance(self.ledger, AsSync):
            await call()
            return
        failures: List[BaseException] = []

        async def caught() -> None:
            try:
                await call()
            except BaseException as error:
                failures.append(error)
            finally:
                if self.close is not None and self.close.__name__ == "close_all":
                    self.close()

        thread = threading.Thread(target=lambda: asyncio.run(caught()))
        thread.start()
        thread.join()
        if failures:
            raise failures[0]

    def effects(self, name: str) -> int:
        (row,) = self.query(
            "SELECT count(*) AS n FROM effect WHERE name = %s", f"{self.tenant}/{name}"
        )
        return int(row["n"])

    def record(self, key: str = "k") -> Dict[str, Any]:
        rows = self.query(
            "SELECT * FROM semel_record WHERE tenant = %s AND id = %s", self.tenant, key
        )
        return rows[0] if rows else {}

    def events(self) -> List[Dict[str, Any]]:
        return self.query(
            "SELECT * FROM semel_outbox WHERE tenant = %s ORDER BY sequence", self.tenant
        )


def query(statement: str, *arguments: Any) -> List[Dict[str, Any]]:
    with psycopg.connect(url(), row_factory=psycopg.rows.dict_row) as connection:
        cursor = connection.execute(statement, arguments)
        return cursor.fetchall() if cursor.description else []


def mysql_connect() -> Any:
    parts = urlsplit(url(MYSQL_URL))
    return pymysql.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=parts.username,
        password=parts.password or "",
        database=parts.path[1:],
    )


def mysql_query(statement: str, *arguments: Any) -> List[Dict[str, Any]]:
    with mysql_connect() as connection, connection.cursor(DictCursor) as cursor:
        cursor.execute(statement, arguments)
        rows = list(cursor.fetchall())
        connection.commit()
    # Texts are bytes there, since no collation may compare them.
    texts = {"id", "error", "type", "source", "aggregateid", "payload", "headers"}
    return [
        {
            name: value.decode() if name in texts and isinstance(value, bytes) else value
            for name, value in row.items()
        }
        for row in rows
    ]
