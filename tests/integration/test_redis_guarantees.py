"""What a Redis store holds under concurrency, and what it leaves behind: one server, and a cluster of three."""

import asyncio

import pytest

from resurgam.core import event as events
from resurgam.core.outcome import Message, Outcome, Succession
from resurgam.core.state import Status
from resurgam.runtime.registry import Registry
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.redis.store import RedisStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import HOUR, LEASE, QUEUE, Bench, OpensStores, ids, request, signal, values
from resurgam.testing.contract.children import request_of
from resurgam.testing.contract.messages import DELIVERED, MISSING, message
from resurgam.testing.contract.succession import MOVES
from support.engines import Engines, Interposed, settle
from support.redis import effects_arrived, fresh_cluster_url, fresh_url, shared_cluster, shared_server
from support.stores import STORES

PATIENT = 60
WORK = r.Work(worker="first", queues=(QUEUE,))


class Backend(OpensStores):
    """The parameters of a Redis store."""

    partitions = 16

    async def effects_arrived(self, store):
        await effects_arrived(store)


class Opened:
    """Two openings of one store, by which two processes could act."""

    def __init__(self, url):
        self.url = url
        self.clock = ManualClock()
        self.stores = [RedisStore(url, self.clock, name=name, lease=LEASE) for name in ("one", "two")]
        self.one, self.two = (Bench(store, self.clock, Backend()) for store in self.stores)

    @property
    def servers(self):
        return shared_cluster().servers if "cluster" in self.url else [shared_server()]

    def stored(self, pattern="*"):
        """Return the keys of the store that match, on all servers."""
        return sorted(key for server in self.servers for key in self.stored_on(server, pattern))

    def stored_on(self, server, pattern="*"):
        """Return the keys of the store that match, on one server."""
        prefix = self.url.rpartition("prefix=")[2]
        return server.ask("KEYS", f"{prefix}:{{*}}:{pattern}")


@pytest.fixture(params=[fresh_url, fresh_cluster_url], ids=["single", "cluster"])
async def opened(request):
    opened = Opened(request.param())
    try:
        yield opened
    finally:
        for store in opened.stores:
            await store.close()


# No lost wake-up.


async def test_no_signal_is_lost_while_an_instance_is_claimed_and_released(opened):
    """Each may come before the claim, while the instance is held, or after the commit that releases it.

    The last ones come while it is held, and nothing comes behind them.
    """
    sent, last = [f"{number}" for number in range(300)], ["a", "b", "c"]
    await opened.one.create()

    async def send():
        for value in sent:
            await opened.two.send_signals("order", value)

    got: list[str] = []

    async def receive():
        while len(got) < len(sent) + len(last):
            await opened.one.store.wait(WORK)
            for claim in await opened.one.claim():
                got.extend(values(claim.inbox))
                for value in last[len(got) - len(sent) :][:1] if len(got) >= len(sent) else ():
                    await opened.two.send_signals("order", value)
                await opened.one.committed(claim, consumed=ids(claim.inbox))

    await asyncio.wait_for(asyncio.gather(send(), receive()), PATIENT)
    assert got == sent + last
    assert not await opened.one.claim()


async def test_a_claim_brings_the_inbox_of_its_moment(opened):
    """Whatever another worker consumes afterwards; and one that finds nothing there is a claim all the same."""
    await opened.one.create()
    await opened.one.send_signals("order", "a", "b")
    late = await opened.one.claim_one()
    opened.clock.move_to(opened.clock.now() + LEASE)
    claim = await opened.two.claim_one()
    await opened.two.committed(claim, consumed=ids(claim.inbox))
    assert values(late.inbox) == values(claim.inbox) == ["a", "b"]
    assert isinstance(await opened.one.commit(late, consumed=ids(late.inbox)), r.Refused)
    await opened.two.send_signals("order", "c")
    claim = await opened.two.claim_one()
    kept = await opened.two.committed(claim, consumed=ids(claim.inbox), release=False)
    opened.clock.move_to(opened.clock.now() + LEASE)
    assert (await opened.one.claim_one()).inbox == ()
    assert kept.inbox == ()


