"""A store that fails: whatever verb it fails at, runs end, nothing is done twice that was written down, nothing spins."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from resurgam import Context, Engine, Registry
from resurgam.errors import StoreError
from resurgam.store.memory.store import MemoryStore
from resurgam.store.records import Closed, InboxChanged
from resurgam.testing import ManualClock
from support.submitting import submit_by_commit, without_first_commits

LEASE = 10
TURNS = 40


@dataclass
class Plan:
    """Calls of a verb that are to fail: after *skip* good ones, *times* of them, before or after being applied."""

    verb: str
    error: Exception
    after: bool
    skip: int
    times: float
    when: Callable[..., bool]


class FlakyStore:
    """A memory store that fails on demand."""

    def __init__(self, clock):
        self.inner = MemoryStore(clock, lease=LEASE * 1000)
        self.calls = Counter()
        self._plans = []

    def fail(self, verb, error=None, *, after=False, skip=0, times=1, when=lambda *_: True):
        """Let calls of *verb* fail, with `StoreError` unless another *error* is given."""
        self._plans.append(Plan(verb, error or StoreError("connection lost"), after, skip, times, when))

    def mend(self):
        """Fail no more."""
        self._plans.clear()

    def submit(self, part, done):
        """Commit in a task: what is special happens there."""
        submit_by_commit(self.commit, part, done)

    def __getattr__(self, name):
        member = getattr(self.inner, name)
        return partial(self.call, name, member) if callable(member) else FlakyPart(self, name, member)

    async def call(self, name, verb, *args, **kwargs):
        self.calls[name] += 1
        if name == "create":
            args = (without_first_commits(args[0]),)
        plan = self._planned(name, args)
        if plan is not None and not plan.after:
            raise plan.error
        answer = await verb(*args, **kwargs)
        if plan is not None:
            raise plan.error
        return answer

    def _planned(self, verb, args):
        plan = next((p for p in self._plans if p.verb == verb and p.times and p.when(*args)), None)
        if plan is None:
            return None
        if plan.skip:
            plan.skip -= 1
            return None
        plan.times -= 1
        return plan


class FlakyPart:
    """A part of the store beside its verbs, such as its queries."""

    def __init__(self, store, name, part):
        self._store, self._name, self._part = store, name, part

    def __getattr__(self, verb):
        return partial(self._store.call, f"{self._name}.{verb}", getattr(self._part, verb))


def by_a_worker(watch, *_):
    """Whether a call looks for work, or is about it: neither a client's, nor that of an operation in flight."""
    return not isinstance(watch, Closed | InboxChanged)


