"""What becomes of an operation when a connection is lost, set up wrongly or shared."""

from __future__ import annotations

import functools
import uuid
from typing import Any, Callable

import psycopg
import pytest
from harness import mysql_connect, mysql_query, query, url

import semel
import semel.psycopg
from semel import public_ids


@pytest.fixture
def tenant(database: None) -> str:
    return f"t-{uuid.uuid4().hex[:20]}"


def insert(unit: Any) -> str:
    unit.connection.execute("INSERT INTO effect VALUES (%s)", (unit.operation_id,))
    return str(unit.operation_id)


def effects(operation_id: str) -> int:
    (row,) = query("SELECT count(*) AS n FROM effect WHERE name = %s", operation_id)
    return int(row["n"])


class Losing:
    """A connection that is lost at its first commit: before the server has it, or only the answer."""

    def __init__(self, connection: Any, commits: bool, lost: Callable[[], bool]) -> None:
        self._connection, self._commits, self._lost = connection, commits, lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        if self._commits:
            self._connection.commit()
        if self._lost():
            self._connection.close()
            raise psycopg.OperationalError("the connection was closed unexpectedly")
        self._connection.commit()


def losing(commits: bool) -> Callable[[], Any]:
    first = [True]

    def lost() -> bool:
        was, first[0] = first[0], False
        return was

    return lambda: Losing(psycopg.connect(url()), commits and first[0], lost)


def test_a_commit_whose_answer_is_lost_is_looked_up(tenant: str) -> None:
    ledger = semel.psycopg.ledger(losing(commits=True), tenant=tenant)
    result = ledger.execute(insert, operation="PAY", key="k")
    assert not result.replayed and effects(result.value) == 1
    assert ledger.execute(insert, operation="PAY", key="k").value == result.value


def test_a_commit_that_did_not_happen_is_an_error_and_runs_again(tenant: str) -> None:
    ledger = semel.psycopg.ledger(losing(commits=False), tenant=tenant)
    with pytest.raises(psycopg.OperationalError):
        ledger.execute(insert, operation="PAY", key="k")
    result = ledger.execute(insert, operation="PAY", key="k")
    assert not result.replayed and effects(result.value) == 1


def test_a_connection_that_is_lost_in_the_work_leaves_the_key_free(tenant: str) -> None:
    def lose(unit: Any) -> None:
        insert(unit)
        with psycopg.connect(url(), autocommit=True) as other:
            pid = unit.connection.info.backend_pid
            other.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))
        unit.connection.execute("SELECT 1")

    ledger = semel.psycopg.ledger(lambda: psycopg.connect(url()), tenant=tenant)
    with pytest.raises(psycopg.OperationalError):
        ledger.execute(lose, operation="PAY", key="k")
    assert not ledger.execute(insert, operation="PAY", key="k").replayed


def test_a_server_that_is_away_is_told_apart_from_work_that_failed(tenant: str) -> None:
    def away() -> Any:
        return psycopg.connect("postgresql://nobody@127.0.0.1:1/none", connect_timeout=5)

    with pytest.raises(semel.Unavailable) as refused:
        semel.psycopg.ledger(away, tenant=tenant).execute(insert, operation="PAY", key="k")
    assert isinstance(refused.value.__cause__, psycopg.OperationalError)


def test_autocommit_is_refused_with_words(tenant: str) -> None:
    def open_autocommit() -> Any:
        return psycopg.connect(url(), autocommit=True)

    with pytest.raises(semel.Misused, match="autocommit=False"):
        semel.psycopg.ledger(open_autocommit, tenant=tenant).execute(
            insert, operation="PAY", key="k"
        )


def test_a_database_without_the_functions_is_told_what_to_run(tenant: str) -> None:
    def empty() -> Any:
        return psycopg.connect(url(), options="-c search_path=pg_catalog")

    with pytest.raises(semel.NotMigrated, match="semel migrate apply"):
        semel.psycopg.ledger(empty, tenant=tenant).execute(insert, operation="PAY", key="k")


