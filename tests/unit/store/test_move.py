"""Moving live runs from one store to another."""

import asyncio
import itertools

import pytest

from resurgam import Context, Engine, Registry
from resurgam.core import event as events
from resurgam.core.errors import StoreError
from resurgam.core.state import Status
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.lock import Lock, archive_lock
from resurgam.store.move import Move, Options
from resurgam.testing.contract.bench import HOUR, LEASE, values
from support.moves import LIVE, PROMISE, Death, Died, copies_in, pair, populate, promise_id_of, without_pauses
from support.stores import open_late, open_memory, open_sqlite

PAIRS = {
    "memory-sqlite": (open_memory, open_sqlite),
    "sqlite-memory": (open_sqlite, open_memory),
    "late-memory": (open_late, open_memory),
}


@pytest.fixture(params=PAIRS)
async def p(request):
    async with pair(*PAIRS[request.param]) as found:
        yield found


# What moves.


async def test_live_runs_move_with_all_that_belongs_to_them(p):
    await populate(p.here)
    before = await copies_in(p.here.store)
    moved = await p.move()
    assert (moved.workflows, moved.executions, moved.left) == (len(LIVE), len(LIVE) + 1, {})
    after = await copies_in(p.there.store)
    assert after.keys() == LIVE
    for name in LIVE:
        assert list(map(without_pauses, after[name])) == list(map(without_pauses, before[name]))
    assert (await copies_in(p.here.store)).keys() == {"closed"}


async def test_runs_go_on_in_the_target_where_they_were(p):
    await populate(p.here)
    await p.move()
    p.clock.move_to(p.clock.now() + 2 * HOUR)
    claims = {
        claim.instance.entity_id: claim for claim in await p.there.claim(queues=("default", "parents", "wanting"))
    }
    assert claims.keys() == LIVE - {"halted"}
    assert values(claims["again"].inbox)[:1] == ["one"]
    assert [task.entity_id for task in await p.there.tasks(queues=("activities",))] == ["working"]
    assert not await p.here.claim(queues=("default", "parents", "wanting"))
    assert not await p.here.tasks(queues=("activities",))


async def test_a_pause_by_hand_stays_and_the_others_end(p):
    await populate(p.here)
    await p.move()
    assert await p.offered() == {name: [] if name == "halted" else ["there"] for name in LIVE}
    await p.there.resume("halted")
    assert await p.offered() == {name: ["there"] for name in LIVE}


async def test_promises_are_settled_in_the_target_by_the_ids_they_had(p):
    await populate(p.here)
    moved = await p.move()
    assert moved.same_secret
    delivery = r.Delivery(event=events.PromiseResolved(ref=0), promise_id=promise_id_of("again"))
    assert await p.here.store.deliver([delivery]) == [r.Missing()]
    assert await p.there.store.deliver([delivery]) == [r.Delivered()]
    held = await p.there.store.inspector.promise(delivery)
    assert held is not None
    assert (held.promise.name, held.promise.settled) == (PROMISE, True)


async def test_closed_workflows_move_if_they_are_asked_for(p):
    await populate(p.here)
    moved = await p.move(closed=True)
    assert moved.workflows == len(LIVE) + 1
    assert await copies_in(p.here.store) == {}
    assert (await copies_in(p.there.store)).keys() == LIVE | {"closed"}


async def test_a_workflow_that_is_named_moves_with_its_tree_alone(p):
    await populate(p.here)
    assert (await p.move(entity_ids=frozenset({"child"}))).workflows == 2
    assert (await copies_in(p.there.store)).keys() == {"parent", "child"}
    assert await p.offered() == {
        name: [] if name == "halted" else ["there" if name in {"parent", "child"} else "here"] for name in LIVE
    }


async def test_a_move_of_nothing_changes_nothing(p):
    assert (await p.move()).workflows == 0
    assert (await p.move(entity_ids=frozenset({"unknown"}))).workflows == 0


