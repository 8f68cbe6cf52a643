"""Heartbeats: attempts report their progress, and learn that their result is no longer wanted."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.testing.contract.bench import LEASE
from support.engines import Engines, run, types_of
from support.limits import HANGS

ONCE = RetryPolicy(max_attempts=1)
TWICE = RetryPolicy(max_attempts=2, initial_interval=1)


class Post:
    """Lets a thread and the case wait for each other, without either of them sleeping."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Queue[Any] = asyncio.Queue()
        self.gate = threading.Event()

    def tell(self, word: object) -> None:
        """Say something, from any thread."""
        self._loop.call_soon_threadsafe(self._told.put_nowait, word)

    async def heard(self) -> Any:
        """Wait for what is said next."""
        async with asyncio.timeout(HANGS):
            return await self._told.get()

    def spin(self) -> None:
        """Execute Python code until it is interrupted, and let others execute some in between."""
        self.tell("begun")
        try:
            while not self.gate.wait(0.001):
                pass
        except asyncio.CancelledError:
            self.tell("interrupted")
            raise


async def test_a_heartbeat_in_time_keeps_an_attempt_alive(engines: Engines) -> None:
    """However long it takes, as long as it says something; details and all."""
    registry = Registry()
    beats: asyncio.Queue[str] = asyncio.Queue()

    @registry.activity(heartbeat_timeout=5, retry=ONCE)
    async def long() -> str:
        while await beats.get() == "beat":
            registry.activity.heartbeat()
        return "done"

    @registry.workflow
    async def wait(ctx: Context) -> str:
        return await ctx.activity(long)

    async with engines.open(registry) as env:
        handle = await env.start(wait)
        for _ in range(6):
            await env.advance(4.999)
            beats.put_nowait("beat")
            await env.settle()
        beats.put_nowait("end")
        assert await env.finish(handle.result()) == "done"


async def test_an_attempt_that_says_nothing_fails(engines: Engines) -> None:
    """One moment too late is too late: it is cancelled, fails with TimeoutError, and is tried again."""
    registry = Registry()
    told: list[Any] = []

    @registry.activity(heartbeat_timeout=5, retry=TWICE)
    async def hangs() -> str:
        if registry.activity.info().attempt == 2:
            return "second time"
        registry.activity.heartbeat()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append(registry.activity.cancelled())
            raise
        return "never"

    @registry.workflow
    async def wait(ctx: Context) -> str:
        return await ctx.activity(hangs)

    async with engines.open(registry) as env:
        handle = await env.start(wait)
        await env.advance(4.999)
        assert told == []
        await env.advance(0.001)
        assert told == [True]
        assert await env.finish(handle.result()) == "second time"
        [retry] = [e for e in await handle.history() if isinstance(e, events.ActivityRetryScheduled)]
        assert retry.failure.type == "builtins.TimeoutError"
        assert retry.failure.message == "activity 'hangs' sent no heartbeat for 5 s, its heartbeat timeout"


async def test_a_thread_that_says_nothing_fails_and_is_interrupted(engines: Engines) -> None:
    """As does one that takes too long."""
    registry = Registry()
    post = Post()

    @registry.activity(retry=ONCE)
    def spins() -> None:
        post.spin()

    @registry.workflow
    async def wait(ctx: Context, limit: str) -> str:
        limited = spins.options(timeout=5) if limit == "timeout" else spins.options(heartbeat_timeout=5)
        try:
            await ctx.activity(limited)
        except errors.ActivityFailed as failed:
            return str(failed.cause)
        return "never"

    async with engines.open(registry) as env:
        for limit, said in (("timeout", "ran longer than its timeout"), ("heartbeat", "sent no heartbeat")):
            handle = await env.start(wait, limit)
            assert await post.heard() == "begun"
            await env.advance(4.999)
            assert (await handle.describe()).status is Status.RUNNING
            await env.advance(0.001)
            assert await post.heard() == "interrupted"
            assert said in await env.finish(handle.result())


async def test_the_next_attempt_knows_how_far_the_last_one_came(engines: Engines) -> None:
    """Details of a failed attempt reach the next one, and stay until another one tells something."""
    registry = Registry()
    seen: list[Any] = []

    @registry.activity(retry=RetryPolicy(max_attempts=4, initial_interval=1))
    async def copy() -> None:
        info = registry.activity.info()
        seen.append(info.details)
        if info.attempt == 1:
            registry.activity.heartbeat({"row": 1})
            registry.activity.heartbeat({"row": 2})
            registry.activity.heartbeat()
        if info.attempt == 3:
            registry.activity.heartbeat([3])
        if info.attempt < 4:
            raise ValueError(info.attempt)

    @registry.workflow
    async def insist(ctx: Context) -> None:
        await ctx.activity(copy)
        await ctx.activity(copy.options(retry=ONCE))

    async with engines.open(registry) as env:
        handle = await env.start(insist)
        await env.advance(60)
        # The second activity is another one, and knows nothing of the first.
        assert seen == [None, {"row": 2}, {"row": 2}, [3], None]
        assert (await handle.describe()).status is Status.FAILED