def test_work_that_commits_by_itself_is_refused(tenant: str) -> None:
    def commits(unit: Any) -> None:
        unit.connection.execute("SELECT 1")
        unit.connection.commit()

    ledger = semel.psycopg.ledger(lambda: psycopg.connect(url()), tenant=tenant)
    with pytest.raises(psycopg.Error, match="did not complete it"):
        ledger.execute(commits, operation="PAY", key="k")
    assert not ledger.execute(insert, operation="PAY", key="k").replayed


def test_a_transaction_of_the_caller_can_append_and_bind_ids(tenant: str) -> None:
    ledger = semel.psycopg.ledger(lambda: psycopg.connect(url()), tenant=tenant)
    internal = semel.new_id()
    with psycopg.connect(url()) as connection:
        joined = ledger.join(connection)
        joined.append("order.placed", {"n": 1}, source="/orders")
        public = joined.register_id(public_ids.ORDER, internal)
        connection.rollback()
        assert joined.resolve_id(public_ids.ORDER, public) is None
        joined.register_id(public_ids.ORDER, internal)
        joined.append("order.placed", {"n": 2}, source="/orders")
    (event,) = query("SELECT payload FROM semel_outbox WHERE tenant = %s", tenant)
    assert event["payload"] == '{"n":2}'
    with psycopg.connect(url(), autocommit=True) as connection:
        with pytest.raises(semel.Misused):
            ledger.join(connection)


def test_a_class_is_decorated_through_its_method_handle(tenant: str) -> None:
    ledger = semel.psycopg.ledger(lambda: psycopg.connect(url()), tenant=tenant)

    @ledger.idempotent(operation="CreateOrder", key="command.key", fields=["command.sku"])
    class CreateOrder:
        def __init__(self, suffix: str) -> None:
            self.suffix = suffix

        def handle(self, unit: Any, command: Any) -> str:
            insert(unit)
            return f"{command['sku']}{self.suffix}:{unit.operation_id}"

    handler = CreateOrder("!")
    first = handler.handle({"key": "k", "sku": "A"})
    assert first.startswith("A!:") and handler.handle({"key": "k", "sku": "A"}) == first
    with pytest.raises(semel.KeyReused):
        handler.handle({"key": "k", "sku": "B"})
    with pytest.raises(TypeError, match="no argument `order.key`"):
        ledger.idempotent(operation="X", key="order.key")(lambda unit, command: None)
    for tenant in ("order.tenant", "acme"):
        with pytest.raises(TypeError, match=f"no argument `{tenant}`"):
            decorated = ledger.idempotent(operation="X", key="command.key", tenant=tenant)
            decorated(lambda unit, command: None)


def test_a_method_is_decorated_with_its_object(tenant: str) -> None:
    ledger = semel.psycopg.ledger(lambda: psycopg.connect(url()), tenant=tenant)

    class Orders:
        suffix = "!"

        @ledger.idempotent(operation="CreateOrder", key="key")
        def place(self, unit: Any, key: str) -> str:
            return insert(unit) + self.suffix

    placed = Orders().place("k")
    assert placed.endswith("!") and Orders().place("k") == placed


def test_an_identity_that_is_no_text_is_refused(tenant: str) -> None:
    ledger = semel.psycopg.ledger(lambda: psycopg.connect(url()), tenant=tenant)

    async def user() -> str:
        return "u-1"

    for settings in ({"principal": lambda key: user()}, {"tenant": lambda key: user()}):

        @ledger.idempotent(operation="PAY", key="key", **settings)
        def pay(unit: Any, key: str) -> str:
            raise AssertionError("ran")

        with pytest.raises(semel.Misused, match="got coroutine"):
            pay("k")


