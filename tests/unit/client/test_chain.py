"""Whose result one gets: through retries and continuations to the last, never that of an unrelated start."""

import asyncio

import pytest
from msgspec import Raw

from resurgam import Status, errors
from resurgam.client import chain
from resurgam.core import event as events
from resurgam.core.failure import capture
from resurgam.testing.contract.bench import request, scheduled
from support.manual_worker import FAILURE, at, workerless_engine


async def test_a_handle_follows_retries_and_continuations_to_the_last():
    async with workerless_engine() as (engine, worker):
        started = await engine.start("sell", id="o-1")
        waiting = [asyncio.ensure_future(h.result()) for h in (started, engine.handle("o-1"))]
        await worker.quiet()
        await worker.retries("o-1", "second-try")
        await worker.continues("o-1", "run-two")
        await worker.retries("o-1", "third-try")
        await worker.completes("o-1", b"7")

        assert await worker.soon(asyncio.gather(*waiting)) == [7, 7]
        assert (started.run_id, started.execution_id) == ("run-two", "third-try")
        assert await started.result(1) == 7


async def test_a_later_start_of_the_same_id_is_not_followed():
    async with workerless_engine() as (engine, worker):
        first = await engine.start("sell", id="o-1")
        await worker.continues("o-1", "run-two")
        await worker.completes("o-1", b"1")
        second = await engine.start("sell", id="o-1")

        assert await first.result(1) == 1
        await worker.fails("o-1")
        third = await engine.start("sell", id="o-1")
        with pytest.raises(errors.WorkflowFailed):
            await second.result(1)
        await worker.completes("o-1", b"3")
        assert await first.result(1) == 1
        assert await third.result(1) == await engine.handle("o-1").result(1) == 3


async def test_a_child_of_the_same_id_that_another_call_began_is_not_followed():
    async with workerless_engine() as (engine, worker):
        await engine.start("sell", id="o-1")
        await worker.starts_child("o-1", "c-1", queue="slow")
        child = engine.handle("c-1")
        found = await child.describe()
        waiting = asyncio.ensure_future(child.result())
        await worker.quiet()
        await worker.fails("c-1")
        await engine.handle("o-1").signal("go")
        await worker.starts_child("o-1", "c-1", queue="slow", place=2)

        assert found.parent is not None
        assert (found.parent.entity_id, str(found.parent.location)) == ("o-1", "{1}")
        with pytest.raises(errors.WorkflowFailed):
            await worker.soon(waiting)


async def test_a_pinned_handle_stays_with_its_run_through_retries():
    async with workerless_engine() as (engine, worker):
        started = await engine.start("sell", id="o-1")
        pinned = engine.handle("o-1", started.run_id)
        waiting = asyncio.ensure_future(pinned.result())
        await worker.quiet()
        await worker.retries("o-1", "second-try")
        await worker.completes("o-1", b"7")

        assert await worker.soon(waiting) == 7
        assert pinned.execution_id == "second-try"


async def test_a_pinned_run_that_was_continued_says_where_it_goes_on():
    async with workerless_engine() as (engine, worker):
        started = await engine.start("sell", id="o-1")
        pinned = engine.handle("o-1", started.run_id)
        await worker.continues("o-1", "run-two")

        with pytest.raises(
            errors.NotFound, match="it was continued as new, in run 'run-two'; use a handle of that run"
        ):
            await pinned.result(1)
        assert (await pinned.describe()).status is Status.CONTINUED
        with pytest.raises(errors.NotFound, match=r"is closed \(continued\) and accepts no more messages"):
            await pinned.signal("go")


async def test_a_pinned_signal_reaches_the_next_attempt():
    async with workerless_engine() as (engine, worker):
        started = await engine.start("sell", id="o-1")
        await worker.retries("o-1", "second-try")
        await engine.handle("o-1", started.run_id).signal("go", 5)

        assert [entry.event.name for entry in (await worker.take("o-1")).inbox] == ["go"]


async def test_a_timeout_is_the_cause_of_the_failure():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await worker.fails("o-1", capture(errors.WorkflowTimeout("sell", "o-1", 5.0)))
        with pytest.raises(errors.WorkflowFailed) as found:
            await handle.result(1)

        assert isinstance(found.value.cause, errors.WorkflowTimeout)
        assert found.value.cause.seconds == 5.0


