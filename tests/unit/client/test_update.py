"""Updates: their outcome is waited for, once, through whatever becomes of the execution meanwhile."""

import asyncio

import pytest
from msgspec import Raw

from resurgam import Status, errors
from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Forgotten
from support.manual_worker import FAILURE, workerless_engine


async def sending(worker, coroutine):
    """Begin to wait for an update, and let it be sent."""
    waiting = asyncio.ensure_future(coroutine)
    await worker.quiet()
    return waiting


def completed(ref, id, result=b"7"):
    return events.UpdateCompleted(ref=ref, id=id, result=Raw(result))


async def test_an_update_is_sent_with_its_arguments_and_its_result_comes_back():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        waiting = await sending(worker, handle.update("add", 1, {"a": [2]}, id="u-1"))
        claim = await worker.does("o-1", completed(2, "u-1", b'{"total": 3}'))

        [sent] = [entry.event for entry in claim.inbox]
        assert isinstance(sent, events.UpdateAccepted)
        assert (sent.name, sent.id, bytes(sent.input)) == ("add", "u-1", b'[1,{"a":[2]}]')
        assert await worker.soon(waiting) == {"total": 3}


async def test_the_same_id_again_returns_what_was_recorded_and_sends_nothing():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        waiting = await sending(worker, handle.update("add", id="u-1"))
        await worker.does("o-1", completed(2, "u-1"))
        await worker.soon(waiting)

        assert await handle.update("add", id="u-1") == 7
        assert list(await worker.claim()) == []
        await handle.terminate()
        assert await handle.update("add", id="u-1") == 7


async def test_an_update_repeated_while_its_handler_runs_waits_for_that_one():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        first = await sending(worker, handle.update("add", id="u-1"))
        await worker.does("o-1")
        second = await sending(worker, handle.update("add", id="u-1"))
        assert list(await worker.claim()) == []
        await handle.signal("go")
        await worker.does("o-1", completed(2, "u-1"))

        assert await worker.soon(asyncio.gather(first, second)) == [7, 7]


async def test_the_same_id_is_known_in_the_next_generation():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        waiting = await sending(worker, handle.update("add", id="u-1"))
        await worker.does("o-1", completed(2, "u-1"))
        await worker.soon(waiting)
        await handle.signal("go")
        await worker.continues("o-1", "run-two")

        assert await handle.update("add", id="u-1") == 7


@pytest.mark.parametrize("more", [True, False])
async def test_what_a_loop_has_forgotten_is_still_the_outcome(more):
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        waiting = await sending(worker, handle.update("add", id="u-1"))
        place = Location((0,), (1,))
        kept = [events.StateSet(name="k", location=Location((1,)), command="State(0)")] if more else []
        gone = (Forgotten(2, place), Forgotten(3, place))
        await worker.does("o-1", completed(2, "u-1"), *kept, forgotten=gone)

        assert await worker.soon(waiting) == 7
        assert await handle.update("add", id="u-1") == 7


@pytest.mark.parametrize("ref", [None, 2])
async def test_an_update_that_is_refused_raises_with_its_cause(ref):
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        waiting = await sending(worker, handle.update("add", id="u-1"))
        await worker.does("o-1", events.UpdateRejected(ref=ref, name="add", id="u-1", failure=FAILURE))
        with pytest.raises(errors.UpdateRejected) as found:
            await worker.soon(waiting)

        assert str(found.value) == "update 'add' was rejected: ValueError: no"
        assert isinstance(found.value.cause, ValueError)


async def test_an_update_that_was_not_begun_goes_on_in_the_next_generation():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        waiting = await sending(worker, handle.update("add", id="u-1"))
        await worker.continues("o-1", "run-two")
        await worker.quiet()
        await worker.does("o-1", completed(2, "u-1"))

        assert await worker.soon(waiting) == 7