def test_work_that_would_not_run_is_refused(tenant: str) -> None:
    ledger = semel.psycopg.ledger(lambda: psycopg.connect(url()), tenant=tenant)

    async def suspends(unit: Any, event: Any = None) -> None:
        raise AssertionError("ran")

    def generates(unit: Any, event: Any = None) -> Any:
        yield insert(unit)

    class Callable:
        async def __call__(self, unit: Any, event: Any = None) -> None:
            raise AssertionError("ran")

    for work in (suspends, generates, Callable(), functools.partial(suspends)):
        with pytest.raises(semel.Misused, match="does not run"):
            ledger.handler(group="SHIPPING")(work)
        with pytest.raises(semel.Misused, match="does not run"):
            ledger.idempotent(operation="PAY", key=lambda **_: "k")(work)
        with pytest.raises(semel.Misused, match="does not run"):
            ledger.execute(work, operation="PAY", key="k")
        # Only its call shows what it is.
        event = semel.Event(tenant, "evt-1", "paid", "/orders", b"{}")
        hidden = ledger.handler(group="SHIPPING")(lambda unit, event, work=work: work(unit, event))
        with pytest.raises(semel.Misused, match="does not run"):
            hidden(event)
        with pytest.raises(semel.Misused, match="does not run"):
            ledger.execute(lambda unit, work=work: work(unit), operation="PAY", key="k")
    assert not ledger.handler(group="SHIPPING")(lambda unit, event: None)(event).replayed
    assert not ledger.execute(insert, operation="PAY", key="k").replayed


class Overtaken:
    """A connection that is lost before its first commit; another caller runs the key before anybody asks
    what became of it."""

    def __init__(self, connection: Any, overtake: Callable[[], Any]) -> None:
        self._connection, self._overtake = connection, overtake

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        self._connection.close()
        self._overtake()
        raise psycopg.OperationalError("the connection was closed unexpectedly")


def test_a_commit_that_another_attempt_overtook_gives_the_result_of_that_one(tenant: str) -> None:
    other = semel.psycopg.ledger(lambda: psycopg.connect(url()), tenant=tenant)

    def fail(unit: Any) -> None:
        raise ValueError("no")

    # A failure is kept with the id of the operation, which all attempts have.
    with pytest.raises(ValueError):
        other.execute(fail, operation="PAY", key="k")
    asked = {"operation": "PAY", "key": "k"}
    overtake = lambda: other.execute(lambda unit: "theirs", **asked)  # noqa: E731
    first = [True]

    def connect() -> Any:
        was, first[0] = first[0], False
        connection = psycopg.connect(url())
        return Overtaken(connection, overtake) if was else connection

    ledger = semel.psycopg.ledger(connect, tenant=tenant)
    result = ledger.execute(lambda unit: insert(unit) and "mine", **asked)
    assert (result.value, result.replayed) == ("theirs", True)
    assert effects(result.operation_id) == 0


def test_a_commit_that_the_server_refuses_is_a_failure_on_record(tenant: str) -> None:
    def doubles(unit: Any) -> None:
        unit.connection.execute(
            "CREATE TEMP TABLE deferred (n int UNIQUE DEFERRABLE INITIALLY DEFERRED) ON COMMIT DROP"
        )
        unit.connection.execute("INSERT INTO deferred VALUES (1), (1)")

    ledger = semel.psycopg.ledger(lambda: psycopg.connect(url()), tenant=tenant)
    with pytest.raises(psycopg.errors.UniqueViolation):
        ledger.execute(doubles, operation="PAY", key="k")
    (record,) = query("SELECT error FROM semel_record WHERE tenant = %s", tenant)
    assert record["error"].startswith("UniqueViolation")


def test_an_argument_that_the_library_refuses_is_no_outage(tenant: str) -> None:
    def wrong() -> Any:
        raise TypeError("no such setting")

    with pytest.raises(TypeError):
        semel.psycopg.ledger(wrong, tenant=tenant).execute(insert, operation="PAY", key="k")


def test_a_connection_with_a_transaction_of_the_caller_is_left_as_it_is(tenant: str) -> None:
    with psycopg.connect(url()) as mine:
        mine.execute("INSERT INTO effect VALUES (%s)", (tenant,))
        ledger = semel.psycopg.ledger(lambda: mine, tenant=tenant)
        with pytest.raises(semel.Misused, match="open transaction"):
            ledger.execute(insert, operation="PAY", key="k")
        assert effects(tenant) == 0
    assert effects(tenant) == 1