class World:
    """An engine on a flaky store, in virtual time that moves only when it is told to."""

    def __init__(self, registry, **options):
        self.clock = ManualClock()
        self.store = FlakyStore(self.clock)
        self.engine = Engine(self.store, registry=registry, clock=self.clock, lease=LEASE, grace=0, **options)
        self.begun = self.clock.now()

    async def __aenter__(self):
        await self.engine.__aenter__()
        return self

    async def __aexit__(self, *error):
        self.store.mend()
        await self.engine.__aexit__(*error)

    @property
    def passed(self):
        """The virtual seconds since the beginning."""
        return (self.clock.now() - self.begun) / 1000

    @property
    def leases(self):
        """What the worker believes to hold."""
        return self.engine._worker._leases.all()

    async def turn(self):
        """Let everything run that can without time passing."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def advance(self, seconds):
        """Let time pass, stopping wherever something is due."""
        target = self.clock.now() + round(seconds * 1000)
        await self.turn()
        while (due := self.clock.next_due()) is not None and due <= target:
            self.clock.move_to(due)
            await self.turn()
        self.clock.move_to(target)
        await self.turn()

    async def finish(self, waited_for, limit=600):
        """Let time pass until *waited_for* is there."""
        waiting = asyncio.ensure_future(waited_for)
        await self.turn()
        while not waiting.done() and self.passed < limit and (due := self.clock.next_due()) is not None:
            self.clock.move_to(due)
            await self.turn()
        if not waiting.done():
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            raise AssertionError(f"nothing came of it within {self.passed:g} s")
        return await waiting


class Shop:
    """A registry with one workflow of an activity, an operation and a timer, and the number of times each was done."""

    def __init__(self):
        self.registry = Registry()
        self.done = Counter()
        self.proceed = asyncio.Event()

        @self.registry.activity
        async def pack() -> str:
            self.done["pack"] += 1
            return "parcel"

        @self.registry.activity
        async def slow() -> str:
            self.done["slow"] += 1
            await self.proceed.wait()
            return "slowly"

        async def charge() -> int:
            self.done["charge"] += 1
            await asyncio.sleep(0)
            return 100

        async def hang() -> int:
            self.done["hang"] += 1
            await self.proceed.wait()
            return 7

        @self.registry.workflow
        async def sell(ctx: Context) -> list[object]:
            cents = await ctx.run(charge)
            parcel = await ctx.activity(pack)
            await ctx.sleep(5)
            return [cents, parcel]

        @self.registry.workflow
        async def hello(ctx: Context) -> str:
            return "hello"

        @self.registry.workflow
        async def operate(ctx: Context) -> int:
            return await ctx.run(hang)

        @self.registry.workflow
        async def wait(ctx: Context) -> str:
            return await ctx.activity(slow)

        self.sell, self.hello, self.operate, self.wait = sell, hello, operate, wait


@pytest.fixture
async def shop():
    return Shop()


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Failures of the store are logged with tracebacks; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


# Commit.


@pytest.mark.parametrize("after", [False, True], ids=["before it is applied", "after it was applied"])
@pytest.mark.parametrize("number", range(5))
async def test_a_commit_that_fails_once_is_tried_again_and_nothing_is_done_twice(shop, number, after):
    """Whichever commit the store fails at, the run ends with its result, and its side effects are done once."""
    async with World(shop.registry) as world:
        world.store.fail("commit", skip=number, after=after)

        result = await world.finish(world.engine.execute(shop.sell))

        assert result == [100, "parcel"]
        assert shop.done == {"charge": 1, "pack": 1}
        assert world.passed <= 5 + 1  # the sleep and the pause before the next try, but not a lease
        assert world.leases == []


@pytest.mark.parametrize("after", [False, True], ids=["before it is applied", "after it was applied"])
async def test_an_operation_whose_answer_cannot_be_committed_for_a_while_is_not_run_again(shop, after):
    """The answer is held in memory for as long as the store is away, within the lease."""
    async with World(shop.registry) as world:
        world.store.fail("commit", skip=1, times=5, after=after)

        result = await world.finish(world.engine.execute(shop.sell))

        assert result == [100, "parcel"]
        assert shop.done["charge"] == 1


@pytest.mark.parametrize("error", [StoreError("down"), RuntimeError("unmapped driver error")], ids=["store", "other"])
@pytest.mark.parametrize("name", ["hello", "operate"], ids=["a commit that releases", "a commit that goes on"])
async def test_a_commit_and_a_release_that_fail_leave_a_lease_that_runs_out(shop, name, error):
    """A lease that could not be given back is renewed no longer, so the run is claimed again when it has run out."""
    shop.proceed.set()
    async with World(shop.registry) as world:
        world.store.fail("commit", RuntimeError("unmapped driver error"))
        world.store.fail("release", error)

        result = await world.finish(world.engine.execute(name))

        assert result == {"hello": "hello", "operate": 7}[name]
        assert world.passed == LEASE
        assert world.leases == []


async def test_a_commit_that_fails_with_something_else_gives_the_run_back_at_once(shop):
    """An exception that is no StoreError is the turn's failure; the run is claimed again without waiting."""
    async with World(shop.registry) as world:
        world.store.fail("commit", RuntimeError("unmapped driver error"))

        result = await world.finish(world.engine.execute(shop.hello))

        assert result == "hello"
        assert world.passed == 0
        assert world.store.calls["release"] == 1


# Claim, claim_activities and wait.


