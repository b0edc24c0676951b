"""What every library must do: an operation takes effect once, in the transaction of its caller."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from harness import AsSync, Library

import semel
from semel import public_ids
from semel.errors import (
    BackingOff,
    EventConflict,
    Failed,
    InProgress,
    InvalidFingerprint,
    InvalidKey,
    InvalidPublicId,
    InvalidResult,
    KeyReused,
    Misused,
    ResultUnavailable,
)


async def test_a_repeat_gets_the_first_result_and_the_work_runs_once(library: Library) -> None:
    runs = []

    async def place(unit: Any) -> Any:
        runs.append(unit.operation_id)
        await library.effect(unit, "k")
        return {"id": "ord_1", "lines": ("a", "b")}

    first = await library.execute(place, fields={"sku": "A-1"})
    again = await library.execute(place, fields={"sku": "A-1"})
    assert (first.replayed, again.replayed) == (False, True)
    # A tuple is a list in JSON: the first result is what the replay gives.
    assert first.value == again.value == {"id": "ord_1", "lines": ["a", "b"]}
    assert first.operation_id == again.operation_id == runs[0]
    assert (len(runs), library.effects("k")) == (1, 1)


async def test_other_fields_under_one_key_are_refused(library: Library) -> None:
    async def place(unit: Any) -> int:
        await library.effect(unit, "k")
        return 1

    await library.execute(place, fields={"cents": 100, "sku": "A"})
    await library.execute(place, fields={"sku": "A", "cents": 100.0})
    with pytest.raises(KeyReused) as refused:
        await library.execute(place, fields={"cents": 101, "sku": "A"})
    assert "use a new key" in str(refused.value)
    assert library.effects("k") == 1


async def test_a_failure_rolls_back_is_recorded_and_runs_again(library: Library) -> None:
    attempts = []

    async def place(unit: Any) -> str:
        attempts.append(unit.operation_id)
        await library.effect(unit, "k")
        await unit.append("order.placed", {"n": 1}, source="/orders")
        if len(attempts) < 3:
            raise RuntimeError("the card\0 was \ud800declined " + "x" * 300)
        return "done"

    for _ in range(2):
        with pytest.raises(RuntimeError):
            await library.execute(place)
        record = library.record()
        assert record["state"] == 2
        assert record["error"].startswith("RuntimeError: the card\ufffd was ?declined")
        assert (library.effects("k"), library.events()) == (0, [])
    result = await library.execute(place)
    assert (result.value, result.replayed) == ("done", False)
    # One operation through all its attempts.
    assert len(set(attempts)) == 1
    assert (library.record()["attempt"], library.effects("k"), len(library.events())) == (3, 1, 1)


async def test_a_failure_may_be_put_off_or_kept(library: Library) -> None:
    async def fail(unit: Any) -> None:
        raise ValueError("no such sku")

    with pytest.raises(ValueError):
        await library.execute(fail, key="later", retry_after=timedelta(minutes=5))
    with pytest.raises(BackingOff) as put_off:
        await library.execute(fail, key="later")
    assert 200 < (put_off.value.retry_after or 0) <= 300
    with pytest.raises(ValueError):
        await library.execute(fail, key="kept", final=(ValueError,))
    with pytest.raises(Failed) as kept:
        await library.execute(fail, key="kept")
    assert kept.value.reason == "ValueError: no such sku"
    # The text of the failure may have another caller's data.
    assert "sku" not in str(kept.value)


async def test_a_rival_is_told_at_once_or_waits(library: Library) -> None:
    async def outer(unit: Any) -> str:
        await library.effect(unit, "k")

        async def inner(unit: Any) -> str:
            raise AssertionError("ran twice")

        with pytest.raises(InProgress):
            await library.elsewhere(lambda: library.execute(inner))
        waiting = timedelta(milliseconds=200)
        with pytest.raises(InProgress):
            await library.elsewhere(lambda: library.execute(inner, wait=waiting))
        return "first"

    assert (await library.execute(outer)).value == "first"
    assert library.effects("k") == 1


async def test_many_callers_of_one_key_have_one_effect_and_one_result(library: Library) -> None:
    results = []

    async def place(unit: Any) -> str:
        await library.effect(unit, "race")
        return str(unit.operation_id)

    async def call() -> None:
        results.append((await library.execute(place, key="race", wait=timedelta(minutes=1))).value)

    if isinstance(library.ledger, AsSync):
        sent = [lambda: asyncio.run(library.elsewhere(call))] * 4
        threads = [threading.Thread(target=each) for each in sent]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        await asyncio.gather(*(call() for _ in range(4)))
    assert (len(results), len(set(results)), library.effects("race")) == (4, 1, 1)


async def test_keys_of_other_tenants_operations_and_callers_are_other_keys(
    library: Library,
) -> None:
    async def place(unit: Any) -> str:
        return str(unit.operation_id)

    calls = [
        await library.execute(place),
        await library.execute(place, operation="CancelOrder"),
        await library.execute(place, principal="user-1"),
        await library.execute(place, principal="user-2"),
    ]
    assert len({call.value for call in calls}) == 4
    digest = semel.Key(
        library.tenant, "CreateOrder", "k", principal=semel.keys.principal("user-1")
    ).digest()
    (record,) = library.query("SELECT id FROM semel_record WHERE digest = %s", digest)
    assert record["id"] == "k"


async def test_what_cannot_work_is_refused_before_anything_is_sent(library: Library) -> None:
    async def work(unit: Any) -> None:
        raise AssertionError("ran")

    with pytest.raises(InvalidKey):
        await library.execute(work, key=" ")
    with pytest.raises(InvalidKey):
        await library.execute(work, key="x" * 256)
    with pytest.raises(InvalidFingerprint):
        await library.execute(work, fields={"at": object()})
    with pytest.raises(InvalidFingerprint):
        await library.execute(work, request_hash="ab")
    assert library.record() == {}


async def test_a_result_that_cannot_be_stored_commits_nothing(library: Library) -> None:
    async def work(unit: Any) -> object:
        await library.effect(unit, "k")
        return object()

    with pytest.raises(InvalidResult, match="object is not JSON"):
        await library.execute(work)
    assert library.effects("k") == 0

    async def large(unit: Any) -> str:
        await library.effect(unit, "k")
        return "x" * (1 << 20)

    with pytest.raises(Exception, match="at most 1048576 "):
        await library.execute(large, key="large")
    assert library.effects("k") == 0


@dataclass
class Order:
    id: str
    cents: int


async def test_a_result_of_a_class_is_replayed_as_that_class(library: Library) -> None:
    async def place(unit: Any) -> Order:
        return Order("ord_1", 1999)

    codec = semel.Model(Order)
    first = await library.execute(place, codec=codec)
    again = await library.execute(place, codec=codec)
    assert first.value == again.value == Order("ord_1", 1999)
    with pytest.raises(ResultUnavailable):
        await library.execute(place, codec=semel.Bytes())


async def test_an_event_commits_with_its_operation(library: Library) -> None:
    async def place(unit: Any) -> str:
        return str(
            await unit.append(
                "order.placed",
                {"order": "ord_1", "cents": 1999},
                source="/orders",
                about=("order", "ord_1"),
                headers={"traceId": "t-1"},
                name="placed",
            )
        )

    result = await library.execute(place)
    await library.execute(place)
    (event,) = library.events()
    assert event["id"] == result.value
    assert event["id"] == semel.events.derived_id(result.operation_id, "placed")
    assert (event["type"], event["source"], event["aggregateid"]) == (
        "order.placed",
        "/orders",
        "ord_1",
    )
    assert event["payload"] == '{"order":"ord_1","cents":1999}'
    assert "t-1" in event["headers"]


async def test_a_public_id_is_the_operation_and_resolves(library: Library) -> None:
    async def place(unit: Any) -> "list[str]":
        internal, public = await unit.create_id(public_ids.ORDER)
        assert await unit.resolve_id(public_ids.ORDER, public) == internal
        return [internal.hex(), public]

    result = await library.execute(place)
    internal, public = result.value
    assert result.reference == public and public.startswith("ord_")
    assert semel.ulids.write(bytes.fromhex(internal)) == result.operation_id

    async def look(unit: Any) -> None:
        missing = public_ids.ORDER.encode(semel.new_id())
        assert await unit.resolve_id(public_ids.ORDER, missing) is None
        with pytest.raises(InvalidPublicId):
            await unit.resolve_id(public_ids.STORE, public)

    await library.execute(look, key="look")


async def test_an_event_is_handled_once_per_group(library: Library) -> None:
    handled = []
    event = semel.Event(
        library.tenant, semel.ulids.write(semel.new_id()), "order.paid", "/orders", b"{}"
    )

    def subscribe(group: str) -> Any:
        @library.ledger.handler(group=group)
        async def ship(unit: Any, event: Any) -> None:
            handled.append(group)
            await library.effect(unit, group)
            await unit.append("order.shipped", {}, source="/shipping", name="shipped")
            if len(handled) == 1:
                raise RuntimeError("no box")

        return ship

    shipping, mailing = subscribe("SHIPPING"), subscribe("MAILING")
    with pytest.raises(RuntimeError):
        await shipping(event)
    results = [(await each(event)).replayed for each in (shipping, shipping, mailing)]
    assert results == [False, True, False]
    assert (library.effects("SHIPPING"), library.effects("MAILING")) == (1, 1)
    # What each group appends is an event of its own, whatever names they give.
    shipped = [each["id"] for each in library.events()]
    assert len(shipped) == len(set(shipped)) == 2
    other = semel.Event(event.tenant, event.id, "order.cancelled", "/orders", b"{}")
    with pytest.raises(EventConflict):
        await shipping(other)


async def test_a_decorated_function_runs_once_per_key(library: Library) -> None:
    @dataclass
    class Command:
        key: str
        sku: str
        cents: int

    @library.ledger.idempotent(
        operation="CreateOrder",
        tenant=lambda command: library.tenant,
        key="command.key",
        fields=["command.sku", "command.cents"],
    )
    async def place(unit: Any, command: Command) -> str:
        await library.effect(unit, command.key)
        return f"{command.sku} for {command.cents}"

    assert await place(Command("k-1", "A", 5)) == "A for 5"
    assert await place(command=Command("k-1", "A", 5)) == "A for 5"
    assert library.effects("k-1") == 1
    with pytest.raises(KeyReused):
        await place(Command("k-1", "A", 6))


async def test_an_event_of_any_id_gives_ids_to_what_its_handlers_make(library: Library) -> None:
    made = []

    def subscribe(group: str) -> Any:
        @library.ledger.handler(group=group)
        async def ship(unit: Any, event: Any) -> None:
            made.append((await unit.create_id(public_ids.ORDER))[1])
            await unit.append("order.shipped", {}, source="/shipping", name="shipped")

        return ship

    events = [semel.Event(library.tenant, "evt-1", "paid", source, b"{}") for source in "ab"]
    for group in ("SHIPPING", "MAILING"):
        for event in events:
            assert not (await subscribe(group)(event)).replayed
    assert len(set(made)) == len({each["id"] for each in library.events()}) == 4


async def test_what_work_is_refused_elsewhere_is_not_waited_for(library: Library) -> None:
    runs = []

    async def work(unit: Any) -> None:
        runs.append(1)
        raise InProgress()

    with pytest.raises(InProgress):
        await library.execute(work, wait=timedelta(seconds=30))
    assert len(runs) == 1


async def test_a_caller_that_is_cancelled_again_and_again_keeps_no_connection(
    library: Library,
) -> None:
    if isinstance(library.ledger, AsSync):
        return

    async def place(unit: Any) -> str:
        return str(unit.operation_id)

    # More than the pools have.
    for number in range(8):
        begun = asyncio.Event()

        async def hang(unit: Any, begun: asyncio.Event = begun) -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(library.execute(hang, key=f"hung-{number}"))
        await asyncio.wait(
            [task, asyncio.ensure_future(begun.wait())], return_when="FIRST_COMPLETED"
        )
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
    for number in range(8):
        # Their keys are free, as soon as the connections are back.
        waiting = timedelta(seconds=60)
        called = library.execute(place, key=f"hung-{number}", wait=waiting)
        assert not (await asyncio.wait_for(called, 60)).replayed


async def test_settings_that_cannot_work_are_refused(library: Library) -> None:
    async def work(unit: Any) -> None:
        raise ValueError("no")

    for settings in ({"keep": timedelta(0)}, {"retry_after": -timedelta(1)}, {"principal": 7}):
        with pytest.raises(Misused):
            await library.execute(work, **settings)
    with pytest.raises(InvalidKey):
        await library.execute(work, principal="a\0b")
    with pytest.raises(InvalidKey):
        await library.ledger.execute(work, operation="X", key="k", tenant="")
    with pytest.raises(ValueError):
        await library.execute(work, final=[ValueError])
    with pytest.raises(Failed):
        await library.execute(work, final=[ValueError])


async def test_a_result_that_cannot_be_read_back_commits_nothing(library: Library) -> None:
    async def work(unit: Any) -> Any:
        await library.effect(unit, "k")
        return {"id": "1"}

    with pytest.raises(InvalidResult, match="nothing was committed"):
        await library.execute(work, codec=semel.Model(Order))
    assert library.effects("k") == 0
