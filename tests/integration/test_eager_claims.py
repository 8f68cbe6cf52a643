"""Eager claims, which come back with a commit or a start: their slots, their epochs, and callers that are cancelled."""

import asyncio
import contextlib

import pytest

from resurgam import Context, Engine, Registry, RetryPolicy
from resurgam.core import event as events
from resurgam.errors import StoreError
from resurgam.store import records as r
from resurgam.store.memory.store import MemoryStore
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from resurgam.worker import eager
from resurgam.worker.fair_share import REFILL
from resurgam.worker.worker import Worker
from support.submitting import submit_by_commit, without_first_commits

LEASE = 3600
TURNS = 100
BETWEEN = 20


async def turn(turns=TURNS):
    """Let everything run that can without time passing."""
    for _ in range(turns):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Stores that fail and turns that are called off are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


@pytest.fixture
def clock():
    """Time that moves only when it is told to."""
    return ManualClock()


@pytest.fixture
async def sqlite(clock):
    """A SQLite store; engines that are given it leave it open."""
    store = SqliteStore(None, clock, name="one", lease=LEASE * 1000, synchronous="OFF")
    yield store
    await store.close()


@pytest.fixture(params=["memory", "sqlite"])
def store(request, clock):
    """Each store in its turn."""
    if request.param == "memory":
        return MemoryStore(clock, lease=LEASE * 1000)
    return request.getfixturevalue("sqlite")


def serve(store, registry, **options):
    """Make an engine on a store, in the store's own time; leases outlive every test, so that none mends a fault."""
    return Engine(store, registry=registry, clock=store._clock, lease=LEASE, grace=0, **options)


@contextlib.contextmanager
def writing_takes_its_time(sqlite):
    """Let whatever is written meanwhile wait, as for a lock that another process holds on the file; then it is written."""
    writer = sqlite._writer
    before = writer._running = asyncio.get_running_loop().create_future()
    try:
        yield
    finally:
        writer._running = None
        before.set_result(None)
        writer._flush()


async def call_off(task):
    """Cancel a task and wait for its end."""
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


class Around:
    """A store around another; what is special happens at the first commit that asks for activities."""

    def __init__(self, store):
        self._store = store
        self.happened = False

    def create(self, parts):
        """Start, with the first commit by itself."""
        return self._store.create(without_first_commits(parts))

    def submit(self, part, done):
        """Commit in a task: what is special happens there."""
        submit_by_commit(self.commit, part, done)

    def __getattr__(self, verb):
        return getattr(self._store, verb)

    def _happens(self, parts):
        now = not self.happened and any(part.outcome.activities for part in parts)
        self.happened |= now
        return now


class Doubtful(Around):
    """The commit is applied, and then said to have failed."""

    async def commit(self, parts):
        """Commit; once, the answer is lost."""
        answers = await self._store.commit(parts)
        if self._happens(parts):
            raise StoreError("connection lost")
        return answers


class Crossing(Around):
    """The commit crosses a request to cancel its workflow."""

    async def commit(self, parts):
        """Commit; once, after what the worker hears of by the answer only."""
        if self._happens(parts):
            event = events.CancelRequested(at=self._clock.now())
            await self._store.deliver([r.Delivery(event=event, entity_id=part.entity_id) for part in parts])
        return await self._store.commit(parts)


class Shop:
    """A registry with an activity that goes on until it is let, and what was begun."""

    def __init__(self):
        self.registry = Registry()
        self.proceed = asyncio.Event()
        self.begun = []

        @self.registry.workflow
        async def quick(ctx: Context) -> str:
            return "done"

        @self.registry.workflow
        async def listens(ctx: Context) -> str:
            return await ctx.listen("go", type=str)

        @self.registry.workflow
        async def sleeps(ctx: Context) -> str:
            await ctx.sleep(5)
            return "awake"

        async def work() -> str:
            self.begun.append("work")
            await self.proceed.wait()
            return "worked"

        here = self.registry.activity(work, name="work")
        there = self.registry.activity(work, name="work elsewhere", queue="elsewhere")

        @self.registry.workflow
        async def works(ctx: Context) -> str:
            return await ctx.activity(here)

        @self.registry.workflow
        async def works_elsewhere(ctx: Context) -> str:
            return await ctx.activity(there)


@pytest.fixture
def shop():
    """The registry of most tests."""
    return Shop()


# Deadlines.


async def test_a_due_timer_is_not_lost_when_a_wait_begins_before_its_alarm_has_rung(shop, store, clock):
    """A late event loop sees a deadline in the past; a wait that begins then does not take over its alarm."""
    async with serve(store, shop.registry) as engine:
        handle = await engine.start("sleeps")
        await turn()
        clock._now += 6000  # time has passed, and the loop has not come to the alarm yet
        waiting = asyncio.ensure_future(handle.result())
        await turn()
        clock.move_to(clock.now())
        await turn()

        assert (await handle.describe()).status == "completed"
        assert await waiting == "awake"


# Commits in doubt.


