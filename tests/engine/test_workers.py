"""Several workers, workers that die, and bad input that must not stop a worker."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.outcome import Outcome
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.engine import Engine
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.info import activity_info
from resurgam.runtime.registry import Registry
from resurgam.store.memory.store import MemoryStore
from resurgam.store.protocol import Store
from resurgam.store.records import Commit, Committed, Extended, HeldWork, Lease, LiveWorker, Refused
from resurgam.testing import Environment, ManualClock
from resurgam.testing.contract.bench import LEASE, raises
from resurgam.worker.build import build_of
from support.engines import Engines, run, types_of
from support.limits import HANGS


class LockedError(Exception):
    """An error that holds what cannot be written down."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


async def test_the_live_workers_of_a_store_are_known_to_every_engine_on_it(engines: Engines) -> None:
    """Each with its queues and slots, also to an engine without a worker; one that has stopped is gone."""
    async with engines.client(Registry()) as (store, clock, client):
        assert await client.workers() == []
        async with engines.serve(store, clock, Registry(), queues=["small"], max_activities=3) as env:
            await env.settle()
            [found] = await client.workers()
            assert (found.queues, found.slots, found.slots_in_use) == (("small",), 3, 0)
            assert await env.engine.workers() == [found]
        assert await client.workers() == []


async def test_what_each_worker_holds_is_known_to_every_engine_on_the_store(engines: Engines) -> None:
    """Its instances and activities with their ids, its build and its load; what has ended is not held any more."""
    registry = Registry()
    gate = asyncio.Event()

    @registry.activity
    async def pay() -> str:
        await gate.wait()
        return "paid"

    @registry.workflow
    async def order(ctx: Context) -> str:
        return await ctx.activity(pay)

    async with engines.client(registry) as (store, clock, client):
        begin = clock.now()
        handles = [await client.start(order, id=f"o-{number}") for number in range(2)]
        async with (
            engines.serve(store, clock, registry, lease=0.03, max_activities=1) as one,
            engines.serve(store, clock, registry, lease=0.03, max_activities=1) as two,
        ):
            found = await seen(client, lambda live: [worker.slots_in_use for worker in live] == [1, 1])
            told = {worker.worker_id: worker.held for worker in found}
            attempts = [attempt for held in told.values() if held for attempt in held.oldest_activities]
            assert sorted((one.workflow_id, one.entity_id, one.name, one.attempt) for one in attempts) == [
                (handle.entity_id, f"{handle.run_id}/1", "pay", 1) for handle in handles
            ]
            assert {one.since for one in attempts} == {begin}
            assert {worker.build for worker in found} == {build_of(registry)}
            assert all(worker.load for worker in found)
            gate.set()
            for handle in handles:
                assert await one.finish(handle.result()) == "paid"
            idle = await seen(client, lambda live: all(worker.held == HeldWork() for worker in live))
            assert len(idle) == 2
            await two.settle()


async def seen(client: Engine, condition: Callable[[list[LiveWorker]], bool]) -> list[LiveWorker]:
    """Return the workers once they have told what is waited for; they tell it in real time."""
    async with asyncio.timeout(HANGS):
        while not condition(live := await client.workers()):
            await asyncio.sleep(0)
    return live


async def test_two_workers_share_the_work(engines: Engines) -> None:
    """Activities that wait for each other are run by both, where neither could run more than one."""
    registry = Registry()
    arrived: list[str] = []
    both = asyncio.Event()

    @registry.activity
    async def meet() -> int:
        arrived.append(activity_info().workflow_id)
        if len(arrived) == 2:
            both.set()
        await both.wait()
        return len(arrived)

    @registry.workflow
    async def appointment(ctx: Context) -> int:
        return await ctx.activity(meet)

    async with engines.client(registry) as (store, clock, client):
        handles = [await client.start(appointment) for _ in range(2)]
        async with (
            engines.serve(store, clock, registry, max_activities=1) as one,
            engines.serve(store, clock, registry, max_activities=1) as two,
        ):
            await asyncio.gather(one.settle(), two.settle())
            for handle in handles:
                assert await one.finish(handle.result()) == 2


async def test_a_workflow_goes_from_worker_to_worker(engines: Engines) -> None:
    """Whichever worker takes the next step, with or without an older coroutine in its cache, it is the right one."""
    registry = Registry()

    @registry.activity
    async def double(x: int) -> int:
        return 2 * x

    @registry.workflow
    async def chain(ctx: Context, steps: int) -> list[int]:
        got: list[int] = []
        for _ in range(steps):
            got.append(await ctx.activity(double, await ctx.listen("number", type=int)))
            await ctx.sleep(1)
        return got

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(chain, 12)
        async with (
            engines.serve(store, clock, registry) as one,
            engines.serve(store, clock, registry) as two,
        ):
            for number in range(12):
                await handle.signal("number", number)
                await asyncio.gather(one.settle(), two.settle())
                await (one, two)[number % 2].advance(1)
                await asyncio.gather(one.settle(), two.settle())
            assert await one.finish(handle.result()) == [2 * number for number in range(12)]


