"""What the tests of the original engine of entities and executions assert, C01 to C45: where each is shown here.

=====  ==============================================  ================================================================
       behaviour                                       where (``E`` and named cases: the contract for engines)
=====  ==============================================  ================================================================
C01    a root runs, ids, outputs                       E01; test_an_execution_says_who_it_is
C02    a crash has failed, with its stack              here
C03    fails once, is tried again                      test_a_retry_is_another_execution_of_the_same_run
C04    the outputs of an activity                      E02
C05    one entity, two executions                      T1; the row "activity entity"
C06    the crash of an activity                        test_an_activity_that_crashes_is_a_failure
C07    cancel reaches an activity at work              here
C08    a pause during four activities                  here
C09    failed, paused, resumed                         T10
C10    a side effect is stable                         E08
C11    a side effect that fails, tried again           here
C12    a side effect and a retry                       the row "side effect scope": it is run again
C13    a saga that succeeds                            test_a_saga_that_succeeds_takes_nothing_back
C14    a saga that fails at the second step            test_a_saga_that_fails_takes_back_what_it_did
C15    the crash of a step                             the same
C16    the crash of a compensation                     test_a_compensation_that_fails_is_left_visibly; the rest goes on
C17    compensation by hand                            `Handle.compensate` does not exist yet
C18    a completed saga and a retry                    test_saga_steps_are_carried_over_unless_they_were_taken_back
C19    steps as objects or functions                   not here: steps are activities, sync or async
C20    a child, its ids                                E10; test_a_child_says_whose_it_is
C21    the error of a child                            test_a_failed_child_is_an_error_that_its_parent_can_handle
C22    the retries of a child                          test_the_retries_of_a_child_are_its_own
C23    the crash of a child                            here
C24    continue-as-new                                 test_a_continuation_is_another_run_of_the_same_entity
C25    one signal received twice                       not here: a signal is taken once
C26    paused while waiting for a signal               here
C27    a signal to a paused workflow                   here
C28    a crash after a signal                          here
C29    a version stays after a resume                  T8; the suite of gates
C30    versions that are overridden                    not here: the history decides
C31    versions are kept                               T8
C32    results of all kinds                            here
C33    a child on another queue                        the row "cross-queue child"
C34    its failure                                     here
C35    paused before the call, exactly one child       T6
C36    prepared and executed later                     test_a_deferred_child_waits_until_somebody_begins_it
C37    paused and resumed with children                here
C38    saved while paused, loaded elsewhere            T13
C39    stored outputs are read                         E01
C40    a hundred deferred children                     test_a_hundred_deferred_children
C41    ten deferred, few hands                         the same
C42    a thousand workflows at once                    here
C43    a hundred runs, pages, removal                  E32; here
C44    workers come and go                             here
C45    everything at once                              `StoreContract`; test_of_two_starts_at_once_one_is_refused
=====  ==============================================  ================================================================
"""

import asyncio

import pytest

from resurgam import Context, Registry, activity
from resurgam.core.state import Status
from resurgam.errors import ChildWorkflowFailed, WorkflowFailed
from resurgam.store.memory.store import MemoryStore
from resurgam.store.records import Purged
from resurgam.testing import Environment, ManualClock
from vectors.environments import EVERYWHERE, TWICE, Life, executions, run


@pytest.fixture(params=EVERYWHERE)
def life(request):
    return Life(*request.param)


def crash():
    empty = []
    return empty[1]


async def test_c02_a_crash_has_failed_with_its_stack(life):
    registry = Registry()

    @registry.workflow
    async def work(_ctx: Context) -> None:
        crash()

    async with life.world(registry) as env:
        handle = await env.start(work)
        [failed] = [entry for entry in await handle.history() if entry.type == "workflow_failed"]
    assert "IndexError" in failed.failure.type
    assert "in crash" in failed.failure.traceback


