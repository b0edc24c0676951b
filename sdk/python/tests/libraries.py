"""The libraries of the suite: how each makes a ledger, and how its users insert a row."""

from __future__ import annotations

import os
from typing import Any, Awaitable, Callable, Dict

from harness import MYSQL_URL, AsSync, Library, mysql_connect, mysql_query, url
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, mapped_column


class Base(DeclarativeBase):
    pass


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


def of_sqlalchemy(driver: str) -> str:
    return (
        url()
        .replace("postgresql://", f"postgresql+{driver}://")
        .replace("postgres://", f"postgresql+{driver}://")
    )


async def sqlalchemy_sync() -> Library:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import sessionmaker

    import semel.sqlalchemy

    engine = create_engine(of_sqlalchemy("psycopg"))

    async def insert(session: Any, name: str) -> None:
        # Pending until it is flushed.
        session.add(Effect(name=name))

    ledger = semel.sqlalchemy.ledger(sessionmaker(engine))
    return Library(AsSync(ledger), insert, engine.dispose)


async def sqlalchemy_async() -> Library:
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    import semel.sqlalchemy

    engine = create_async_engine(of_sqlalchemy("asyncpg"))

    async def insert(session: Any, name: str) -> None:
        session.add(Effect(name=name))

    ledger = semel.sqlalchemy.async_ledger(async_sessionmaker(engine))
    return Library(ledger, insert, engine.dispose)


async def asyncpg_pool() -> Library:
    import asyncpg

    import semel.asyncpg

    pool = await asyncpg.create_pool(url(), min_size=1, max_size=4)

    async def insert(connection: Any, name: str) -> None:
        await connection.execute(INSERT.format("$1"), name)

    return Library(semel.asyncpg.async_ledger(pool), insert, pool.close)


async def django_connection() -> Library:
    from urllib.parse import urlsplit

    import django
    from django.conf import settings

    # The suite runs in an event loop, which views do not.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    if not settings.configured:
        parts = urlsplit(url())
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path[1:],
            "USER": parts.username,
            "PASSWORD": parts.password or "",
            "HOST": parts.hostname,
            "PORT": parts.port,
        }
        settings.configure(DATABASES={"default": database}, USE_TZ=True, SECRET_KEY="test")
        django.setup()
    from django.db import connections

    import semel.django

    async def insert(connection: Any, name: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(INSERT.format("%s"), (name,))

    return Library(AsSync(semel.django.ledger()), insert, connections.close_all)


async def pymysql_connection() -> Library:
    import semel.pymysql

    async def insert(connection: Any, name: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(INSERT.format("%s"), (name,))

    return Library(AsSync(semel.pymysql.ledger(mysql_connect)), insert, query=mysql_query)


async def aiomysql_pool() -> Library:
    from urllib.parse import urlsplit

    import aiomysql

    import semel.aiomysql

    parts = urlsplit(url(MYSQL_URL))
    pool = await aiomysql.create_pool(
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        password=parts.password or "",
        db=parts.path[1:],
        minsize=1,
        maxsize=4,
    )

    async def insert(connection: Any, name: str) -> None:
        async with connection.cursor() as cursor:
            await cursor.execute(INSERT.format("%s"), (name,))

    async def close() -> None:
        pool.close()
        await pool.wait_closed()

    return Library(semel.aiomysql.async_ledger(pool), insert, close, mysql_query)


class Effect(Base):
    __tablename__ = "effect"
    name = mapped_column(String)
    # The table has no primary key; the mapper needs a name for one.
    __mapper_args__ = {"primary_key": [name]}


LIBRARIES: Dict[str, Callable[[], Awaitable[Library]]] = {
    "psycopg": psycopg_sync,
    "psycopg_pool": psycopg_pool,
    "psycopg_async": psycopg_async,
    "sqlalchemy": sqlalchemy_sync,
    "sqlalchemy_async": sqlalchemy_async,
    "asyncpg": asyncpg_pool,
    "django": django_connection,
    "pymysql": pymysql_connection,
    "aiomysql": aiomysql_pool,
}
#: Those on MariaDB and MySQL; the others are on PostgreSQL.
MYSQL = {"pymysql", "aiomysql"}