@pytest.mark.parametrize("error", [StoreError("down"), RuntimeError("unmapped driver error")], ids=["store", "other"])
@pytest.mark.parametrize("verb", ["claim", "claim_activities", "wait"])
async def test_a_worker_survives_a_failure_at_looking_for_work(shop, verb, error):
    """Whatever the store raises at it, the worker looks again after a second and the run ends."""
    async with World(shop.registry) as world:
        world.store.fail(verb, error, when=by_a_worker)

        result = await world.finish(world.engine.execute(shop.sell))

        assert result == [100, "parcel"]
        assert world.passed <= 5 + 1


async def test_an_instance_claimed_before_claim_activities_fails_is_served(shop):
    """What was claimed is begun before activities are looked for, so it does not wait for its lease to run out."""
    async with World(shop.registry) as world:
        await world.turn()
        world.store.fail("claim_activities", times=3)

        result = await world.finish(world.engine.execute(shop.hello))

        assert result == "hello"
        assert world.passed == 0


@pytest.mark.parametrize("error", [StoreError("down"), RuntimeError("unmapped driver error")], ids=["store", "other"])
@pytest.mark.parametrize("verb", ["claim", "claim_activities", "wait"])
async def test_a_store_that_is_down_is_asked_once_a_second(shop, verb, error):
    """A worker whose store fails at everything it tries does not spin."""
    async with World(shop.registry) as world:
        world.store.fail(verb, error, times=float("inf"))

        await world.advance(10)

        assert 10 <= world.store.calls[verb] <= 12
        assert world.store.calls["claim"] <= 12


async def test_a_worker_whose_store_is_down_stops_at_once(shop):
    """Leaving the engine does not wait for the next try."""
    async with World(shop.registry) as world:
        world.store.fail("claim", times=float("inf"))
        await world.turn()

        await world.engine.__aexit__(None, None, None)

        assert world.passed == 0
        assert world.engine.resting


async def test_work_is_found_again_when_the_store_is_back(shop):
    """A minute without the store costs that minute and no more."""
    async with World(shop.registry) as world:
        for verb in ("claim", "claim_activities", "wait", "commit", "extend", "release"):
            world.store.fail(verb, times=float("inf"), when=by_a_worker)
        handle = await world.engine.start(shop.hello)
        await world.advance(60)
        world.store.mend()

        result = await world.finish(handle.result())

        assert result == "hello"
        assert world.passed <= 61


# Operations in flight.


async def test_a_wait_for_news_that_fails_is_an_error_of_that_turn_only(shop):
    """The run whose operation was in flight is claimed again, and ends."""
    async with World(shop.registry) as world:
        world.store.fail("wait", when=lambda watch, *_: isinstance(watch, InboxChanged))
        handle = await world.engine.start(shop.operate)
        await world.turn()
        shop.proceed.set()

        result = await world.finish(handle.result())

        assert result == 7
        assert world.passed <= LEASE
        assert world.leases == []


async def test_an_extension_that_fails_after_an_operation_does_not_lose_its_answer(shop):
    """The answer that is held in memory is committed although the store could not say what else is new."""
    async with World(shop.registry) as world:
        handle = await world.engine.start(shop.operate)
        await world.turn()
        world.store.fail("extend")
        shop.proceed.set()

        result = await world.finish(handle.result())

        assert result == 7
        assert shop.done["hang"] == 1


# Renewals.


@pytest.mark.parametrize("error", [StoreError("down"), RuntimeError("unmapped driver error")], ids=["store", "other"])
async def test_a_renewal_that_fails_is_tried_again_before_the_lease_runs_out(shop, error):
    """One failed renewal does not cost the lease: the activity in hand is run once."""
    async with World(shop.registry) as world:
        handle = await world.engine.start(shop.wait)
        await world.turn()
        world.store.fail("extend", error)
        await world.advance(5 * LEASE)
        shop.proceed.set()

        result = await world.finish(handle.result())

        assert result == "slowly"
        assert shop.done["slow"] == 1


async def test_a_lease_lost_while_renewals_fail_is_fenced(shop):
    """An attempt whose lease ran out while the store was away is run again, and only one answer is written."""
    async with World(shop.registry) as world:
        handle = await world.engine.start(shop.wait)
        await world.turn()
        world.store.fail("extend", times=6)
        await world.advance(5 * LEASE)
        shop.proceed.set()

        result = await world.finish(handle.result())
        history = await handle.history()

        assert result == "slowly"
        assert [entry.type for entry in history].count("activity_completed") == 1