async def test_details_survive_a_worker_that_is_lost(engines: Engines) -> None:
    """They are kept when the lease is renewed: the attempt that is handed out again finds what was told by then."""
    registry = Registry()
    gate = asyncio.Event()
    seen: list[Any] = []

    @registry.activity
    async def copy() -> str:
        info = registry.activity.info()
        seen.append((info.attempt, info.idempotency_key, info.details))
        if info.details is not None:
            return "done"
        registry.activity.heartbeat("half")
        await gate.wait()
        return "too late"

    @registry.workflow
    async def insist(ctx: Context) -> str:
        return await ctx.activity(copy)

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(insist)
        async with engines.serve(store, clock, registry, lease=3) as first:
            await first.advance(1)
            # From here on it does not renew any more, as if it were dead.
            assert first.engine._worker is not None
            first.engine._worker._leases.stop()
            clock.move_to(clock.now() + LEASE)
            async with engines.serve(store, clock, registry) as second:
                assert await second.finish(handle.result()) == "done"
            gate.set()
        [one, other] = seen
        assert (one[2], other[2]) == (None, "half")
        assert one[:2] == other[:2]


async def test_details_survive_a_worker_that_stops(engines: Engines) -> None:
    """What is given back at the end of the grace has what was told last, renewed or not."""
    registry = Registry()
    seen: list[Any] = []

    @registry.activity
    async def copy() -> str:
        seen.append(registry.activity.info().details)
        if seen[-1] is not None:
            return "done"
        registry.activity.heartbeat("half")
        await asyncio.Event().wait()
        return "never"

    @registry.workflow
    async def insist(ctx: Context) -> str:
        return await ctx.activity(copy)

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(insist)
        async with engines.serve(store, clock, registry, grace=0) as first:
            await first.settle()
        async with engines.serve(store, clock, registry) as second:
            assert await second.finish(handle.result()) == "done"
        assert seen == [None, "half"]
        assert "activity_retry_scheduled" not in await types_of(handle)


async def test_details_that_cannot_be_written_are_an_error_of_the_attempt(engines: Engines) -> None:
    """Where they are told, and a final one: they could not be written next time."""
    registry = Registry()

    @registry.activity(retry=TWICE)
    def tells() -> str:
        try:
            registry.activity.heartbeat({"file": object()})
        except errors.SerializationError as error:
            return str(error)
        return "nothing happened"

    @registry.workflow
    async def ask(ctx: Context) -> str:
        return await ctx.activity(tells)

    async with engines.open(registry) as env:
        assert "heartbeat of activity 'tells'['file']" in await run(env, ask)


async def test_a_cancelled_async_attempt_knows_it(engines: Engines) -> None:
    """It is cancelled where it waits; if it goes on all the same, every heartbeat says so again."""
    registry = Registry()
    told: list[Any] = []

    @registry.activity
    async def stubborn() -> str:
        told.append(registry.activity.cancelled())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append(registry.activity.cancelled())
        for _ in range(2):
            try:
                registry.activity.heartbeat()
            except asyncio.CancelledError:
                told.append("again")
        return "not delivered"

    calls = _calling_off(registry, stubborn)
    async with engines.open(registry) as env:
        handle = await env.start(calls)
        await handle.signal("stop", "enough")
        assert await env.finish(handle.result()) == "called off"
        assert told == [False, True, "again", "again"]
        assert "activity_completed" not in await types_of(handle)


async def test_a_cancelled_thread_is_interrupted(engines: Engines) -> None:
    """Without any heartbeat, as soon as it executes Python code."""
    registry = Registry()
    post = Post()

    @registry.activity
    def spins() -> None:
        post.spin()

    calls = _calling_off(registry, spins)
    async with engines.open(registry) as env:
        handle = await env.start(calls)
        assert await post.heard() == "begun"
        await handle.signal("stop", "enough")
        assert await env.finish(handle.result()) == "called off"
        assert await post.heard() == "interrupted"
        kinds = await types_of(handle)
        assert kinds.count("activity_cancelled") == 1
        assert not {"activity_failed", "activity_retry_scheduled", "activity_completed"} & set(kinds)


