"""The libraries of the suite: how each makes a ledger, and how its users insert a row."""

from __future__ import annotations

from typing import Any, Awaitable, Callable, Dict

from harness import AsSync, Library, url

INSERT = "INSERT INTO effect (name) VALUES ({})"


async def psycopg_sync() -> Library:
    import psycopg

    import semel.psycopg

    async def insert(connection: Any, name: str) -> None:
        connection.execute(INSERT.format("%s"), (name,))

    return Library(AsSync(semel.psycopg.ledger(lambda: psycopg.connect(url()))), insert)


async def psycopg_pool() -> Library:
    from psycopg_pool import ConnectionPool

    import semel.psycopg

    pool = ConnectionPool(url(), min_size=1, max_size=4, open=True)

    async def insert(connection: Any, name: str) -> None:
        connection.execute(INSERT.format("%s"), (name,))

    return Library(AsSync(semel.psycopg.ledger(pool)), insert, pool.close)


async def psycopg_async() -> Library:
    from psycopg_pool import AsyncConnectionPool

    import semel.psycopg

    pool = AsyncConnectionPool(url(), min_size=1, max_size=4, open=False)
    await pool.open()

    async def insert(connection: Any, name: str) -> None:
        await connection.execute(INSERT.format("%s"), (name,))

    return Library(semel.psycopg.async_ledger(pool), insert, pool.close)


LIBRARIES: Dict[str, Callable[[], Awaitable[Library]]] = {
    "psycopg": psycopg_sync,
    "psycopg_pool": psycopg_pool,
    "psycopg_async": psycopg_async,
}
