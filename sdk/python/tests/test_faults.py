"""What becomes of an operation when a connection is lost, set up wrongly or shared."""

from __future__ import annotations

import uuid
from typing import Any, Callable

import psycopg
import pytest
from harness import query, url

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