async def test_a_store_can_be_moved_back(p):
    await populate(p.here)
    before = await copies_in(p.here.store)
    await p.move()
    back = Move(p.there.store, p.here.store, p.clock, url="back", sleep=p._sleep)
    assert (await back.run()).workflows == len(LIVE)
    after = await copies_in(p.here.store)
    assert {name: list(map(without_pauses, found)) for name, found in after.items()} == {
        name: list(map(without_pauses, found)) for name, found in before.items()
    }
    assert await p.offered() == {name: [] if name == "halted" else ["here"] for name in LIVE}


# What comes in between.


async def test_what_is_under_way_is_waited_for(p):
    await populate(p.here)
    claim = next(one for one in await p.here.claim() if one.instance.entity_id == "again")
    [task] = await p.here.tasks(queues=("activities",))
    sleeps = itertools.count(1)

    async def sleep(seconds):
        if next(sleeps) == 3:
            await p.here.answer(task)
            await p.here.committed(claim, events.WorkflowBegun(seq=claim.instance.last_seq + 1))
        await p._sleep(seconds)

    course = Move(p.here.store, p.there.store, p.clock, url="x", sleep=sleep)
    assert (await course.run()).left == {}
    assert next(sleeps) < LEASE // 200
    [*_, copy] = await p.there.store.transfer.copies("again")
    assert isinstance(copy.log[-1], events.WorkflowBegun)
    [copy] = await p.there.store.transfer.copies("working")
    assert {type(event) for event in copy.inbox} >= {events.ActivityCompleted, events.WorkflowPaused}