async def test_an_update_finds_the_execution_that_has_begun_meanwhile():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        stale = await handle._instance()
        await worker.continues("o-1", "run-two")
        handle._store = _Stale(handle._store, stale)
        waiting = await sending(worker, handle.update("add", id=None))
        claim = await worker.take("o-1")

        assert [entry.event.name for entry in claim.inbox] == ["add"]
        waiting.cancel()


class _Stale:
    """A store whose first answer to get() is of a moment ago."""

    def __init__(self, store, stale):
        self._store, self._stale = store, [stale]

    async def get(self, entity_id, run_id=None, **which):
        return self._stale.pop() if self._stale else await self._store.inspector.get(entity_id, run_id, **which)

    def __getattr__(self, name):
        return getattr(self._store, name)


@pytest.mark.parametrize("begun", [True, False])
async def test_a_run_that_ends_before_the_handler_returned_is_an_error(begun):
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        waiting = await sending(worker, handle.update("add"))
        if begun:
            await worker.does("o-1", events.WorkflowCompleted(), status=Status.COMPLETED)
        else:
            await handle.terminate()
        what = "its handler returned" if begun else "its handler started"
        with pytest.raises(
            errors.NotFound, match=f"update 'add' has no result: workflow 'o-1' closed .* before {what}"
        ):
            await worker.soon(waiting)


async def test_a_run_that_is_purged_meanwhile_is_an_error():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        waiting = await sending(worker, handle.update("add", id="u-1"))
        await handle.terminate()
        await engine.store.purge([handle])
        with pytest.raises(
            errors.NotFound, match=r"the outcome of update 'add' \(id 'u-1'\) is no longer in the store"
        ):
            await worker.soon(waiting)


async def test_an_update_that_takes_too_long_says_how_to_wait_again():
    async with workerless_engine() as (engine, worker):
        handle = await engine.start("sell", id="o-1")
        waiting = await sending(worker, handle.update("add", id="u-1", timeout=5))
        await worker.pass_time(5000)
        with pytest.raises(errors.ResultTimeout, match="repeat it with id='u-1' to wait for it again"):
            await waiting


BAD = [
    (lambda e: e.handle("o-9").update("add"), errors.NotFound, "there is no workflow with id 'o-9'"),
    (lambda e: e.handle("ended").update("add"), errors.NotFound, "workflow 'ended' is closed (completed)"),
    (lambda e: e.handle("ended").update("add", id="u"), errors.NotFound, "workflow 'ended' is closed (completed)"),
    (lambda e: e.handle("o-1").update(""), ValueError, "update name must be a non-empty string, got ''"),
    (lambda e: e.handle("o-1").update(5), ValueError, "update name must be a non-empty string, got 5"),
    (lambda e: e.handle("o-1").update("add", id=5), ValueError, "update id must be a non-empty string, got 5"),
    (
        lambda e: e.handle("o-1").update("add", timeout="x"),
        ValueError,
        "a duration must be seconds or a timedelta, got 'x'",
    ),
    (
        lambda e: e.handle("o-1").update("add", 1, object()),
        errors.SerializationError,
        "arguments of update 'add'[1]: values of type object cannot be written",
    ),
    (
        lambda e: e.handle("o-1").update("add", "x" * 200),
        errors.PayloadTooLarge,
        "arguments of update 'add': 204 bytes exceed the limit of 100",
    ),
]


@pytest.mark.parametrize(("call", "kind", "text"), BAD, ids=[f"{n} {text[:30]}" for n, (*_, text) in enumerate(BAD)])
async def test_an_update_that_makes_no_sense_changes_nothing(call, kind, text):
    async with workerless_engine(max_payload=100) as (engine, worker):
        await engine.start("sell", id="ended")
        await worker.completes("ended")
        await engine.start("sell", id="o-1")
        with pytest.raises(kind) as found:
            await call(engine)

        assert text in str(found.value)
        assert (await worker.take("o-1")).inbox == ()
