"""Defects of the original engine of entities and executions, T1 to T14, each as a test named after it.

====  ==========================================================  ====================================================
      defect                                                      where
====  ==========================================================  ====================================================
T1    an activity that had failed once is run again by a retry    test_t1…
T2    ids of different kinds overlap, and are mixed up            test_t2…
T3    a completed saga is executed again after a pause            test_t3…
T4    a child receives its parent's saga                          test_t4…
T5    a signal goes to whoever waited last for its name           test_t5…
T6    a child on another queue is begun again by each retry       test_t6…
T7    a parent with a deferred child cannot be run again          test_t7…
T8    versions are inherited by nobody                            test_t8…, and the row "CAN: versions"
T9    status lies                                                 test_t9…
T10   the count of attempts begins anew after a pause             test_t10…
T11   a child or a continuation waits for a free worker for ever  test_t11…
T12   resume waits for a flag that nobody sets                    test_t12…
T13   what cannot be written or found surfaces only at resume     test_t13…
T14   a crash between a result and its status runs it again       test_t14…
====  ==========================================================  ====================================================
"""

import asyncio

import pytest

from resurgam import Context, Registry, RetryPolicy, activity
from resurgam.core.state import Status
from resurgam.errors import SerializationError, SignalTimeout, WorkflowFailed
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment, ManualClock
from vectors.environments import EVERYWHERE, ONCE, TWICE, Life, executions, run


@pytest.fixture(params=EVERYWHERE)
def life(request):
    return Life(*request.param)


async def test_t1_an_activity_that_had_failed_once_is_not_run_again_by_a_retry(life):
    registry = Registry()
    ran = []

    @registry.activity(retry=RetryPolicy(max_attempts=3, initial_interval=1, jitter=0))
    async def act() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise LookupError("the first time")
        return len(ran)

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context) -> int:
        got = await ctx.activity(act)
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return got

    async with life.world(registry) as env:
        assert await run(env, work) == 2
    assert len(ran) == 2


async def test_t2_what_stands_at_one_place_is_not_taken_for_something_of_another_kind(life):
    """The next attempt asks for a child, or a promise, of the same name and input where an activity was."""
    registry = Registry()

    @registry.activity(name="same")
    async def act(_number: int) -> str:
        return "activity"

    @registry.workflow(name="same")
    async def child(_ctx: Context, _number: int) -> str:
        return "child"

    @registry.workflow(retry=RetryPolicy(max_attempts=3, initial_interval=1, jitter=0))
    async def work(ctx: Context) -> list[str]:
        match ctx.info.attempt:
            case 1:
                await ctx.activity(act, 1)
                raise LookupError("after the activity")
            case 2:
                got = await ctx.workflow(child, 1)
                assert got == "child"
                raise LookupError("after the child")
        return [await ctx.activity(act, 1)]

    async with life.world(registry) as env:
        assert await run(env, work) == ["activity"]


def trip(registry, ran, *, child=False):
    @registry.activity
    async def book(what: str) -> str:
        ran.append(what)
        return what

    @registry.activity
    async def unbook(what: str) -> None:
        ran.append(f"un{what}")

    return book, unbook


async def test_t3_a_completed_saga_is_not_executed_again_after_a_pause(life):
    registry, ran = Registry(), []
    book, unbook = trip(registry, ran)

    @registry.workflow
    async def work(ctx: Context) -> str:
        async with ctx.saga() as saga:
            got = await saga.step(book, "hotel", undo=unbook)
        await ctx.listen("go")
        return got

    async with life.world(registry) as env:
        handle = await env.start(work)
        await handle.pause()
        await env.advance(60)
        await handle.resume()
        await handle.signal("go")
        assert await env.finish(handle.result()) == "hotel"
    assert ran == ["hotel"]