async def test_c07_cancel_reaches_an_activity_at_work(life):
    registry = Registry()
    seen = []

    @registry.activity(heartbeat_timeout=60)
    async def act() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append(activity.cancelled())
            raise

    @registry.workflow
    async def work(ctx: Context) -> None:
        await ctx.activity(act)

    async with life.world(registry) as env:
        handle = await env.start(work)
        await handle.cancel()
        await env.settle()
        assert (await handle.describe()).status is Status.CANCELLED
        assert len(await executions(env, handle.entity_id)) == 1
    assert seen == [True]


async def test_c08_a_pause_during_four_activities(life):
    """Each is run once, whenever the pause comes."""
    for stop in range(4):
        registry, ran = Registry(), []
        at_work, go = asyncio.Event(), asyncio.Event()

        @registry.activity
        async def act(number: int, stop=stop, ran=ran, at_work=at_work, go=go) -> int:
            ran.append(number)
            if number == stop:
                at_work.set()
                await go.wait()
            return number

        @registry.workflow
        async def work(ctx: Context, act=act) -> list[int]:
            return [await ctx.activity(act, number) for number in range(4)]

        async with life.world(registry) as env:
            handle = await env.start(work)
            assert at_work.is_set()
            await handle.pause()
            await env.settle()
            go.set()
            await env.advance(60)
            assert (await handle.describe()).status is Status.PAUSED
            await handle.resume()
            assert await env.finish(handle.result()) == [0, 1, 2, 3]
        assert ran == [0, 1, 2, 3]


async def test_c11_a_side_effect_that_fails_is_run_again_by_the_next_attempt(life):
    registry, ran = Registry(), []

    def effect():
        ran.append(1)
        crash()

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context) -> None:
        await ctx.run(effect)

    async with life.world(registry) as env:
        with pytest.raises(WorkflowFailed, match="IndexError"):
            await run(env, work, id="me")
        found = await executions(env, "me")
    assert [(one.instance.attempt, one.instance.status) for one in found] == [(1, Status.FAILED), (2, Status.FAILED)]
    assert len(ran) == 2


@pytest.mark.parametrize("queue", [None, "far"], ids=["same queue", "other queue"])
@pytest.mark.parametrize("how", ["error", "crash"])
async def test_c23_c34_a_child_that_fails_or_crashes_fails_its_parent(life, how, queue):
    registry = Registry()

    @registry.workflow(retry=TWICE)
    async def child(_ctx: Context) -> None:
        if how == "crash":
            crash()
        raise LookupError("no")

    @registry.workflow
    async def parent(ctx: Context) -> None:
        await ctx.workflow(child, id="child", queue=queue)

    async with life.world(registry, queues=["default", "far"]) as env:
        with pytest.raises(WorkflowFailed) as caught:
            await run(env, parent)
        assert isinstance(caught.value.__cause__, ChildWorkflowFailed)
        assert isinstance(caught.value.__cause__.__cause__, LookupError)
        assert [one.instance.attempt for one in await executions(env, "child")] == [1, 2]


async def test_c26_c27_c28_signals_around_a_pause_and_a_crash(life):
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context) -> None:
        assert await ctx.listen("word") == "while paused"
        crash()

    async with life.world(registry) as env:
        handle = await env.start(work)
        await handle.pause()
        await handle.signal("word", "while paused")
        await env.advance(60)
        assert (await handle.describe()).status is Status.PAUSED
        await handle.resume()
        with pytest.raises(WorkflowFailed, match="IndexError"):
            await env.finish(handle.result())
        told = [entry.type for entry in await handle.history()]
    assert (told.count("listen_started"), told.count("signals_consumed")) == (1, 1)