async def test_a_worker_in_doubt_about_its_commit_leaves_the_lease_that_another_has_of_an_activity(shop, store, clock):
    """It gives back what its own commit may have claimed; what another has claimed since has another epoch."""
    async with (
        serve(Doubtful(store), shop.registry) as asking,
        serve(store, shop.registry, queues=("elsewhere",)),
    ):
        handle = await asking.start("works_elsewhere")
        await turn()
        claimed = list(shop.begun)
        clock.move_to(clock.now() + 2000)  # the pause after the failure is over, and the worker looks
        await turn()
        begun = list(shop.begun)
        stats = (await store.inspector.stats()).queues["elsewhere"]
        shop.proceed.set()
        await turn()

        assert asking.store.happened
        assert claimed == begun == ["work"]
        assert (stats.activities, stats.claimed_activities) == (0, 1)
        assert (await handle.describe()).status == "completed"
        assert shop.begun == ["work"]


# ManualWorker.


async def test_commits_that_are_written_together_claim_no_more_activities_than_there_are_slots(shop, store):
    """Each commit reserves its slots while it is under way; no two count on the same slot."""
    async with serve(store, shop.registry, max_activities=2) as engine:
        handles = await asyncio.gather(*(engine.start("works") for _ in range(20)))
        await turn()
        begun = len(shop.begun)
        shop.proceed.set()
        await turn()
        await turn()

        assert begun == 2
        assert [(await handle.describe()).status for handle in handles] == ["completed"] * 20
        assert len(shop.begun) == 20


@pytest.mark.parametrize(("slots", "share"), [(100, 20), (1, 1)])
async def test_a_worker_with_peers_begins_its_share_of_a_queue_and_the_rest_when_they_are_gone(
    store, clock, slots, share
):
    """Activities of a queue that it does not serve count for nothing; peers that do not claim hold nothing up."""
    for name in ("first", "second"):
        peer = r.Announcement(worker_id=name, host="h", pid=1, build="b", queues=("a",), slots=1)
        await store.workers.announce(peer, LEASE)
    registry = Registry()
    proceed = asyncio.Event()
    begun = []

    async def work(number: int) -> None:
        begun.append(number)
        await proceed.wait()

    here = registry.activity(work, name="here", queue="a")
    there = registry.activity(work, name="there", queue="b")

    @registry.workflow
    async def fans_out(ctx: Context) -> None:
        await asyncio.gather(*(ctx.activity(act, number) for number in range(60) for act in (there, here)))

    async with serve(store, registry, queues=("default", "a"), max_activities=slots) as engine:
        await turn()
        await engine.start(fans_out)
        await turn()
        assert begun == list(range(share))
        proceed.set()
        for _ in range(10):
            await turn()
            clock.move_to(clock.now() + REFILL)
        await turn()
        assert begun == list(range(60))
        assert (await store.inspector.stats()).queues["b"].activities == 60


async def test_an_activity_that_the_next_commit_withdraws_is_cancelled_at_once(shop, store):
    """Its commit has claimed it, and brought the request to cancel the workflow along with the claim."""
    async with serve(Crossing(store), shop.registry) as engine:
        await turn()  # the worker has announced itself: a commit then finds no other to wait for
        handle = await engine.start("works")
        await turn()

        assert (await handle.describe()).status == "cancelled"
        types = [entry.type for entry in await handle.history()]
        assert "activity_scheduled" in types
        assert "activity_completed" not in types
        assert not shop.proceed.is_set()  # so an attempt that had begun was cancelled
        assert engine.busy == 0


# Claims whose answer is lost.


async def test_a_workflow_whose_start_was_cancelled_while_it_was_written_is_served(shop, sqlite):
    """The start had claimed it for the worker of its engine, which is told though the caller is gone."""
    async with serve(sqlite, shop.registry) as engine:
        await turn()
        with writing_takes_its_time(sqlite):
            starting = asyncio.ensure_future(engine.start("quick", id="x"))
            await turn()
            await call_off(starting)
        await turn()

        assert (await engine.handle("x").describe()).status == "completed"


async def test_a_signal_that_was_cancelled_while_it_was_written_is_heard(shop, sqlite):
    """The signal had claimed the workflow, as a start does."""
    async with serve(sqlite, shop.registry) as engine:
        handle = await engine.start("listens")
        await turn()
        with writing_takes_its_time(sqlite):
            signalling = asyncio.ensure_future(handle.signal("go", "now"))
            await turn()
            await call_off(signalling)
        await turn()

        assert (await handle.describe()).status == "completed"
        assert await handle.result() == "now"


async def test_a_workflow_that_was_being_started_when_its_engine_stopped_is_left_for_another(shop, clock, tmp_path):
    """An engine that stops waits for what is being claimed in its name, and gives it back before it closes its store."""
    url = f"sqlite:///{tmp_path}/x.db?synchronous=off"
    options = {"registry": shop.registry, "clock": clock, "lease": LEASE, "grace": 0}
    engine = Engine(url, **options)
    await engine.__aenter__()
    await turn()
    with writing_takes_its_time(engine._store):
        starting = asyncio.ensure_future(engine.start("quick", id="x"))
        await turn()
        leaving = asyncio.ensure_future(engine.__aexit__(None, None, None))
        await turn()
    await asyncio.gather(starting, leaving)

    async with Engine(url, **options) as another:
        await turn()
        assert (await another.handle("x").describe()).status == "completed"