async def test_t4_a_child_has_a_saga_of_its_own(life):
    registry, ran = Registry(), []
    book, unbook = trip(registry, ran)

    @registry.workflow
    async def child(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(book, "same", undo=unbook)
            raise LookupError("only mine is taken back")

    @registry.workflow
    async def parent(ctx: Context) -> list[str]:
        async with ctx.saga() as saga:
            got = await saga.step(book, "same", undo=unbook)
            below = await asyncio.gather(ctx.workflow(child), return_exceptions=True)
        return [got, type(below[0]).__name__]

    async with life.world(registry) as env:
        assert await run(env, parent) == ["same", "ChildWorkflowFailed"]
    assert ran == ["same", "same", "unsame"]


async def test_t5_a_signal_goes_to_the_workflow_it_was_sent_to(life):
    """However many wait for its name; a waiter that gave up swallows nothing, and what comes early is kept."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context) -> str:
        try:
            await ctx.listen("word", timeout=10)
        except SignalTimeout:
            await ctx.sleep(10)
        return await ctx.listen("word", type=str)

    async with life.world(registry) as env:
        handles = [await env.start(work, id=f"w{number}") for number in range(3)]
        await env.advance(15)
        for number in (0, 2, 1):
            await env.engine.handle(f"w{number}").signal("word", f"for {number}")
        assert [await env.finish(one.result()) for one in handles] == ["for 0", "for 1", "for 2"]


async def test_t6_a_child_on_another_queue_is_begun_once(life):
    registry = Registry()
    ran = []

    @registry.workflow
    async def child(ctx: Context) -> str:
        ran.append(ctx.info.execution_id)
        await ctx.sleep(30)
        return "child"

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context) -> str:
        begun = ctx.workflow(child, id="child", queue="far")
        await begun.started
        if ctx.info.attempt == 1:
            raise LookupError("once")
        await ctx.listen("go")
        return await begun

    async with life.world(registry, queues=["default", "far"]) as env:
        handle = await env.start(parent)
        await env.advance(20)
        await handle.pause()
        await env.advance(60)
        await handle.resume()
        await handle.signal("go")
        assert await env.finish(handle.result()) == "child"
        assert len(await executions(env, "child")) == 1
    assert len(set(ran)) == 1


async def test_t7_a_parent_with_a_deferred_child_that_nobody_began_is_tried_again(life):
    registry = Registry()

    @registry.workflow
    async def child(_ctx: Context) -> str:
        return "begun"

    @registry.workflow(retry=TWICE)
    async def parent(ctx: Context) -> str:
        later = ctx.workflow(child, id="later", deferred=True)
        await later.started
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return await later

    async with life.world(registry) as env:
        handle = await env.start(parent)
        await env.advance(60)
        assert (await handle.describe()).attempt == 2
        await env.engine.handle("later").begin()
        assert await env.finish(handle.result()) == "begun"
        assert len(await executions(env, "later")) == 1


async def test_t8_every_history_has_its_own_versions(life):
    """A parent that is older than a check keeps its answer; its child, which begins now, has the new one."""
    old, new = Registry(), Registry()

    @old.workflow(name="parent")
    async def before(ctx: Context) -> list[int]:
        await ctx.sleep(60)
        return []

    @new.workflow
    async def child(ctx: Context) -> int:
        return await ctx.check_version(2)

    @new.workflow(name="parent")
    async def after(ctx: Context) -> list[int]:
        mine = await ctx.check_version(2)
        await ctx.sleep(60)
        return [mine, await ctx.workflow(child)]

    clock = ManualClock()
    async with life.world(old, clock=clock) as env:
        await env.start("parent", id="me")
        exported = await env.engine.export("me")
    async with life.world(new, clock=clock) as env:
        await env.engine.import_(exported)
        assert await env.finish(env.engine.handle("me").result()) == [1, 2]


async def test_t9_the_status_is_the_truth(life):
    """Running while it runs; continued is not completed; a continuation that fails has failed."""
    registry = Registry()
    seen = []

    async with life.world(registry) as env:

        @env.engine._registry.activity
        async def look(entity_id: str) -> None:
            seen.append((await env.engine.handle(entity_id).describe()).status)

        @env.engine._registry.workflow
        async def work(ctx: Context, number: int) -> None:
            await ctx.activity(look, ctx.info.entity_id)
            if number == 1:
                ctx.continue_as_new(2)
            raise LookupError("the continuation fails")

        handle = await env.start(work, 1, id="me", delay=10)
        assert (await handle.describe()).status is Status.SCHEDULED
        with pytest.raises(WorkflowFailed, match="the continuation fails"):
            await env.finish(handle.result())
        assert [one.instance.status for one in await executions(env, "me")] == [Status.CONTINUED, Status.FAILED]
    assert seen == [Status.RUNNING, Status.RUNNING]


async def test_t10_attempts_are_counted_through_pauses_and_restarts(life):
    """C09, too: failed, paused, resumed; and the budget is spent once."""
    registry = Registry()
    ran = []

    @registry.workflow(retry=RetryPolicy(max_attempts=3, initial_interval=10, backoff=1, jitter=0))
    async def work(ctx: Context) -> None:
        ran.append(ctx.info.attempt)
        await ctx.sleep(1)
        raise LookupError(f"attempt {ctx.info.attempt}")

    async with life.world(registry) as env:
        handle = await env.start(work, id="me")
        for _ in range(3):
            await env.advance(5)
            if (await handle.describe()).status.terminal:
                break
            await handle.pause()
            await env.advance(60)
            await handle.resume()
        with pytest.raises(WorkflowFailed, match="attempt 3"):
            await env.finish(handle.result())
        assert [one.instance.attempt for one in await executions(env, "me")] == [1, 2, 3]
        assert handle.execution_id == (await executions(env, "me"))[-1].instance.execution_id
    assert list(dict.fromkeys(ran)) == [1, 2, 3]


async def test_t11_nobody_waits_for_a_free_worker_while_holding_one(life):
    """One worker with one hand: parents, children on two queues and continuations all come to their end."""
    registry = Registry()

    @registry.activity
    async def act(number: int) -> int:
        return number

    @registry.workflow
    async def child(ctx: Context, number: int, generation: int) -> int:
        got = await ctx.activity(act, number)
        if generation < 3:
            ctx.continue_as_new(number, generation + 1)
        return got

    @registry.workflow
    async def parent(ctx: Context, number: int) -> int:
        near, far = ctx.workflow(child, number, 1), ctx.workflow(child, number, 1, queue="far")
        return await near + await far

    async with life.world(registry, queues=["default", "far"], max_activities=1) as env:
        handles = [await env.engine.start(parent, number) for number in range(20)]
        assert [await env.finish(one.result()) for one in handles] == [2 * number for number in range(20)]


async def test_t12_resume_waits_for_nobody():
    """Without any worker it is said and done; the next worker goes on."""
    registry, clock = Registry(), ManualClock()

    @registry.workflow
    async def work(ctx: Context) -> str:
        return await ctx.listen("word", type=str)

    store = MemoryStore(clock, lease=10_000)
    async with Environment(store=store, registry=registry, clock=clock, worker=False) as client:
        handle = await client.engine.start(work)
        await handle.pause()
        await asyncio.wait_for(handle.resume(), 1)
        await handle.signal("word", "resumed")
        assert (await handle.describe()).status is Status.RUNNING
        async with Environment(store=store, registry=registry, clock=clock) as env:
            assert await env.finish(handle.result()) == "resumed"


async def test_t13_what_cannot_be_written_is_refused_when_it_is_registered():
    registry = Registry()
    with pytest.raises(SerializationError, match="parameter '_lock'"):

        @registry.workflow
        async def work(_ctx: Context, _lock: asyncio.Lock) -> None: ...


async def test_t13_a_workflow_is_found_by_its_name_wherever_its_function_stands(life):
    before, after = Registry(), Registry()

    @before.workflow(name="billing")
    async def old_place(ctx: Context) -> str:
        await ctx.sleep(60)
        return "old"

    @after.workflow(name="billing")
    async def moved_and_renamed(ctx: Context) -> str:
        await ctx.sleep(60)
        return "new"

    clock = ManualClock()
    async with life.world(before, clock=clock) as env:
        handle = await env.start("billing", id="me")
        await handle.pause()
        exported = await env.engine.export("me")
    async with life.world(after, clock=clock) as env:
        await env.engine.import_(exported)
        handle = env.engine.handle("me")
        assert (await handle.describe()).status is Status.PAUSED
        await handle.resume()
        assert await env.finish(handle.result()) == "new"


async def test_t14_a_result_is_recorded_whole_or_not_at_all(life):
    """Its worker gave it to the store and nobody was there to take it: whoever comes next uses it."""
    registry, clock = Registry(), ManualClock()
    ran = []

    @registry.activity(retry=ONCE)
    async def act() -> str:
        ran.append(activity.info().execution_id)
        return "done"

    @registry.workflow
    async def work(ctx: Context) -> list[str]:
        first = await ctx.activity(act.options(queue="far"))
        return [first, await ctx.activity(act.options(queue="far"))]

    async with life.world(registry, clock=clock, queues=["default"]) as env:
        handle = await env.start(work)
        store = env.engine.store
        async with Environment(store=store, registry=registry, clock=clock, queues=["far"]) as far:
            for _ in range(3):
                await far.settle()
                await env.settle()
            assert await env.finish(handle.result()) == ["done", "done"]
    assert len(ran) == len(set(ran)) == 2