async def test_a_workflow_survives_its_worker(engines: Engines) -> None:
    """What one engine began another one finishes, after the first was closed."""
    registry = Registry()

    @registry.workflow
    async def long(ctx: Context) -> list[str]:
        return [await ctx.listen("next", type=str) for _ in range(4)]

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(long)
        for value in "abcd":
            async with engines.serve(store, clock, registry) as env:
                await env.settle()
                await handle.signal("next", value)
                await env.settle()
        assert (await handle.describe()).status is Status.COMPLETED
        assert await handle.result() == ["a", "b", "c", "d"]


async def test_the_instances_of_a_dead_worker_are_taken_up(engines: Engines) -> None:
    """A worker that died holding an instance is replaced when its lease has run out, and not before."""
    registry = Registry()

    @registry.workflow
    async def hello(_ctx: Context) -> str:
        return "hello"

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(hello)
        assert len(await store.claim("dead", ["default"], 10)) == 1
        async with engines.serve(store, clock, registry) as env:
            await env.advance((LEASE - 1) / 1000)
            assert await types_of(handle) == ["workflow_started"]
            await env.advance(0.001)
            assert await env.finish(handle.result()) == "hello"


async def test_the_activities_of_a_dead_worker_are_taken_up(engines: Engines) -> None:
    """An activity whose worker died is run again as the same attempt; one that must not be has failed."""
    registry = Registry()
    runs: list[int] = []

    @registry.activity(queue="work")
    async def work() -> str:
        runs.append(activity_info().attempt)
        return "done"

    @registry.workflow
    async def ask(ctx: Context) -> list[str]:
        once = work.options(retry=RetryPolicy(max_attempts=1, redeliver=False))
        answers = await asyncio.gather(ctx.activity(work), ctx.activity(once), return_exceptions=True)
        return [type(answer).__name__ if isinstance(answer, Exception) else str(answer) for answer in answers]

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(ask)
        async with engines.serve(store, clock, registry) as env:
            await env.settle()
        assert len(await store.claim_activities("dead", ["work"], 10)) == 2
        async with engines.serve(store, clock, registry, queues=["default", "work"]) as env:
            await env.advance((LEASE - 1) / 1000)
            assert runs == []
            assert await env.finish(handle.result()) == ["done", "ActivityFailed"]
            assert runs == [1]


async def test_an_activity_that_must_not_begin_twice_does_not_when_its_worker_stops(engines: Engines) -> None:
    """One that the lease on its workflow covers, and one with a lease of its own; others are begun again elsewhere."""
    registry = Registry()
    runs: list[str] = []
    begun = asyncio.Event()

    @registry.activity
    async def work(name: str) -> str:
        runs.append(name)
        if len(runs) == 4:
            begun.set()
        if len(runs) <= 4:
            await asyncio.Event().wait()
        return name

    once = work.options(retry=RetryPolicy(max_attempts=1, redeliver=False))

    @registry.workflow
    async def order(ctx: Context) -> list[str]:
        elsewhere = [one.options(queue="work") for one in (once, work)]
        calls = [ctx.activity(once, "once"), ctx.activity(work, "again")]
        calls += [ctx.activity(elsewhere[0], "once elsewhere"), ctx.activity(elsewhere[1], "again elsewhere")]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return [type(answer).__name__ if isinstance(answer, Exception) else str(answer) for answer in answers]

    both = ["default", "work"]
    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(order)
        async with engines.serve(store, clock, registry, queues=both, grace=0) as env:
            await asyncio.wait_for(env.finish(begun.wait()), HANGS)
        async with engines.serve(store, clock, registry, queues=both) as env:
            expected = ["ActivityFailed", "again", "ActivityFailed", "again elsewhere"]
            assert await env.finish(handle.result()) == expected
    assert sorted(runs) == ["again", "again", "again elsewhere", "again elsewhere", "once", "once elsewhere"]


