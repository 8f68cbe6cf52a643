"""Moves between stores that are reached over a network, which are interrupted at any call."""

import hashlib

import pytest

from resurgam.testing.contract.bench import HOUR, LEASE, values
from support.moves import LIVE, Death, Died, copies_in, pair, populate, without_pauses
from support.stores import open_memory, open_postgres, open_redis, open_sqlite

PAIRS = {
    "sqlite-postgres": (open_sqlite, open_postgres),
    "postgres-memory": (open_postgres, open_memory),
    "redis-postgres": (open_redis, open_postgres),
    "postgres-redis": (open_postgres, open_redis),
    "postgres-postgres": (open_postgres, open_postgres),
}


@pytest.fixture(params=PAIRS)
async def p(request):
    async with pair(*PAIRS[request.param]) as found:
        yield found


async def test_live_runs_move_and_go_on(p):
    await populate(p.here)
    before = await copies_in(p.here.store)
    moved = await p.move()
    assert (moved.workflows, moved.left, moved.same_secret) == (len(LIVE), {}, True)
    after = await copies_in(p.there.store)
    assert {name: list(map(without_pauses, found)) for name, found in after.items()} == {
        name: list(map(without_pauses, before[name])) for name in LIVE
    }
    p.clock.move_to(p.clock.now() + 2 * HOUR)
    queues = ("default", "parents", "wanting")
    claims = {claim.instance.entity_id: claim for claim in await p.there.claim(queues=queues)}
    assert claims.keys() == LIVE - {"halted"}
    assert values(claims["again"].inbox)[:1] == ["one"]
    assert [task.entity_id for task in await p.there.tasks(queues=("activities",))] == ["working"]
    assert not await p.here.claim(queues=queues)
    assert (await copies_in(p.here.store)).keys() == {"closed"}


@pytest.mark.parametrize("done", [False, True])
async def test_a_move_that_dies_at_any_call_is_finished_by_the_next(p, done):
    """Nobody is offered a run in both stores at any time, nothing is lost, and nothing is there twice."""
    await populate(p.here)
    before = await copies_in(p.here.store)
    number = 0
    while True:  # each death comes later than the one before, in what is left of the move
        number += 3
        try:
            await p.move(Death(number, done=done))
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
        assert [without_pauses(one)[1:] for one in after[name]] == [without_pauses(one)[1:] for one in before[name]]
    assert (await copies_in(p.here.store)).keys() == {"closed"}


async def test_an_id_that_the_target_cannot_store_stays_and_the_others_go_on():
    """An index of Postgres takes at most some thousand bytes that cannot be compressed."""
    long_id = "".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(300))
    async with pair(open_sqlite, open_postgres) as p:
        for name in (long_id, "good"):
            await p.here.create(name)
        moved = await p.move()
        assert moved.left.keys() == {long_id}
        assert "the target cannot store it: " in moved.left[long_id]
        assert await p.offered() == {long_id: ["here"], "good": ["there"]}
