from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from harness import query
from libraries import LIBRARIES


@pytest.fixture(scope="session")
def database() -> None:
    # Without a unique constraint, so that a doubled effect is counted and not refused.
    query("CREATE TABLE IF NOT EXISTS effect (name text NOT NULL)")


def pytest_generate_tests(metafunc: Any) -> None:
    if "library" in metafunc.fixturenames:
        metafunc.parametrize("library", list(LIBRARIES), indirect=True)


@pytest.fixture
def library(request: Any, database: None) -> Any:
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