async def test_no_signal_is_lost_across_continuations(opened):
    """Each is addressed to the entity, and received by the execution that is the newest then, or by the next."""
    sent = [f"{number}" for number in range(300)]
    await opened.one.create()

    async def send():
        for value in sent:
            assert await opened.two.send_signal("order", value) == r.Delivered()

    got: list[str] = []
    generations = 1

    async def receive():
        nonlocal generations
        while len(got) < len(sent):
            await opened.one.store.wait(WORK)
            for claim in await opened.one.claim():
                taken = claim.inbox[:5]
                got.extend(values(taken))
                if claim.instance.status.terminal:
                    await opened.one.committed(claim, status=Status.CONTINUED, deactivated=True)
                    continue
                generations += 1
                successor = Succession(started=opened.one.started(generation=generations), moves=MOVES)
                continued = {"status": Status.CONTINUED, "deactivated": True, "successor": successor}
                await opened.one.committed(claim, consumed=ids(taken), **continued)

    await asyncio.wait_for(asyncio.gather(send(), receive()), PATIENT)
    assert got == sent
    copies = await opened.one.store.transfer.copies("order")
    assert len(copies) == generations
    assert [copy.instance.status.terminal for copy in copies] == [True] * (generations - 1) + [False]


# Nothing is left behind, and nothing that is gone stands in the way.


async def test_answered_activities_leave_nothing_behind(opened):
    before = None
    for number in range(20):
        await opened.one.wanting(2, 3, entity_id=f"order-{number}")
        for task in await opened.one.tasks():
            assert await opened.one.answer(task) == r.Accepted()
        assert not opened.stored("work-*")
        claim = await opened.one.claim_one(queues=["wanting"])
        await opened.one.end(claim, consumed=ids(claim.inbox))
        await opened.one.store.purge([claim.instance])
        before = before or opened.stored()
        kept = set(opened.stored()) - set(before)
        assert not [key for key in kept if b"order" in key or b"activity" in key or b"execution" in key], kept
    assert not opened.stored("activity-*")
    assert not opened.stored(f"activities-{QUEUE}")


async def test_a_purged_execution_leaves_no_key_and_no_member(opened):
    """Not even as the parent of a child, as the sender of messages, or with a deadline."""
    parent = await opened.one.create()
    claim = await opened.one.claim_one()
    child = request_of(opened.one, parent, "child", queue="child")
    kept = await opened.one.committed(claim, children=(child,), wake_at=opened.clock.now() + HOUR, release=False)
    await opened.one.want(claim, request(2), wake=kept.wake, release=False)
    await opened.one.send_signals("order", "unread")
    await opened.one.deliver(events.WorkflowTerminated())
    assert await opened.one.store.purge([parent]) == [r.Purged()]
    execution_id = parent.execution_id.encode()
    assert not [key for key in opened.stored() if execution_id in key]
    for server in opened.servers:
        for key in opened.stored_on(server):
            if server.ask("TYPE", key) == b"zset":
                assert server.ask("ZSCORE", key, execution_id) is None, key


async def test_an_effect_on_what_is_gone_is_answered_and_holds_up_none_behind_it(opened):
    """A child whose parent is gone ends, and a message behind one that cannot be delivered arrives."""
    gone, living = opened.one.beside("gone"), opened.one.beside("living")
    assert await opened.one.store.purge([await opened.one.ended(gone)]) == [r.Purged()]
    await opened.one.create(living, queue="living")
    sender = next(name for name in map(str, range(100)) if opened.one._partition(name) != opened.one._partition(gone))
    await opened.one.create(sender)
    sent = (message(signal("a"), gone), message(signal("b"), living, ref=3), Message(event=signal("c"), entity_id=gone))
    done = await opened.one.committed(await opened.one.claim_one(), messages=sent, release=False)
    told = {entry.event.ref: type(entry.event) for entry in done.inbox}
    assert told == {2: type(MISSING), 3: type(DELIVERED)}
    assert values((await opened.two.claim_one(queues=["living"])).inbox) == ["b"]