def test_a_mysql_connection_with_a_transaction_is_left_as_it_is(
    tenant: str, mysql_database: None
) -> None:
    import semel.pymysql

    with mysql_connect() as mine:
        mine.begin()
        mine.cursor().execute("INSERT INTO effect VALUES (%s)", (tenant,))
        ledger = semel.pymysql.ledger(lambda: mine, tenant=tenant)
        with pytest.raises(semel.Misused, match="open transaction"):
            ledger.execute(lambda unit: 1, operation="PAY", key="k")
        mine.rollback()
    (row,) = mysql_query("SELECT count(*) AS n FROM effect WHERE name = %s", tenant)
    assert row["n"] == 0


def test_a_session_with_work_of_the_caller_is_left_as_it_is(tenant: str) -> None:
    from libraries import Effect, of_sqlalchemy
    from sqlalchemy import create_engine
    from sqlalchemy.orm import scoped_session, sessionmaker

    import semel.sqlalchemy

    engine = create_engine(of_sqlalchemy("psycopg"))
    sessions = scoped_session(sessionmaker(engine))
    sessions.add(Effect(name=tenant))
    ledger = semel.sqlalchemy.ledger(sessions, tenant=tenant)
    with pytest.raises(semel.Misused, match="pending"):
        ledger.execute(lambda unit: 1, operation="PAY", key="k")
    assert effects(tenant) == 0
    sessions.commit()
    assert effects(tenant) == 1
    sessions.remove()
    assert not ledger.execute(lambda unit: 1, operation="PAY", key="k").replayed
    sessions.remove()
    # A session on a connection whose transaction is the caller's: its commit commits nothing.
    with engine.connect() as connection, connection.begin():
        ledger = semel.sqlalchemy.ledger(sessionmaker(connection), tenant=tenant)
        with pytest.raises(semel.Misused, match="open transaction"):
            ledger.execute(lambda unit: 1, operation="PAY", key="k")
    engine.dispose()
    with pytest.raises(semel.Misused, match="sqlite"):
        semel.sqlalchemy.ledger(sessionmaker(create_engine("sqlite://")))


def test_django_without_autocommit_is_refused(tenant: str) -> None:
    import asyncio

    from libraries import django_connection

    asyncio.run(django_connection())
    from django.db import connection, transaction

    import semel.django

    ledger = semel.django.ledger(tenant=tenant)
    transaction.set_autocommit(False)
    try:
        with pytest.raises(semel.Misused, match="AUTOCOMMIT"):
            ledger.execute(lambda unit: 1, operation="PAY", key="k")
    finally:
        transaction.set_autocommit(True)
    assert not ledger.execute(lambda unit: 1, operation="PAY", key="k").replayed

    # The commit happened, whatever its hooks do.
    def hooked(unit: Any) -> str:
        transaction.on_commit(lambda: 1 // 0)
        return "done"

    assert ledger.execute(hooked, operation="PAY", key="hooked").value == "done"
    connection.close()


def test_the_caller_of_aiomysql_must_have_a_transaction_to_join(mysql_database: None) -> None:
    import asyncio

    from libraries import aiomysql_pool

    async def main() -> None:
        library = await aiomysql_pool()
        pool = library.ledger.engine.database._pool
        async with pool.acquire() as connection:
            await connection.autocommit(True)
            with pytest.raises(semel.Misused):
                library.ledger.join(connection)
            await connection.begin()
            library.ledger.join(connection)
            await connection.rollback()
        await library.close()

    asyncio.run(main())


def test_the_order_of_fields_makes_no_difference_beyond_2_to_53() -> None:
    large = 1 << 60
    assert semel.fingerprints.of({"a": large, "b": 1}) == semel.fingerprints.of(
        {"b": 1, "a": large}
    )
