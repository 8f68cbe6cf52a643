"""Workers: deadlines beside operations, leases and caches that are busy, threads that hang, and how it all ends."""

import asyncio
import gc
import threading

import pytest
from msgspec import Raw

from resurgam import Context, Engine, Registry, RetryPolicy, errors
from resurgam.core import event as events
from resurgam.store import records as r
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment, ManualClock
from support.limits import HANGS
from support.submitting import submit_by_commit, without_first_commits

TURNS = 40


async def turn():
    """Let everything run that can without time passing."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def advance(clock, seconds):
    """Let time pass, stopping wherever something is due."""
    target = clock.now() + round(seconds * 1000)
    await turn()
    while (due := clock.next_due()) is not None and due <= target:
        clock.move_to(due)
        await turn()
    clock.move_to(target)
    await turn()


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Timeouts and lost leases are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


# Turns that were kept for starts.


async def test_a_worker_whose_turns_were_all_kept_for_starts_looks_again_when_they_are_free():
    """It had gone to rest without looking for instances, since there was no turn for any."""
    registry = Registry()

    @registry.workflow
    async def fine(ctx: Context) -> str:
        return "fine"

    store = MemoryStore(ManualClock())
    async with (
        Engine(store, registry=registry, clock=store._clock) as engine,
        Engine(store, registry=registry, clock=store._clock, worker=False) as client,
    ):
        await turn()
        assert engine._worker.reserve(engine._options.max_instances) is not None
        handle = await client.start(fine)
        await turn()
        engine._worker.unreserve(engine._options.max_instances)
        await turn()
        assert (await handle.describe()).status == "completed"


# Deadlines beside an operation in flight.


class Operating:
    """A registry with workflows around an operation that goes on until it is let."""

    def __init__(self):
        self.registry = Registry()
        self.proceed = asyncio.Event()
        self.ended = []

        async def hang() -> int:
            try:
                await self.proceed.wait()
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
            self.ended.append("done")
            return 7

        @self.registry.workflow
        async def limited(ctx: Context) -> str:
            try:
                async with asyncio.timeout(5):
                    await ctx.run(hang)
            except TimeoutError:
                return "timed out"
            return "done"

        @self.registry.workflow
        async def beside(ctx: Context) -> list[float]:
            begun = ctx.now()
            operation = ctx.run(hang)
            await ctx.sleep(3)
            slept = (ctx.now() - begun).total_seconds()
            return [slept, await operation]

        @self.registry.workflow
        async def operate(ctx: Context) -> int:
            return await ctx.run(hang)

        @self.registry.workflow
        async def told(ctx: Context) -> str:
            ctx.run(hang)
            return await ctx.listen("go", type=str)

        @self.registry.workflow
        async def hello(ctx: Context) -> str:
            return "hello"


@pytest.mark.parametrize("cache", [0, 10])
async def test_a_timeout_fires_while_an_operation_is_in_flight(cache):
    """asyncio.timeout around ctx.run ends the wait at its moment and calls the operation off."""
    world = Operating()
    clock = ManualClock()
    async with Engine(registry=world.registry, clock=clock, lease=3600, grace=0, cache_size=cache) as engine:
        handle = await engine.start("limited")
        await advance(clock, 4.999)
        before = (await handle.describe()).status
        await advance(clock, 0.001)
        after = (await handle.describe()).status

        assert (before, after) == ("running", "completed")
        assert await handle.result() == "timed out"
        assert world.ended == ["cancelled"]


async def test_a_timer_fires_while_an_operation_is_in_flight():
    """A sleep beside an operation takes as long as it says, and not until the operation has ended."""
    world = Operating()
    clock = ManualClock()
    async with Engine(registry=world.registry, clock=clock, lease=3600, grace=0) as engine:
        handle = await engine.start("beside")
        await advance(clock, 3)
        fired = [entry.type for entry in await handle.history()]
        await advance(clock, 100)
        world.proceed.set()
        await turn()

        assert fired[-1] == "timer_fired"
        assert await handle.result() == [3.0, 7]


async def test_a_signal_is_heard_while_an_operation_is_in_flight():
    """What comes into the inbox of an instance that is held is delivered at once."""
    world = Operating()
    clock = ManualClock()
    async with Engine(registry=world.registry, clock=clock, lease=3600, grace=0) as engine:
        handle = await engine.start("told")
        await turn()
        await handle.signal("go", "now")
        await turn()

        assert (await handle.describe()).status == "completed"
        assert await handle.result() == "now"


async def test_a_hundred_workflows_that_wait_in_operations_do_not_block_the_worker():
    """A run that only waits takes no slot, so that the work its operations wait for can be done."""
    world = Operating()
    clock = ManualClock()
    async with Engine(registry=world.registry, clock=clock, lease=3600, grace=0) as engine:
        handles = [await engine.start("operate") for _ in range(150)]
        await turn()
        hello = await engine.start("hello")
        await turn()
        status = (await hello.describe()).status
        world.proceed.set()
        await turn()

        assert status == "completed"
        assert [await handle.result() for handle in handles] == [7] * 150


# Leases and the cache.


class SlowAnswer(MemoryStore):
    """A store whose first commit crosses a signal on its way, and takes some turns of the loop to be answered."""

    first = True

    def create(self, parts):
        """Start, with the first commit by itself."""
        return super().create(without_first_commits(parts))

    def submit(self, part, done):
        """Commit in a task: what is special happens there."""
        submit_by_commit(self.commit, part, done)

    async def commit(self, parts):
        """Commit; the first time a signal has come just before, and the answer comes late."""
        first, self.first = self.first, False
        if first:
            signal = events.SignalReceived(name="go", id="1", value=Raw(b"1"))
            await self.deliver([r.Delivery(event=signal, entity_id="x")])
        answers = await super().commit(parts)
        if first:
            await turn()
        return answers


@pytest.mark.parametrize("cache", [0, 10])
async def test_the_lease_of_the_next_turn_outlives_the_end_of_the_last(cache):
    """Leases of one instance are told apart by their epoch: the turn that ends drops its own."""
    registry = Registry()
    proceed = asyncio.Event()
    begun = []

    async def slow() -> None:
        begun.append(1)
        await proceed.wait()

    @registry.workflow
    async def operates(ctx: Context) -> int:
        await ctx.listen("go")
        await ctx.run(slow)
        return len(begun)

    clock = ManualClock()
    store = SlowAnswer(clock, lease=9000)
    async with Engine(store, registry=registry, clock=clock, lease=9, grace=0, cache_size=cache) as engine:
        handle = await engine.start(operates, id="x")
        await turn()
        await turn()
        kept = engine._worker._leases.all()
        await advance(clock, 60)
        proceed.set()
        await turn()

        assert len(kept) == 1
        assert await handle.result() == 1
        assert begun == [1]


async def test_a_cached_execution_that_is_replaced_is_closed():
    """Its clean-up runs then and there, and nothing it does counts; the garbage collector has no say in it."""
    registry = Registry()
    ended = []

    @registry.workflow
    async def listens(ctx: Context) -> str:
        try:
            await ctx.listen("go")
            await ctx.listen("go")
        finally:
            ended.append("put away" if ctx._recorder.verdict.reason is not None else "by itself")
        return "heard"

    clock = ManualClock()
    store = SlowAnswer(clock)
    async with Engine(store, registry=registry, clock=clock, grace=0) as engine:
        handle = await engine.start(listens, id="x")
        await turn()
        await turn()
        before = list(ended)
        gc.collect()
        collected = list(ended)
        await handle.signal("go")
        await turn()

        assert await handle.result() == "heard"
    gc.collect()
    # That of the start, whose first commit this store does not take, and the one that was replaced.
    assert before == collected == ["put away", "put away"]
    assert ended.count("by itself") == 1


@pytest.mark.parametrize("step", [5, 20, 45])
async def test_many_workflows_with_a_small_cache_and_short_leases_all_end(step, caplog):
    """Renewals that cross the end of a turn neither cancel it nor leave an execution in the cache that is closed."""
    caplog.set_level("WARNING", logger="resurgam")
    registry = Registry()

    @registry.activity
    async def echo(i: int) -> int:
        return i

    @registry.workflow
    async def count(ctx: Context, number: int) -> int:
        for i in range(10):
            await ctx.activity(echo, i)
        return number

    clock = ManualClock()
    async with Engine(registry=registry, clock=clock, lease=0.3, grace=0, cache_size=3) as engine:
        handles = [await engine.start(count, number) for number in range(60)]
        waiting = asyncio.ensure_future(asyncio.gather(*(handle.result() for handle in handles)))
        for _ in range(20_000):
            clock.move_to(clock.now() + step)
            await asyncio.sleep(0)
            if waiting.done():
                break
        cached = list(engine._worker._instances._cache._kept.values())

        assert waiting.done()
        assert await waiting == list(range(60))
        assert [execution.closed for execution in cached] == [False] * len(cached)
        assert len(cached) <= 3
        assert caplog.messages == []


async def test_a_renewal_that_crosses_the_releasing_commit_does_not_cancel_the_turn():
    """The lease is put down before the commit that ends it, so that its renewal is not taken for a loss."""
    registry = Registry()
    registry.workflow(Operating().registry.workflows.find("hello").function)
    clock = ManualClock()
    held = []

    class Watching(MemoryStore):
        def create(self, parts):
            """Start, with the first commit by itself."""
            return super().create(without_first_commits(parts))

        def submit(self, part, done):
            """Commit by `commit`."""
            submit_by_commit(self.commit, part, done)

        async def commit(self, parts):
            """Note what is being renewed while a commit that releases is under way."""
            held.append([len(engine._worker._leases.all()), parts[0].release])
            return await super().commit(parts)

    async with Engine(Watching(clock), registry=registry, clock=clock, grace=0) as engine:
        handle = await engine.start("hello")
        await turn()

        assert await handle.result() == "hello"
    assert held == [[0, True]]


# Time.


class TickingClock(ManualClock):
    """A clock that goes on by a millisecond whenever it is looked at, if it is let."""

    ticking = False

    def now(self):
        """Return the milliseconds since 1970."""
        if self.ticking:
            self._now += 1
        return self._now


@pytest.mark.parametrize("before", range(6))
async def test_a_deadline_that_comes_while_a_verb_runs_is_not_lost(before):
    """One verb sees one moment: a deadline is either before it or has its alarm set."""
    registry = Registry()

    @registry.workflow
    async def sleeps(ctx: Context) -> str:
        await ctx.sleep(0.05)
        return "awake"

    clock = TickingClock()
    async with Engine(registry=registry, clock=clock, lease=10, grace=0) as engine:
        handle = await engine.start(sleeps)
        await turn()
        deadline = next(entry.deadline for entry in await handle.history() if entry.type == "timer_started")
        clock.move_to(deadline - 10)
        clock._now = deadline - before
        clock.ticking = True
        await engine.store.extend([])
        clock.ticking = False
        await advance(clock, 0.02)

        assert (await handle.describe()).status == "completed"
        assert await handle.result() == "awake"


# Threads.


async def test_threads_that_ran_out_of_time_do_not_stand_in_the_way_of_others():
    """An attempt that cannot be stopped is left behind in its thread; a healthy activity gets a thread of its own."""
    registry = Registry()
    free = threading.Event()
    begun = []

    @registry.activity(timeout=5, retry=RetryPolicy(max_attempts=1))
    def hang() -> None:
        begun.append(1)
        free.wait(HANGS)

    @registry.activity
    def healthy() -> str:
        return "healthy"

    @registry.workflow
    async def hangs(ctx: Context) -> list[str]:
        found = await asyncio.gather(*(ctx.activity(hang) for _ in range(40)), return_exceptions=True)
        return sorted({str(error.__cause__) for error in found if isinstance(error, errors.ActivityFailed)})

    @registry.workflow
    async def asks(ctx: Context) -> str:
        return await ctx.activity(healthy)

    clock = ManualClock()
    try:
        async with Engine(registry=registry, clock=clock, lease=3600, grace=0, max_activities=40) as engine:
            handle = await engine.start(hangs)
            await advance(clock, 5)
            timed_out = await asyncio.wait_for(handle.result(), HANGS)
            result = await asyncio.wait_for(engine.execute(asks), HANGS)
    finally:
        free.set()

    assert len(begun) == 40
    assert timed_out == ["activity 'hang' ran longer than its timeout of 5 s"]
    assert result == "healthy"


# The end.


async def test_a_closed_engine_fails_its_waiters_and_callers():
    """No caller waits for ever on a closed store."""
    world = Operating()
    clock = ManualClock()
    engine = Engine(registry=world.registry, clock=clock, grace=0)
    async with engine:
        handle = await engine.start("told")
        waiting = asyncio.ensure_future(handle.result())
        await turn()

    with pytest.raises(errors.StoreError, match="closed while this waited"):
        await waiting
    for call in (handle.result, handle.describe, handle.cancel, lambda: handle.signal("go", "x")):
        with pytest.raises(errors.StoreError, match="the store is closed; open another engine"):
            await call()
    for call in (lambda: engine.start("told"), lambda: engine.execute("told"), engine.list):
        with pytest.raises(errors.StoreError, match="the engine is not open"):
            await call()
    with pytest.raises(errors.StoreError, match="the engine is not open"):
        engine.handle("x")


async def test_draining_takes_one_grace_for_workflows_and_activities_together(monkeypatch):
    """What is left of the grace when the workflows have had theirs is what the activities get."""
    registry = Registry()
    never = asyncio.Event()

    @registry.activity
    async def hang() -> None:
        await never.wait()

    @registry.workflow
    async def operates(ctx: Context) -> None:
        await ctx.run(never.wait, name="hang")

    @registry.workflow
    async def asks(ctx: Context) -> None:
        await ctx.activity(hang)

    now = 1000.0
    real_wait = asyncio.wait

    async def wait(tasks, *, timeout=None, return_when=asyncio.ALL_COMPLETED):
        """Wait in a time of its own, which passes only where a timeout is waited for in vain."""
        nonlocal now
        if timeout is None:
            return await real_wait(tasks, return_when=return_when)
        tasks = set(tasks)
        await turn()
        done = {task for task in tasks if task.done()}
        if done != tasks:
            now += timeout
        return done, tasks - done

    engine = Engine(registry=registry, clock=ManualClock(), grace=8)
    await engine.__aenter__()
    await engine.start(operates)
    await engine.start(asks)
    await turn()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "time", lambda: now)
        patched.setattr(asyncio, "wait", wait)
        await engine.__aexit__(None, None, None)

    assert now == 1008.0


async def test_what_ends_within_the_grace_is_waited_for():
    """An activity that is let go while the engine drains has its result written."""
    registry = Registry()
    proceed = asyncio.Event()

    @registry.activity
    async def slow() -> str:
        await proceed.wait()
        return "done"

    @registry.workflow
    async def asks(ctx: Context) -> str:
        return await ctx.activity(slow)

    clock = ManualClock()
    store = MemoryStore(clock)
    async with Engine(store, registry=registry, clock=clock, grace=30) as engine:
        await engine.start(asks, id="x")
        await turn()
        asyncio.get_running_loop().call_soon(proceed.set)
    async with Environment(store=store, clock=clock, registry=Registry(), worker=False) as env:
        waiting = (await store.inspector.stats()).queues["default"]
        assert (waiting.activities, waiting.claimed_activities, waiting.instances) == (0, 0, 0)
        assert await env.engine.handle("x").result() == "done"
