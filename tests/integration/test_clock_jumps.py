"""A clock that jumps back an hour at any moment: time in a history stands still, everything ends, nothing is done again."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest

from resurgam import Context, Engine, Registry, RetryPolicy, errors
from resurgam.core import event as events
from resurgam.runtime.definitions.info import activity_info
from resurgam.store.memory.store import MemoryStore
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import Environment, ManualClock
from support.cluster import check_effects, check_run, key_of
from support.shop import Effect

HOUR = 3_600_000
LEASE = 10_000
TURNS = 40


@pytest.fixture(autouse=True)
def no_chance(monkeypatch):
    """Retries come at the same moments each time."""
    monkeypatch.setattr("resurgam.runtime.system.chance", lambda: 0.5)


class LoopClock:
    """A clock whose calls keep their distance when it jumps, as those of an event loop do; `ManualClock` keeps moments."""

    def __init__(self, inner: ManualClock | None = None) -> None:
        self._inner = inner or ManualClock()
        self._behind = 0

    def now(self):
        return self._inner.now() - self._behind

    def call_at(self, when, callback):
        return self._inner.call_at(when + self._behind, callback)

    def next_due(self):
        due = self._inner.next_due()
        return None if due is None else due - self._behind

    def move_to(self, when):
        self._inner.move_to(when + self._behind)

    def set_back(self, milliseconds):
        self._behind += milliseconds


class Shop:
    """A workflow with timers, retries, leases and deadlines that are all open at once, and what it has done."""

    def __init__(self, clock) -> None:
        self.clock = clock
        self.registry = Registry()
        self.store = None
        self.effects: list[Effect] = []
        self.repeated: list[Effect] = []
        self.order = self._register()

    def _register(self):
        activity, workflow = self.registry.activity, self.registry.workflow

        @activity(retry=RetryPolicy(initial_interval=7, max_attempts=5))
        async def flaky(fails: int) -> int:
            attempt = await self._note()
            if attempt <= fails:
                raise ValueError(f"attempt {attempt}")
            return attempt

        @activity(timeout=120)
        async def slow(seconds: int) -> int:
            """Takes longer than a lease."""
            await self._note()
            over = asyncio.get_running_loop().create_future()
            self.clock.call_at(self.clock.now() + 1000 * seconds, lambda: over.done() or over.set_result(seconds))
            return await over

        def stamp(entity_id: str) -> str:
            self.effects.append(Effect(entity_id, "stamp", "", 1, 0))
            return "stamped"

        @workflow
        async def order(ctx: Context) -> list[object]:
            moments = [ctx.now()]

            async def timed(seconds: int) -> str:
                await ctx.sleep(seconds)
                moments.append(ctx.now())
                return "slept"

            async def listened() -> str:
                try:
                    return await ctx.listen("never", type=str, timeout=20)
                except errors.SignalTimeout:
                    moments.append(ctx.now())
                    return "nothing came"

            first = await asyncio.gather(
                ctx.activity(flaky, 2), ctx.activity(slow, 25), timed(5), timed(40), listened()
            )
            last = [await ctx.run(stamp, ctx.info.entity_id), await ctx.activity(flaky, 1), await timed(3)]
            assert moments == sorted(moments), "the time of a workflow went back"
            return [*first, *last]

        return order

    async def _note(self) -> int:
        """Write down an effect, and whether it was recorded as done already."""
        info = activity_info()
        effect = Effect(info.workflow_id, info.name, info.idempotency_key, info.attempt, 0)
        self.effects.append(effect)
        instance = await self.store.inspector.get(info.workflow_id)
        log = await self.store.read(instance)
        done = [log[entry.ref - 1] for entry in log if isinstance(entry, events.ActivityCompleted)]
        if effect.key in {key_of(log[0], command) for command in done}:
            self.repeated.append(effect)
        return info.attempt


RESULT = [3, 25, "slept", "slept", "nothing came", "stamped", 2, "slept"]


async def check(shop, handle) -> None:
    """Check a run that has ended: time stood still rather than going back, and the code still gives the same."""
    history = await handle.history()
    assert all(earlier.at <= later.at for earlier, later in pairwise(history))
    await check_run(shop.order, history, RESULT)
    check_effects(history, shop.effects)
    assert shop.repeated == []


def open_store(kind, folder, shop, name="one"):
    if kind == "memory":
        shop.store = MemoryStore(shop.clock, lease=LEASE)
    else:
        shop.store = SqliteStore(folder / "shop.db", shop.clock, name=name, lease=LEASE, synchronous="OFF")
    return shop.store


def said(caplog) -> list[str]:
    """Return what the workers said, beside that attempts failed, as they were meant to."""
    workers = [record for record in caplog.records if record.name.startswith("resurgam.")]
    return [record.getMessage() for record in workers if record.name != "resurgam.activity"]


async def turn(*stores) -> None:
    """Let everything run that can without time passing; a SQLite store may be waiting for its turn."""
    quiet = 0
    while quiet < TURNS:
        await asyncio.sleep(0)
        busy = any(isinstance(store, SqliteStore) and is_writing(store._writer) for store in stores)
        quiet = 0 if busy else quiet + 1


def is_writing(writer) -> bool:
    return writer._running is not None or writer._turn is not None


async def run_and_jump(shop, *, cache: int, jump: int) -> bool:
    """Run two orders, and let the clock jump after so many moments at which something was due; whether it did."""
    clock, store = shop.clock, shop.store
    async with Engine(store, clock=clock, registry=shop.registry, cache_size=cache, grace=0) as engine:
        handles = [await engine.start(shop.order, id=f"order-{number}") for number in range(2)]
        waiting = asyncio.gather(*(handle.result() for handle in handles))
        await turn(store)
        for moments in range(1000):
            if waiting.done():
                break
            if moments == jump:
                clock.set_back(HOUR)
            due = clock.next_due()
            assert due is not None, "nothing is due, and the orders are not finished"
            clock.move_to(due)
            await turn(store)
        assert await waiting == [RESULT, RESULT]
        for handle in handles:
            await check(shop, handle)
    return moments > jump


@pytest.mark.parametrize("cache", [1000, 0], ids=["cached", "replayed"])
@pytest.mark.parametrize("kind_of_clock", [ManualClock, LoopClock])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_clock_may_jump_back_at_any_moment(tmp_path, kind, kind_of_clock, cache, caplog):
    jump, jumped, stride = 0, True, 1 if kind == "memory" else 3
    while jumped:
        shop = Shop(kind_of_clock())
        folder = tmp_path / str(jump)
        folder.mkdir()
        open_store(kind, folder, shop)
        jumped = await run_and_jump(shop, cache=cache, jump=jump)
        await shop.store.close()
        attempts = Counter((effect.key, effect.attempt) for effect in shop.effects if effect.key)
        assert set(attempts.values()) == {1}, f"done twice, after a jump at moment {jump}"
        jump += stride
    assert jump > 10
    assert said(caplog) == []
    print(f"{jump} moments")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_what_a_lost_worker_held_before_the_jump_is_taken_over_after_it(tmp_path, kind):
    """Its leases end when they would have ended, an hour later by this clock."""
    clock = ManualClock()
    shop = Shop(clock)
    store = open_store(kind, tmp_path, shop)
    async with Engine(store, clock=clock, registry=shop.registry, worker=False) as client:
        await client.start(shop.order, id="order")
        await store.claim("lost", ["default"], 1)
        lost = clock.now()
    clock.set_back(HOUR)
    async with Environment(store=store, clock=clock, registry=shop.registry, patience=0.02) as env:
        handle = env.engine.handle("order")
        assert await env.finish(handle.result()) == RESULT
        assert (await handle.history())[1].at == lost + LEASE
        await check(shop, handle)
    await store.close()


@pytest.mark.parametrize("jump", [0, 8, 20])
async def test_two_machines_whose_clocks_are_an_hour_apart_share_their_work(tmp_path, jump, caplog, monkeypatch):
    """To the other, the leases of the one that jumped have long run out: it takes over, and the one is not heard."""
    # Each looks at every turn what the other has written.
    monkeypatch.setattr("resurgam.store.sqlite.watcher._HEARD", 0)
    time = ManualClock()
    begin = time.now()
    one, other = shops = [Shop(LoopClock(time)), Shop(LoopClock(time))]
    async with AsyncExitStack() as stack:

        async def start_worker(shop) -> Engine:
            open_store("sqlite", tmp_path, shop, name=f"machine-{shops.index(shop)}")
            stack.push_async_callback(shop.store.close)
            return await stack.enter_async_context(
                Engine(shop.store, clock=shop.clock, registry=shop.registry, grace=0)
            )

        engine = await start_worker(one)
        handles = [await engine.start(one.order, id=f"order-{number}") for number in range(4)]
        waiting = asyncio.gather(*(handle.result() for handle in handles))
        await turn(one.store)
        while not waiting.done():
            if other.store is None and time.now() >= begin + 1000 * jump:
                one.clock.set_back(HOUR)
                await start_worker(other)
            due = time.next_due()
            assert due is not None, "nothing is due, and the orders are not finished"
            time.move_to(due)
            await turn(*(shop.store for shop in shops))
        assert await waiting == [RESULT] * 4
        taken_over = {effect.key for effect in one.effects} & {effect.key for effect in other.effects}
        one.effects += other.effects
        one.repeated += other.repeated
        for handle in handles:
            await check(one, handle)
    assert taken_over
    assert any("is lost" in message or "refused" in message for message in said(caplog))