async def test_an_answer_to_a_sender_that_is_gone_holds_up_none_behind_it(opened):
    """The sender is purged before its message arrives; another of its partition waits for the next answer."""
    target = opened.one.beside("target")
    sender, other = [name for name in map(str, range(1000)) if opened.one._partition(name) == _far_from(opened.one)][:2]
    await opened.one.create(target, queue="targets")
    opened.stores[0]._outbox.drive = lambda *_: None
    await opened.one.create(sender)
    ending = {"status": Status.COMPLETED, "deactivated": True}
    gone = await opened.one.claim_one()
    await opened.one.committed(gone, messages=(message(signal("a"), target),), **ending)
    assert await opened.one.store.purge([gone.instance]) == [r.Purged()]
    await opened.one.create(other)
    claim = await opened.one.claim_one()
    kept = await opened.one.committed(claim, messages=(message(signal("b"), target, ref=3),), release=False)
    opened.stores[1]._outbox.drive(opened.one._partition(other), opened.one._partition(target))
    await opened.two.create("opened")  # the second store is open
    await effects_arrived(opened.stores[1])
    assert values((await opened.two.claim_one(queues=["targets"])).inbox) == ["a", "b"]
    lease = r.Lease(entity_id=other, execution_id=claim.instance.execution_id, epoch=claim.epoch, wake=kept.wake)
    [extended] = await opened.two.store.extend([lease])
    assert [entry.event.ref for entry in extended.inbox] == [3]


def _far_from(bench):
    """Return a partition that is not that of ``order``."""
    return (bench._partition("order") + 1) % 16


async def test_a_member_of_which_nothing_is_known_is_in_the_way_of_none(opened):
    """Whatever has left it in a list: those behind it are claimed, and it is gone."""
    await opened.one.wanting(2)
    await opened.one.create(opened.one.beside("next"))
    [ready] = opened.stored(f"ready-{QUEUE}")
    [server] = [server for server in opened.servers if opened.stored_on(server, f"ready-{QUEUE}")]
    prefix = ready.removesuffix(f"ready-{QUEUE}".encode())
    strays = [(b"ready-default", b"stray"), (b"timers", b"stray"), (b"activities-default", b"stray-2")]
    for name, member in strays:
        server.ask("ZADD", prefix + name, 1, member)
    assert len(await opened.one.claim()) == len(await opened.one.tasks()) == 1
    assert [server.ask("ZSCORE", prefix + name, member) for name, member in strays] == [None] * 3


async def test_effects_of_a_store_that_is_gone_are_carried_by_another(opened):
    """They are in the outbox of a partition; another store finds them when it looks for work a lease later."""
    for number in range(16):
        await opened.one.create(f"target-{number}", queue="targets")
    opened.stores[0]._outbox.drive = lambda *_: None  # it dies with the commit
    await opened.one.create("sender")
    sent = tuple(Message(event=signal("x"), entity_id=f"target-{number}") for number in range(16))
    await opened.one.store.commit([await _commit_of(opened.one, sent)])
    assert opened.stored("outbox-*")
    opened.clock.move_to(opened.clock.now() + LEASE + 1)
    async with asyncio.timeout(PATIENT):
        while opened.stored("outbox-*"):
            await opened.two.store.wait(WORK, opened.clock.now() - 1)
            await opened.two.store.claim("second", ("nothing",), 1)
            await effects_arrived(opened.stores[1])
    claims = await opened.two.claim(queues=["targets"])
    assert [values(claim.inbox) for claim in claims] == [["x"]] * 16


async def _commit_of(bench, messages):
    claim = await bench.claim_one()
    return r.Commit(
        entity_id=claim.instance.entity_id,
        execution_id=claim.instance.execution_id,
        epoch=claim.epoch,
        base_seq=1,
        wake=claim.wake,
        outcome=Outcome(messages=messages),
        worker="first",
    )


