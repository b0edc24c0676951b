from __future__ import annotations

import asyncio
import inspect
import os
from typing import Any

import pytest
from harness import mysql_query, query
from libraries import LIBRARIES, MYSQL


@pytest.fixture(scope="session")
def database() -> None:
    # Without a unique constraint, so that a doubled effect is counted and not refused.
    query("CREATE TABLE IF NOT EXISTS effect (name text NOT NULL)")


@pytest.fixture(scope="session")
def mysql_database() -> None:
    mysql_query("CREATE TABLE IF NOT EXISTS effect (name varchar(191) NOT NULL)")


def pytest_generate_tests(metafunc: Any) -> None:
    if "library" in metafunc.fixturenames:
        # A suite that is given one database runs the libraries of that one.
        only = os.environ.get("SEMEL_TEST_ONLY", "")
        names = [name for name in LIBRARIES if not only or (name in MYSQL) == (only == "mysql")]
        metafunc.parametrize("library", names, indirect=True)


@pytest.fixture
def library(request: Any) -> Any:
    request.getfixturevalue("mysql_database" if request.param in MYSQL else "database")
    return LIBRARIES[request.param]


def pytest_pyfunc_call(pyfuncitem: Any) -> Any:
    """Runs tests that are coroutines, and gives them a library of their own event loop."""
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    names = inspect.signature(function).parameters
    given = {name: pyfuncitem.funcargs[name] for name in names}

    async def main() -> None:
        made = given.get("library")
        if made is not None:
            given["library"] = await made()
        try:
            await function(**given)
        finally:
            close = given["library"].close if made is not None else None
            closing = close() if close else None
            if inspect.isawaitable(closing):
                await closing

    asyncio.run(main())
    return True