async def test_a_result_that_does_not_come_names_what_is_waited_for():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await worker.promises("o-1", "pay", "p-1")
        waiting = asyncio.ensure_future(handle.result(5))
        await worker.quiet()
        await worker.pass_time(5000)

        with pytest.raises(errors.ResultTimeout, match=r"it is running and waits for promise 'pay' at \{1\}"):
            await waiting


async def test_what_was_purged_has_no_result():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await worker.completes("o-1")
        await engine.store.purge([handle])

        with pytest.raises(errors.NotFound, match="of workflow 'o-1' was removed from the store"):
            await handle.result(1)


@pytest.mark.parametrize("pinned", [True, False])
async def test_a_run_that_is_purged_while_its_result_is_awaited_is_not_found(pinned):
    async with workerless_engine() as (engine, worker):
        await engine.start("sell", id="o-1")
        awaited = await engine.store.inspector.get("o-1")
        assert awaited is not None
        await worker.completes("o-1")
        await engine.store.purge([awaited])

        with pytest.raises(errors.NotFound, match=f"run '{awaited.run_id}' of workflow 'o-1' was removed"):
            await chain.wait_for_chain(engine.store, awaited, None, pinned=pinned)


@pytest.mark.parametrize("late", [0, 1, 5, 20])
async def test_a_result_is_found_before_any_number_of_late_entries(late):
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        results = [events.ActivityCompleted(ref=ref, attempt=1, result=Raw(b"1")) for ref in range(2, 2 + late)]
        completed = events.WorkflowCompleted(result=Raw(b"7"))
        await worker.does(
            "o-1", *[scheduled(request(result.ref)) for result in results], completed, *results, status=Status.COMPLETED
        )

        assert await handle.result(1) == 7


# Trying again by hand.


async def test_a_failed_run_is_tried_again_with_what_it_has_got():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await handle.signal("word", 1, id="s-1")
        await worker.does(
            "o-1",
            scheduled(request(3)),
            events.ActivityCompleted(ref=3, result=Raw(b"7")),
            events.WorkflowFailed(failure=FAILURE),
            status=Status.FAILED,
        )
        before = await handle.describe()
        assert await handle.retry() == 1

        after = await handle.describe()
        assert (after.attempt, after.run_id, after.previous) == (2, before.run_id, before.execution_id)
        assert after.status is Status.RUNNING
        claim = await worker.take("o-1")
        [started] = await engine.store.read(claim.instance)
        assert [one.name for one in started.carried] == ["charge"]
        assert [entry.event.id for entry in claim.inbox] == ["s-1"]


async def test_who_waits_for_a_failed_run_gets_the_result_of_its_next_attempt():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await worker.fails("o-1")
        with pytest.raises(errors.WorkflowFailed):
            await handle.result(1)
        await engine.handle("o-1").retry()
        await worker.completes("o-1", b"7")

        assert await handle.result(1) == 7


@pytest.mark.parametrize("end", ["completes", "terminated", "open"])
async def test_what_has_not_failed_is_not_tried_again(end):
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        if end == "completes":
            await worker.completes("o-1")
        elif end == "terminated":
            await handle.terminate()
        with pytest.raises(
            errors.StoreError, match="has nothing to retry: it has not failed, is not parked and has no dead letters"
        ):
            await handle.retry()

        assert len((await engine.list()).instances) == 1


async def test_a_failed_run_whose_id_is_in_use_since_is_not_tried_again():
    async with workerless_engine() as (engine, worker):
        first = await engine.start("sell", id="o-1")
        await worker.fails("o-1")
        await engine.start("sell", id="o-1")
        with pytest.raises(errors.AlreadyExists, match="cannot be retried: its id has a newer execution"):
            await engine.handle("o-1", first.run_id).retry()

        assert len((await engine.list()).instances) == 2


async def test_one_that_is_not_there_is_not_tried_again():
    async with workerless_engine() as (engine, _):
        with pytest.raises(errors.NotFound, match="there is no workflow with id 'o-9'"):
            await engine.handle("o-9").retry()


async def test_state_is_read_without_the_code():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        await worker.does("o-1", events.StateSet(name="k", value=Raw(b"1"), **at(1)))

        assert (await handle.state("k"), await handle.state("other", 2)) == (1, 2)
        with pytest.raises(ValueError, match="state key must be a non-empty string, got 5"):
            await handle.state(5)