async def test_nothing_moves_while_an_activity_runs_for_too_long(p):
    await populate(p.here)
    [task] = await p.here.tasks(queues=("activities",))
    moved = await p.move(patience=LEASE // 2)
    assert (moved.workflows, moved.left.keys()) == (0, {"working"})
    assert "'charge' runs on worker" in moved.left["working"]
    assert await p.offered() == {name: [] if name == "halted" else ["here"] for name in LIVE}
    assert await copies_in(p.there.store) == {}
    assert await p.here.answer(task) == r.Accepted()


async def test_a_lease_of_a_dead_worker_does_not_hold_up_a_move(p):
    await populate(p.here)
    await p.here.tasks(queues=("activities",))
    moved = await p.move(patience=2 * LEASE)
    assert moved.left == {}
    assert (await p.there.tasks(queues=("activities",)))[0].deliveries == 1


async def test_a_signal_that_comes_between_copy_and_removal_is_not_lost(p):
    await populate(p.here)
    remove = p.here.store.transfer.remove
    sent = []

    async def interrupted(parts):
        if not sent:
            sent.append(True)
            await p.here.send_signals("again", "two")
        return await remove(parts)

    p.here.store.transfer.remove = interrupted
    assert (await p.move()).left == {}
    claim = next(one for one in await p.there.claim() if one.instance.entity_id == "again")
    assert values([one for one in claim.inbox if isinstance(one.event, events.SignalReceived)]) == ["one", "two"]


async def test_a_run_that_is_resumed_by_hand_meanwhile_is_paused_again(p):
    await populate(p.here)
    copies = p.here.store.transfer.copies
    resumed = []

    async def interrupted(entity_id, run_id=None):
        if entity_id == "later" and not resumed:
            resumed.append(True)
            await p.here.resume("later")
        return await copies(entity_id, run_id)

    p.here.store.transfer.copies = interrupted
    assert (await p.move()).left == {}
    assert (await p.offered())["later"] == ["there"]


async def test_a_workflow_that_is_started_meanwhile_moves_too(p):
    await populate(p.here)
    adopt = p.there.store.transfer.adopt
    started = []

    async def interrupted(parts):
        if not started:
            started.append(await p.here.create("new"))
        return await adopt(parts)

    p.there.store.transfer.adopt = interrupted
    assert (await p.move()).workflows == len(LIVE) + 1
    assert await p.offered() == {name: [] if name == "halted" else ["there"] for name in {*LIVE, "new"}}


async def test_an_id_that_is_in_use_in_the_target_stays_with_its_group(p):
    await populate(p.here)
    await p.there.create("child", execution_id="other", run_id="other")
    moved = await p.move()
    assert moved.left == {"child": "the target has an open run of it already (other)"}
    offered = await p.offered()
    assert offered.pop("child") == ["here", "there"]
    assert offered.pop("parent") == ["here"]
    assert offered.pop("halted") == []
    assert set(map(tuple, offered.values())) == {("there",)}
    assert (await p.move()).left.keys() == {"child"}


async def test_a_workflow_that_has_not_recorded_its_end_is_waited_for(p):
    await p.here.create("order")
    await p.here.deliver(events.WorkflowTerminated(reason="enough"))
    assert (await p.move(patience=1000)).left == {
        "order": "it is closed, but a worker must still record the end of its work"
    }


# Interrupted moves.


@pytest.mark.parametrize("done", [False, True])
async def test_a_move_that_dies_at_any_call_is_finished_by_the_next(p, done):
    """Nobody is offered a run in both stores at any time, nothing is lost, and nothing is there twice."""
    await populate(p.here)
    before = await copies_in(p.here.store)
    number = 0
    while True:  # each death comes later than the one before, in what is left of the move
        number += 1
        death = Death(number, done=done)
        try:
            await p.move(death)
            break
        except Died:
            offered = await p.offered()
            assert offered.keys() == LIVE
            assert not any(len(stores) > 1 for stores in offered.values()), offered
            p.clock.move_to(p.clock.now() + 2 * LEASE)
    assert number > 20
    assert await p.offered() == {name: [] if name == "halted" else ["there"] for name in LIVE}
    after = await copies_in(p.there.store)
    for name in LIVE:
        assert [_lasting(copy) for copy in after[name]] == [_lasting(copy) for copy in before[name]]
    assert (await copies_in(p.here.store)).keys() == {"closed"}


def _lasting(copy):
    return without_pauses(copy)[1:]


@pytest.mark.parametrize("number", range(1, 200, 3))
async def test_a_move_that_dies_is_finished_by_one_that_does_not(number):
    async with pair(open_memory, open_sqlite) as p:
        await populate(p.here)
        try:
            await p.move(Death(number))
        except Died:
            p.clock.move_to(p.clock.now() + 2 * LEASE)
        moved = await p.move()
        assert moved.left == {}
        assert await p.offered() == {name: [] if name == "halted" else ["there"] for name in LIVE}
        assert (await copies_in(p.here.store)).keys() == {"closed"}
        assert await p.here.store.values.get("move") is None


@pytest.mark.parametrize("number", range(1, 200, 3))
async def test_a_move_that_dies_can_be_aborted(number):
    """What has arrived goes on in the target, everything else in the source."""
    async with pair(open_memory, open_sqlite) as p:
        await populate(p.here)
        try:
            await p.move(Death(number))
        except Died:
            p.clock.move_to(p.clock.now() + 2 * LEASE)
            assert (await p.abort()).left == {}
        offered = await p.offered()
        assert offered.pop("halted") == []
        assert all(len(stores) == 1 for stores in offered.values())
        assert offered["parent"] == offered["child"]
        here, there = await copies_in(p.here.store), await copies_in(p.there.store)
        assert here.keys().isdisjoint(there)
        assert here.keys() | there.keys() == LIVE | {"closed"}


async def test_a_signal_between_two_tries_of_a_move_is_not_lost(p):
    """What an interrupted move has brought to the target is replaced by what is in the source by now."""
    await populate(p.here)
    death = Death(None)
    remove = p.here.store.transfer.remove

    async def die(_):
        raise Died

    p.here.store.transfer.remove = die
    with pytest.raises(Died):
        await p.move(death)
    p.here.store.transfer.remove = remove
    assert await p.there.store.transfer.copies("again")
    await p.here.send_signals("again", "two")
    assert (await p.move()).left == {}
    claim = next(one for one in await p.there.claim() if one.instance.entity_id == "again")
    assert values([one for one in claim.inbox if isinstance(one.event, events.SignalReceived)]) == ["one", "two"]


# Refusals.


async def test_a_store_cannot_be_moved_to_itself(p):
    with pytest.raises(StoreError, match="both URLs lead to the same store"):
        await Move(p.here.store, p.here.store, p.clock, url="x", sleep=p._sleep).run()


async def test_an_interrupted_move_must_be_finished_before_another(p):
    await populate(p.here)
    with pytest.raises(Died):
        await p.move(Death(30))
    p.clock.move_to(p.clock.now() + 2 * LEASE)
    async with open_memory(p.clock) as third:
        with pytest.raises(StoreError, match="to other://store was interrupted; finish that one first"):
            await Move(p.here.store, third, p.clock, url="x", sleep=p._sleep).run()
        with pytest.raises(StoreError, match="a move in the opposite direction was interrupted"):
            await Move(p.there.store, p.here.store, p.clock, url="x", sleep=p._sleep).run()


async def test_only_one_process_moves_at_a_time(p):
    await p.here.store.values.put(
        "move-lock", b'{"host":"elsewhere","pid":7,"token":"x"}', expires_at=p.clock.now() + HOUR
    )
    with pytest.raises(StoreError, match="process 7 on elsewhere is moving runs out of this store"):
        await p.move()


async def test_a_copy_that_does_not_arrive_whole_is_not_removed(p):
    await populate(p.here)
    adopt = p.there.store.transfer.adopt

    async def careless(parts):
        return await adopt([r.Adoption(entity_id=one.entity_id, copies=_without_work(one.copies)) for one in parts])

    def _without_work(copies):
        return tuple(
            r.Copy(**{name: getattr(one, name) for name in r.Copy.__struct_fields__} | {"activities": ()})
            for one in copies
        )

    p.there.store.transfer.adopt = careless
    with pytest.raises(StoreError, match="differs in the target from what was copied"):
        await p.move()
    assert (await copies_in(p.here.store)).keys() == {"working", "closed"}
    assert (await p.offered())["working"] == []


# Engines.


registry = Registry()


@registry.activity
async def double(number: int) -> int:
    return 2 * number


@registry.workflow
async def leaf(ctx: Context, number: int) -> int:
    doubled = await ctx.activity(double, number)
    return doubled + await ctx.listen("more", type=int)


@registry.workflow
async def root(ctx: Context, number: int) -> int:
    last = ctx.promise("last", type=int)
    below = await ctx.workflow(leaf, number, id=f"leaf-{number}")
    return below + await last


async def test_engines_go_on_with_what_others_have_begun(tmp_path):
    async with (
        Engine("memory://", registry=registry) as a,
        Engine(f"sqlite:///{tmp_path}/b.db?synchronous=off", registry=registry) as b,
    ):
        for number in range(5):
            await a.start(root, number, id=f"root-{number}")
        course = Move(a.store, b.store, SystemClock(), url="b", options=Options(patience=20_000))
        moved = await course.run()
        assert moved.left == {}
        for number in range(5):
            await b.handle(f"leaf-{number}").signal("more", 10)
            await b.handle(f"root-{number}").resolve("last", 100)
            assert await b.handle(f"root-{number}").result(timeout=20) == 2 * number + 110
        assert not (await a.list(status=Status.RUNNING)).instances
        kinds = {type(event) for event in await b.handle("root-1").history()}
        assert {events.WorkflowPaused, events.WorkflowResumed} <= kinds


async def test_no_archiver_works_in_either_store_while_runs_move(p, monkeypatch):
    """However long the move takes: its locks are renewed beside it."""
    await populate(p.here)
    stores, taken, renewals = (p.here.store, p.there.store), [], []
    carry_all, confirm = Move._carry_all, Lock.confirm

    async def watched(self, *arguments):
        taken.extend([await archive_lock(store.values, p.clock).try_take() for store in stores])
        while len(renewals) < 2:
            await asyncio.sleep(0)
        await carry_all(self, *arguments)

    async def counted(self):
        renewals.append(self._key)
        await confirm(self)

    monkeypatch.setattr(Move, "_carry_all", watched)
    monkeypatch.setattr(Lock, "confirm", counted)
    monkeypatch.setattr("resurgam.store.lock._BEATS", 1000)
    await p.move()
    assert taken == [False, False]
    assert "archive-lock" in renewals
    assert [await archive_lock(store.values, p.clock).try_take() for store in stores] == [True, True]