class SlowToRenew:
    """A store that renews no lease before *may_renew* is set."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.may_renew = asyncio.Event()

    async def extend(self, leases: Sequence[Lease]) -> Sequence[Extended | Refused]:
        await self.may_renew.wait()
        return await self._store.extend(leases)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)


async def test_a_worker_that_lost_its_lease_does_no_harm(engines: Engines) -> None:
    """While an operation runs another worker takes the instance over; the commit of the first is refused."""
    registry = Registry()
    taken: list[int] = []

    async with engines.client(registry) as (store, clock, client):

        async def steal() -> str:
            if not taken:
                clock.move_to(clock.now() + LEASE)
                [claim] = await store.claim("thief", ["default"], 10)
                taken.append(claim.epoch)
            return "mine"

        @registry.workflow
        async def held(ctx: Context) -> str:
            return await ctx.run(steal)

        handle = await client.start(held)
        slow = SlowToRenew(store)
        async with engines.serve(slow, clock, registry) as env:  # type: ignore[arg-type]
            await env.settle()
            slow.may_renew.set()
            await env.settle()
            assert (await types_of(handle)) == ["workflow_started", "operation_started"]
            await env.advance(LEASE / 1000)
            assert await env.finish(handle.result()) == "mine"
            assert (await types_of(handle)).count("operation_completed") == 1


async def test_an_activity_that_was_interrupted_is_given_back(engines: Engines) -> None:
    """An engine that is closed lets go of what it runs, so that the next one need not wait for the lease."""
    registry = Registry()
    gate = asyncio.Event()
    runs: list[int] = []

    @registry.activity
    async def slow() -> str:
        runs.append(activity_info().attempt)
        await gate.wait()
        return "done"

    @registry.workflow
    async def wait(ctx: Context) -> str:
        return await ctx.activity(slow)

    async with engines.client(registry) as (store, clock, client):
        handle = await client.start(wait)
        async with engines.serve(store, clock, registry, grace=0) as env:
            await env.settle()
            assert runs == [1]
        gate.set()
        async with engines.serve(store, clock, registry) as env:
            before = clock.now()
            assert await env.finish(handle.result()) == "done"
            assert (runs, clock.now()) == ([1, 1], before)


# Bad input.


async def test_an_id_in_use_is_refused(engines: Engines) -> None:
    """While it is open the id is taken, unless one attaches; afterwards it is free."""
    registry = Registry()

    @registry.workflow
    async def wait(ctx: Context) -> str:
        return await ctx.listen("go", type=str)

    async with engines.open(registry) as env:
        first = await env.start(wait, id="order")
        with raises(errors.AlreadyExists, "'order'"):
            await env.start(wait, id="order")
        attached = await env.start(wait, id="order", if_exists="attach")
        assert attached.run_id == first.run_id
        await first.signal("go", "one")
        assert await env.finish(attached.result()) == "one"
        second = await env.start(wait, id="order")
        assert second.run_id != first.run_id
        await env.engine.handle("order").signal("go", "two")
        assert await env.finish(second.result()) == "two"
        old = env.engine.handle("order", first.run_id)
        assert await env.finish(old.result()) == "one"
        with raises(errors.NotFound):
            await old.signal("go", "three")


async def test_of_two_starts_at_once_one_is_refused(engines: Engines) -> None:
    """However many start the same id together, one execution begins."""
    registry = Registry()

    @registry.workflow
    async def wait(ctx: Context) -> None:
        await ctx.sleep(10)

    async with engines.open(registry) as env:
        starts = [env.engine.start(wait, id="order") for _ in range(5)]
        answers = await asyncio.gather(*starts, return_exceptions=True)
        assert sum(isinstance(answer, errors.AlreadyExists) for answer in answers) == 4
        assert len((await env.engine.list()).instances) == 1


async def test_a_history_that_cannot_be_read_becomes_a_dead_letter(engines: Engines) -> None:
    """An instance that fails on every worker becomes a dead letter; others are served."""
    registry = Registry()

    @registry.workflow
    async def fine(_ctx: Context) -> str:
        return "fine"

    async with engines.client(registry) as (store, clock, client):
        broken = await client.start(fine, id="broken")
        [claim] = await store.claim("vandal", ["default"], 10)
        gap = Outcome(events=(events.TimerFired(seq=9, ref=8),), wake_at=clock.now())
        part = Commit(
            execution_id=broken.execution_id,
            entity_id="broken",
            epoch=claim.epoch,
            base_seq=1,
            wake=claim.wake,
            outcome=gap,
        )
        assert isinstance((await store.commit([part]))[0], Committed)
        async with engines.serve(store, clock, registry) as env:
            assert await run(env, fine) == "fine"
            await env.advance(60)
            assert (await store.inspector.stats()).dead_instances == 1
            assert await run(env, fine) == "fine"


async def test_a_result_that_cannot_be_written_is_a_failure(engines: Engines) -> None:
    """Of a workflow or of an activity, it fails at once and says where; the worker serves others."""
    registry = Registry()

    @registry.activity
    async def opaque() -> Any:
        return object()

    @registry.workflow
    async def unwritable(_ctx: Context) -> Any:
        return object()

    @registry.workflow
    async def asks(ctx: Context) -> list[Any]:
        try:
            return [await ctx.activity(opaque)]
        except errors.ActivityFailed as failed:
            return [failed.attempts, type(failed.cause).__name__]

    async with engines.open(registry) as env:
        with raises(errors.WorkflowFailed) as caught:
            await run(env, unwritable)
        assert isinstance(caught[0].__cause__, errors.SerializationError)
        assert await run(env, asks) == [1, "SerializationError"]


async def test_an_error_that_cannot_be_written_is_told_all_the_same(engines: Engines) -> None:
    """Type and message arrive, and a note of what was left out."""
    registry = Registry()

    @registry.activity(retry=RetryPolicy(max_attempts=1))
    async def locked() -> None:
        raise LockedError("shut")

    @registry.workflow
    async def asks(ctx: Context) -> None:
        await ctx.activity(locked)

    @registry.workflow
    async def fine(_ctx: Context) -> str:
        return "fine"

    async with engines.open(registry) as env:
        with raises(errors.WorkflowFailed) as caught:
            await run(env, asks)
        failed = caught[0].__cause__
        assert isinstance(failed, errors.ActivityFailed)
        assert str(failed.cause) == "shut"
        assert any("'lock'" in note for note in getattr(failed.cause, "__notes__", ()))
        assert await run(env, fine) == "fine"


async def test_input_that_no_longer_fits_parks_that_workflow_only(engines: Engines) -> None:
    """Arguments that an older client wrote, and that this code cannot read, park that run until code that can comes."""
    old, new = Registry(), Registry()

    async def before(_ctx: Context, x: str) -> str:
        return x

    async def after(_ctx: Context, x: int) -> int:
        return x

    old.workflow(name="job")(before)
    job = new.workflow(name="job")(after)
    async with engines.client(old) as (store, clock, client):
        handle = await client.start("job", "seven")
        async with engines.serve(store, clock, new) as env:
            await env.settle()
            assert (await handle.describe()).status is Status.DIVERGED
            assert await run(env, job, 7) == 7
        async with engines.serve(store, clock, old) as env:
            assert await env.finish(handle.result()) == "seven"


async def test_a_poisonous_neighbour_stops_no_other_run(engines: Engines) -> None:
    """Workflows that fail in every way are ended or parked, and the one among them completes."""
    registry = Registry()

    @registry.workflow
    async def poison(ctx: Context, how: str) -> None:
        if how == "exit":
            raise SystemExit(1)
        if how == "interrupt":
            raise KeyboardInterrupt
        if how == "interrupted strand":
            await asyncio.gather(_interrupts(), ctx.sleep(1))
        if how == "interrupted operation":
            await ctx.run(_interrupts)
        if how == "interrupted condition":
            await ctx.until(_interrupt)
        if how == "asyncio":
            await asyncio.get_running_loop().run_in_executor(None, int)
        ctx.set("unwritable", object())

    @registry.workflow
    async def fine(ctx: Context) -> str:
        await ctx.sleep(1)
        return "fine"

    async with engines.open(registry) as env:
        handle = await env.start(fine)
        interrupts = ("interrupt", "interrupted strand", "interrupted operation", "interrupted condition")
        for how in ("exit", *interrupts, "asyncio", "value"):
            bad = await env.start(poison, how)
            assert (await bad.describe()).status is Status.FAILED
        assert await env.finish(handle.result()) == "fine"


def _interrupt() -> bool:
    raise KeyboardInterrupt


async def _interrupts() -> None:
    _interrupt()


async def test_a_thousand_workflows_run_at_once():
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context, number: int) -> int:
        await ctx.sleep(1)
        return number

    async with Environment(registry=registry) as env:
        handles = [await env.engine.start(work, number) for number in range(1000)]
        await env.advance(2)
        assert [await handle.result() for handle in handles] == list(range(1000))


async def test_runs_end_once_while_workers_come_and_go():
    """Two workers, four, none, one."""
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


async def test_no_run_holds_a_slot_while_it_waits_for_another(engines: Engines):
    """One worker with one slot: parents, children on two queues and continuations all end."""
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

    async with engines.open(registry, queues=["default", "far"], max_activities=1) as env:
        handles = [await env.engine.start(parent, number) for number in range(20)]
        assert [await env.finish(one.result()) for one in handles] == [2 * number for number in range(20)]