# Order, names, time.


async def test_roots_and_children_are_listed_in_one_order_of_creation(opened):
    names = []
    for number in range(6):
        root = await opened.one.create(f"root-{number}")
        opened.clock.move_to(opened.clock.now() + 1)
        claim = await opened.one.claim_one()
        child = request_of(opened.one, root, f"child-{number}", queue="children")
        await opened.one.committed(claim, children=(child,))
        opened.clock.move_to(opened.clock.now() + 1)
        for told in await opened.one.claim():
            await opened.one.committed(told, consumed=ids(told.inbox))
        names += [f"root-{number}", f"child-{number}"]
    page = await opened.two.store.inspector.list(r.Query())
    assert [found.entity_id for found in page.instances] == names[::-1]


async def test_a_value_may_expire_within_a_millisecond():
    """By the clock of the server."""
    clock = SystemClock()
    store = RedisStore(fresh_url(), clock, name="one", lease=LEASE)
    try:
        await store.values.put("k", b"v", expires_at=clock.now() + 1)
        async with asyncio.timeout(PATIENT):
            while await store.values.get("k") is not None:
                await asyncio.sleep(0)
    finally:
        await store.close()


async def test_each_server_of_a_cluster_holds_a_fifth_of_the_instances():
    opened = Opened(fresh_cluster_url())
    try:
        parts = [r.Creation(started=opened.one.started(f"order-{number}")) for number in range(600)]
        await opened.one.store.create(parts)
        counts = [len(opened.stored_on(server, "instances-*")) for server in opened.servers]
        assert sum(counts) == 600
        assert min(counts) >= 120, counts
    finally:
        for store in opened.stores:
            await store.close()


# The engine.


@pytest.mark.parametrize("store", ["redis", "redis-cluster"])
@pytest.mark.parametrize("cache", [1000, 0], ids=["cached", "replayed"])
async def test_two_hundred_signals_that_come_before_their_listener_are_heard_in_order(store, cache):
    registry = Registry()

    @registry.workflow
    async def collect(ctx, number: int) -> list[int]:
        await ctx.sleep(60)
        return [await ctx.listen("number", type=int) for _ in range(number)]

    async with Engines(STORES[store], cache).open(registry) as env:
        handle = await env.start(collect, 200)
        await asyncio.gather(*(handle.signal("number", number) for number in range(200)))
        heard = await env.finish(handle.result())
        assert sorted(heard) == list(range(200))
        again = await env.start(collect, 200)
        for number in range(200):
            await again.signal("number", number)
        assert await env.finish(again.result()) == list(range(200))


@pytest.mark.parametrize("store", ["redis", "redis-cluster"])
@pytest.mark.parametrize("cache", [1000, 0], ids=["cached", "replayed"])
async def test_two_hundred_signals_that_come_before_any_worker_are_heard_in_order(store, cache):
    """All of them wait in the inbox."""
    registry = Registry()

    @registry.workflow
    async def collect(ctx, number: int) -> list[int]:
        return [await ctx.listen("number", type=int) for _ in range(number)]

    engines = Engines(STORES[store], cache)
    async with engines.client(registry) as (opened, clock, engine):
        handle = await engine.start(collect, 200)
        for number in range(200):
            await handle.signal("number", number)
        async with engines.serve(opened, clock, registry) as env:
            assert await env.finish(env.handle(handle.entity_id).result()) == list(range(200))