async def test_a_start_that_comes_to_its_turn_when_its_engine_stops_is_left_for_another(
    shop, clock, tmp_path, monkeypatch
):
    """It is stored, but its code is not run by a worker that takes nothing more."""
    monkeypatch.setattr(eager, "_STARTS", 1)
    url = f"sqlite:///{tmp_path}/x.db?synchronous=off"
    options = {"registry": shop.registry, "clock": clock, "lease": LEASE, "grace": 0}
    engine = Engine(url, **options)
    await engine.__aenter__()
    await turn()
    with writing_takes_its_time(engine._store):
        starting = [asyncio.ensure_future(engine.start("quick", id=name)) for name in ("first", "second")]
        await turn()
        leaving = asyncio.ensure_future(engine.__aexit__(None, None, None))
        await turn()
        monkeypatch.setattr(Worker, "begin", None)
    await asyncio.gather(*starting, leaving)

    monkeypatch.undo()
    async with Engine(url, **options) as another:
        await turn()
        for name in ("first", "second"):
            assert (await another.handle(name).describe()).status == "completed"


async def test_an_activity_claimed_by_a_commit_that_was_cancelled_at_the_end_of_the_grace_is_given_back(sqlite):
    """The commit is written all the same; what it claimed was never begun, and so may be delivered, though only once."""
    registry = Registry()
    proceed = asyncio.Event()
    begun = []

    @registry.activity
    async def first() -> None:
        await proceed.wait()

    @registry.activity(retry=RetryPolicy(max_attempts=1, redeliver=False))
    async def once() -> str:
        begun.append("once")
        return "done"

    @registry.workflow
    async def two(ctx: Context) -> str:
        await ctx.activity(first)
        return await ctx.activity(once)

    engine = serve(sqlite, registry)
    await engine.__aenter__()
    await engine.start(two, id="x")
    await turn()
    with writing_takes_its_time(sqlite):
        proceed.set()
        await turn()  # the commit that asks for `once` is under way
        leaving = asyncio.ensure_future(engine.__aexit__(None, None, None))
        await turn()
    await leaving
    left = list(begun)

    async with serve(sqlite, registry) as another:
        await turn()
        handle = another.handle("x")
        assert left == []
        assert (await handle.describe()).status == "completed"
        assert await handle.result() == "done"
        assert begun == ["once"]


async def test_an_import_that_was_cancelled_while_it_was_written_is_noticed(shop, sqlite):
    """Those who wait are told by the writer, not by the caller, who may be gone."""
    async with serve(MemoryStore(sqlite._clock), shop.registry, worker=False) as elsewhere:
        await elsewhere.start("quick", id="x")
        lines = await elsewhere.export("x")
    async with serve(sqlite, shop.registry) as engine:
        await turn()
        with writing_takes_its_time(sqlite):
            importing = asyncio.ensure_future(engine.import_(lines))
            await turn()
            await call_off(importing)
        await turn()

        assert (await engine.handle("x").describe()).status == "completed"


async def test_a_worker_that_stops_begins_no_start_that_still_waits_for_its_turn(store, monkeypatch):
    """It would claim the execution, and neither serve nor release it."""
    monkeypatch.setattr("resurgam.worker.eager._STARTS", 1)
    registry, ran = Registry(), []

    @registry.workflow
    async def notes(ctx: Context, number: int) -> None:
        await ctx.run(ran.append, number)

    async with Engine(store, registry=registry, clock=ManualClock(), lease=LEASE, grace=0) as engine:
        starts = [asyncio.create_task(engine.start(notes, number, id=f"{number}")) for number in range(5)]
        await asyncio.sleep(0)
        worker = engine._worker
    after_stop = list(ran)
    await asyncio.gather(*starts)
    await turn()

    assert ran == after_stop
    assert not worker._instances
    for number in range(len(ran), 5):
        [copy] = await store.transfer.copies(f"{number}")
        work = await store.inspector.open_work(copy.instance)
        assert work is not None
        assert work.worker is None


async def test_a_start_that_is_cancelled_while_it_begins_keeps_no_slot(store, monkeypatch):
    """Where a tick must not run inside a task, it is begun one iteration before its caller goes on."""
    begun = asyncio.Event()

    async def run_and_wait(function):
        function()
        begun.set()
        await asyncio.Future()

    monkeypatch.setattr("resurgam.worker.eager.TICKS_OUTSIDE_TASKS", True)
    monkeypatch.setattr("resurgam.worker.eager.run_outside_task", run_and_wait)
    registry = Registry()

    @registry.activity
    async def step() -> None: ...

    @registry.workflow
    async def one(ctx: Context) -> None:
        await ctx.activity(step)

    async with Engine(store, registry=registry, clock=ManualClock(), lease=LEASE) as engine:
        slots = engine._worker._slots
        free = slots.free
        starting = asyncio.create_task(engine.start(one))
        await begun.wait()
        assert slots.free == free - 1
        starting.cancel()
        await asyncio.wait([starting])
        assert slots.free == free