async def test_c32_results_of_all_kinds_are_what_was_written(life):
    registry = Registry()

    @registry.activity
    async def act() -> tuple[int, str, list[float]]:
        return 1, "two", [3.0]

    @registry.activity
    async def book(trip: dict[str, int]) -> dict[str, int]:
        return trip

    @registry.workflow
    async def leaf(ctx: Context) -> tuple[int, str, list[float]]:
        return await ctx.activity(act)

    @registry.workflow
    async def child(ctx: Context) -> list[object]:
        return [await ctx.workflow(leaf)]

    @registry.workflow
    async def work(ctx: Context) -> list[object]:
        async with ctx.saga() as saga:
            booked = await saga.step(book, {"a": 1})
        effect = await ctx.run(lambda: {"x": [None, True]}, name="effect")
        return [await ctx.activity(act), effect, await ctx.workflow(child), booked, await ctx.listen("word")]

    async with life.world(registry) as env:
        handle = await env.start(work)
        await handle.signal("word", {"deep": [1, {"er": None}]})
        assert await env.finish(handle.result()) == [
            [1, "two", [3.0]],
            {"x": [None, True]},
            [[1, "two", [3.0]]],
            {"a": 1},
            {"deep": [1, {"er": None}]},
        ]


@pytest.mark.parametrize("how", ["ok", "error", "crash"])
async def test_c37_a_tree_that_was_paused_ends_as_it_would_have(life, how):
    registry = Registry()

    @registry.activity(retry=TWICE)
    async def act() -> str:
        return "done"

    @registry.workflow
    async def child(ctx: Context) -> str:
        got = await ctx.activity(act)
        await ctx.listen("go")
        if how == "error":
            raise LookupError("no")
        if how == "crash":
            crash()
        return got

    @registry.workflow
    async def parent(ctx: Context) -> str:
        return await ctx.workflow(child, id="child")

    async with life.world(registry) as env:
        handle = await env.start(parent)
        await handle.pause(tree=True)
        await env.engine.handle("child").signal("go")
        await env.advance(60)
        await handle.resume()
        await env.settle()
        ended = (await handle.describe()).status, (await env.engine.handle("child").describe()).status
    assert set(ended) == {Status.COMPLETED if how == "ok" else Status.FAILED}


async def test_c42_a_thousand_workflows_at_once():
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context, number: int) -> int:
        await ctx.sleep(1)
        return number

    async with Environment(registry=registry) as env:
        handles = [await env.engine.start(work, number) for number in range(1000)]
        await env.advance(2)
        assert [await handle.result() for handle in handles] == list(range(1000))


async def test_c43_runs_are_listed_in_pages_and_removed_by_status(life):
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context, number: int) -> None:
        if number % 2:
            await ctx.sleep(3600)

    async with life.world(registry) as env:
        for number in range(20):
            await env.engine.start(work, number)
        await env.settle()
        done = await env.engine.list(status="completed", limit=6)
        rest = await env.engine.list(status="completed", limit=6, cursor=done.cursor)
        ids = [one.execution_id for one in (*done.instances, *rest.instances)]
        assert len(set(ids)) == 10
        assert await env.engine.store.purge(ids) == [Purged()] * 10
        assert (await env.engine.list(status="completed")).instances == ()
        assert len((await env.engine.list()).instances) == 10


async def test_c44_workers_come_and_go():
    """Two, four, none, one: what was begun is ended, once."""
    registry, clock, ran = Registry(), ManualClock(), []
    store = MemoryStore(clock, lease=10_000)

    @registry.activity
    async def act(number: int) -> int:
        ran.append(number)
        return number

    @registry.workflow
    async def work(ctx: Context, number: int) -> int:
        await ctx.listen("go")
        return await ctx.activity(act, number)

    def worker():
        return Environment(store=store, registry=registry, clock=clock)

    async with Environment(store=store, registry=registry, clock=clock, worker=False) as client:
        handles = [await client.engine.start(work, number) for number in range(30)]
        for scale in (2, 4, 0, 1):
            workers = [worker() for _ in range(scale)]
            for one in workers:
                await one.__aenter__()
            for handle in handles[scale * 7 : scale * 7 + 7]:
                await handle.signal("go")
            for one in workers:
                await one.settle()
            for one in workers:
                await one.__aexit__(None, None, None)
        for handle in handles:
            if not (await handle.describe()).status.terminal:
                await handle.signal("go")
        async with worker() as last:
            await last.settle()
            assert [await handle.result() for handle in handles] == list(range(30))
    assert sorted(ran) == list(range(30))