# Activities.


@pytest.mark.parametrize("after", [False, True], ids=["before it is applied", "after it was applied"])
@pytest.mark.parametrize("times", [1, 5])
async def test_the_result_of_an_activity_is_handed_in_until_the_store_takes_it(shop, after, times):
    """It is kept in memory meanwhile: the activity is run once, and answered once."""
    async with World(shop.registry) as world:
        world.store.fail("complete_activities", after=after, times=times)
        handle = await world.engine.start(shop.sell)

        result = await world.finish(handle.result())
        history = await handle.history()

        assert result == [100, "parcel"]
        assert shop.done["pack"] == 1
        assert [entry.type for entry in history].count("activity_completed") == 1
        assert world.leases == []


async def test_a_result_that_fails_with_something_else_gives_the_activity_back(shop):
    """An exception that is no StoreError costs the attempt, which is made again."""
    async with World(shop.registry) as world:
        world.store.fail("complete_activities", RuntimeError("unmapped driver error"))

        result = await world.finish(world.engine.execute(shop.sell))

        assert result == [100, "parcel"]
        assert world.leases == []


@pytest.mark.parametrize("error", [StoreError("down"), RuntimeError("unmapped driver error")], ids=["store", "other"])
async def test_an_activity_that_can_neither_be_answered_nor_given_back_is_taken_up_when_its_lease_runs_out(shop, error):
    """Its lease is renewed no longer, so that it is claimed again."""
    async with World(shop.registry) as world:
        world.store.fail("complete_activities", RuntimeError("unmapped driver error"))
        world.store.fail("release", error)

        result = await world.finish(world.engine.execute(shop.sell), limit=10 * LEASE)

        assert result == [100, "parcel"]
        assert world.leases == []


# Read, and the end.


@pytest.mark.parametrize("error", [StoreError("down"), RuntimeError("unmapped driver error")], ids=["store", "other"])
async def test_a_history_that_cannot_be_read_is_read_at_the_next_claim(shop, error):
    """The turn is given back, and the next one reads it."""
    async with World(shop.registry, cache_size=0) as world:
        world.store.fail("read", error, skip=1)

        result = await world.finish(world.engine.execute(shop.sell))

        assert result == [100, "parcel"]
        assert shop.done == {"charge": 1, "pack": 1}


async def test_a_store_that_fails_at_the_end_is_closed_all_the_same(shop, monkeypatch):
    """Leaving the engine raises nothing, puts every coroutine away and closes the store, though release fails."""
    world = World(shop.registry)
    monkeypatch.setattr("resurgam.engine.open_store", lambda *_, **__: world.store)
    engine = Engine("memory://", registry=shop.registry, clock=world.clock, grace=0)
    async with engine:
        await engine.start(shop.wait)
        await world.turn()
        cache = engine._worker._instances._cache._kept
        world.store.fail("release", times=float("inf"))

    assert world.store.calls["release"] == 1
    assert world.store.calls["close"] == 1
    assert len(cache) == 0


@pytest.mark.parametrize("cache", [0, 5])
@pytest.mark.parametrize("seed", range(4))
async def test_runs_end_on_a_store_that_fails_at_anything_by_chance(shop, seed, cache):
    """Two in a hundred calls fail, before or after being applied; all runs end with the right result."""
    chance = random.Random(seed)
    async with World(shop.registry, cache_size=cache) as world:
        handles = [await world.engine.start(shop.sell) for _ in range(10)]
        for verb in ("claim", "commit", "extend", "release", "claim_activities", "complete_activities", "read", "wait"):
            for after in (False, True):
                world.store.fail(
                    verb,
                    after=after,
                    times=float("inf"),
                    when=lambda *args: by_a_worker(*args) and chance.random() < 0.02,
                )

        results = [await world.finish(handle.result()) for handle in handles]
        world.store.mend()
        await world.advance(2 * LEASE)
        descriptions = [await handle.describe() for handle in handles]

        assert results == [[100, "parcel"]] * 10
        assert [description.deactivated for description in descriptions] == [True] * 10
        assert world.leases == []