async def test_a_thread_that_swallows_its_interruption_can_still_ask(engines: Engines) -> None:
    """It is interrupted once; from then on `cancelled` is true and every heartbeat raises."""
    registry = Registry()
    post = Post()

    @registry.activity
    def stubborn() -> str:
        post.tell(registry.activity.cancelled())
        try:
            while not post.gate.wait(0.001):
                pass
        except asyncio.CancelledError:
            post.tell(registry.activity.cancelled())
        for _ in range(2):
            try:
                registry.activity.heartbeat("more")
            except asyncio.CancelledError:
                post.tell("again")
        return "not delivered"

    calls = _calling_off(registry, stubborn)
    async with engines.open(registry) as env:
        handle = await env.start(calls)
        assert await post.heard() is False
        await handle.signal("stop", "enough")
        assert await env.finish(handle.result()) == "called off"
        assert [await post.heard() for _ in range(3)] == [True, "again", "again"]
        await env.advance(60)
        assert "activity_completed" not in await types_of(handle)


async def test_a_cancellation_that_crosses_the_end_of_a_thread_is_no_failure(engines: Engines) -> None:
    """Whichever is first, there is one answer, and what comes of the other is not recorded."""
    registry = Registry()
    post = Post()

    @registry.activity(retry=TWICE)
    def short(length: int) -> int:
        post.tell("begun")
        return sum(range(length))

    @registry.workflow
    async def race(ctx: Context, length: int) -> str:
        running = ctx.activity(short, length)
        await ctx.listen("stop", type=str)
        running.cancel()
        try:
            return f"got {await running}"
        except asyncio.CancelledError:
            return "called off"

    async with engines.open(registry) as env:
        for length in (0, 100, 10_000, 1_000_000):
            handle = await env.engine.start(race, length)
            stopping = asyncio.ensure_future(handle.signal("stop", "enough"))
            assert await env.finish(handle.result()) in ("called off", f"got {sum(range(length))}")
            await stopping
            kinds = await types_of(handle)
            assert kinds.count("activity_cancelled") + kinds.count("activity_completed") == 1
            assert not {"activity_failed", "activity_retry_scheduled"} & set(kinds)


async def test_an_attempt_on_another_worker_hears_of_it_by_its_lease(engines: Engines) -> None:
    """That worker does not have the workflow: at its next renewal, nothing is left to be renewed."""
    registry = Registry()
    post = Post()

    @registry.activity(queue="far")
    def spins() -> None:
        post.spin()

    calls = _calling_off(registry, spins)
    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(calls)
        async with (
            engines.serve(store, clock, registry) as here,
            engines.serve(store, clock, registry, queues=["far"]) as far,
        ):
            await here.settle()
            await far.settle()
            assert await post.heard() == "begun"
            await handle.signal("stop", "enough")
            assert await here.finish(handle.result()) == "called off"
            await far.advance(LEASE / 3000 + 1)
            assert await post.heard() == "interrupted"


async def test_attempts_that_a_worker_cannot_wait_for_hear_of_it(engines: Engines) -> None:
    """A worker that stops interrupts what runs beyond its grace, and the next one runs it as the same attempt."""
    registry = Registry()
    post = Post()
    told: list[Any] = []

    @registry.activity
    def spins() -> str:
        if not post.gate.is_set():
            post.spin()
        return "spun"

    @registry.activity
    async def waits() -> str:
        if not post.gate.is_set():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                told.append(registry.activity.cancelled())
                raise
        return "waited"

    @registry.workflow
    async def both(ctx: Context) -> list[str]:
        return list(await asyncio.gather(ctx.activity(spins), ctx.activity(waits)))

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(both)
        async with engines.serve(store, clock, registry, grace=0) as env:
            await env.settle()
            assert await post.heard() == "begun"
        assert await post.heard() == "interrupted"
        assert told == [True]
        post.gate.set()
        async with engines.serve(store, clock, registry) as env:
            assert await env.finish(handle.result()) == ["spun", "waited"]
        assert "activity_retry_scheduled" not in await types_of(handle)


async def test_what_an_attempt_leaves_behind_is_not_heard(engines: Engines) -> None:
    """A task that outlives its attempt learns so, and does not report for the next attempt."""
    registry = Registry()
    left: list[asyncio.Task[None]] = []

    async def goes_on() -> None:
        while True:
            registry.activity.heartbeat("left behind")
            await asyncio.sleep(0)

    @registry.activity(retry=TWICE)
    async def leaves() -> Any:
        info = registry.activity.info()
        if info.attempt == 2:
            return info.details
        left.append(asyncio.get_running_loop().create_task(goes_on()))
        registry.activity.heartbeat("itself")
        raise ValueError("fails at once")

    @registry.workflow
    async def insist(ctx: Context) -> Any:
        return await ctx.activity(leaves)

    async with engines.open(registry) as env:
        assert await run(env, insist) == "itself"
        [task] = left
        assert task.cancelled()


def _calling_off(registry: Registry, activity: Any) -> Callable[[Context], Any]:
    """Return a workflow that calls an activity off when it is told to."""

    @registry.workflow
    async def impatient(ctx: Context) -> str:
        running = ctx.activity(activity)
        await ctx.listen("stop", type=str)
        running.cancel()
        try:
            await running
        except asyncio.CancelledError:
            return "called off"
        return "it was too late"

    return impatient