async def test_an_activity_that_ends_because_its_lease_is_lost_is_not_recorded_as_failed():
    """Another worker runs it, and that result is the one in the log."""
    registry = Registry()
    begun, stopped = [], []

    @registry.activity
    async def work() -> str:
        begun.append(len(begun) + 1)
        if len(begun) == 1:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append(1)
        return f"attempt {len(begun)}"

    @registry.workflow
    async def once(ctx) -> str:
        return await ctx.activity(work)

    engines = Engines(STORES["redis"], 1000)
    clock = ManualClock()
    async with engines.open_store(clock) as store:
        forgetful = Forgetful(store)
        async with engines.serve(forgetful, clock, registry) as lost:
            handle = await lost.start(once)
            async with engines.serve(store, clock, registry) as other:
                result = await other.finish(other.handle(handle.entity_id).result())
            assert result == "attempt 2"
            assert stopped == [1]
            assert set(forgetful.answers) <= {"activity_completed"}  # it may have claimed the second attempt
            history = await store.inspector.history(await store.inspector.get(handle.entity_id))
        assert "activity_failed" not in [entry.type for entry in history]


class Forgetful:
    """A store whose renewals are all refused, as those of a worker that stood still for too long."""

    def __init__(self, store):
        self._store = store
        self.answers = []

    async def complete_activities(self, results):
        self.answers += [result.event.type for result in results]
        return await self._store.complete_activities(results)

    async def extend(self, leases):
        return [r.Refused(reason="the lease is lost") for _ in leases]

    def __getattr__(self, verb):
        return getattr(self._store, verb)


async def test_a_worker_whose_commit_is_refused_goes_on_from_the_log():
    """It drops the coroutine that is ahead of the log at once, and replays."""
    registry = Registry()
    taken, dropped, alive = [], [], []

    @registry.workflow
    async def steps(ctx) -> list[int]:
        alive.append(ctx)  # or the end of the last reference to it would close it too
        try:
            return [await ctx.run(lambda n=n: n, name=f"step-{n}") for n in range(3)]
        except GeneratorExit:
            dropped.append("the one that is ahead")
            raise

    async def take_over(part):
        """Take the lease away before the second commit."""
        if part.base_seq > 1 and not taken:
            lease = r.Lease(entity_id=part.entity_id, execution_id=part.execution_id, epoch=part.epoch)
            taken.extend(await store.release([r.Release(lease=lease)]))

    engines = Engines(STORES["redis"], 1000)
    clock = ManualClock()
    async with engines.open_store(clock) as store:
        async with engines.serve(Interposed(store, take_over), clock, registry) as env:
            disturbed = await env.start(steps)
            assert await env.finish(disturbed.result()) == [0, 1, 2]
            assert taken == [r.Released()]
            assert dropped == ["the one that is ahead"]
            undisturbed = await env.start(steps)
            assert await env.finish(undisturbed.result()) == [0, 1, 2]
            first, second = [
                await store.inspector.history(await store.inspector.get(one.entity_id))
                for one in (disturbed, undisturbed)
            ]
    assert [(entry.seq, entry.type) for entry in first] == [(entry.seq, entry.type) for entry in second]


@pytest.mark.parametrize("store", ["redis", "redis-cluster"])
async def test_a_worker_whose_coroutine_is_behind_the_log_goes_on_from_the_log(store):
    """Another worker has served the instance since this one kept it in memory."""
    registry = Registry()

    @registry.workflow
    async def collect(ctx) -> list[int]:
        return [await ctx.listen("number", type=int) for _ in range(3)]

    engines = Engines(STORES[store], 1000)
    clock = ManualClock()
    async with engines.open_store(clock) as opened:
        idle, other = NeverAsks(opened), NeverAsks(opened)
        async with engines.serve(idle, clock, registry) as kept, engines.serve(other, clock, registry) as between:
            handle = await kept.start(collect)
            await settle(kept, between)
            for number, env in enumerate((between, kept, between)):
                await env.handle(handle.entity_id).signal("number", number)
                await settle(kept, between)
            assert await kept.finish(handle.result()) == [0, 1, 2]


class NeverAsks:
    """A store that claims instances only with what it starts or delivers itself."""

    def __init__(self, store):
        self._store = store

    async def claim(self, worker, queues, limit):
        return []

    def __getattr__(self, verb):
        return getattr(self._store, verb)
