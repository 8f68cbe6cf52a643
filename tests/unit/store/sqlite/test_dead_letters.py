"""What this version cannot decode becomes a dead letter with the reason, and holds up none of its neighbours."""

import sqlite3
from contextlib import closing

import msgspec
import pytest
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest, Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock

NEWER = '{"type":"signal_expired_v9","at":1}'
REASON = "cannot be decoded by this version of Resurgam"

BAD = r.ExecutionRef(entity_id="bad", execution_id="x-bad")


class World:
    """A store, and a connection beside it that writes as a newer version would."""

    def __init__(self, path) -> None:
        self.path = path
        self.store = SqliteStore(path, ManualClock(), name="one", synchronous="OFF")

    def sql(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(statement, values)

    async def create(self, entity_id: str) -> None:
        ids = {"execution_id": f"x-{entity_id}", "run_id": f"r-{entity_id}", "tree_id": "t", "entity_id": entity_id}
        started = events.WorkflowStarted(seq=1, at=1, name="w", queue="default", python="3.11", **ids)
        await self.store.create([r.Creation(started=started)])

    def poison_inbox(self, entity_id: str) -> None:
        self.sql("UPDATE instances SET wake = wake + 1 WHERE entity_id = ?", entity_id)
        statement = "INSERT INTO inbox (execution_id, wake, body) SELECT execution_id, wake, ? FROM instances"
        self.sql(f"{statement} WHERE entity_id = ?", NEWER, entity_id)

    async def claim(self) -> dict[str, r.Claim]:
        return {claim.instance.entity_id: claim for claim in await self.store.claim("w", ["default"], 10)}

    async def commit(self, claim: r.Claim, **fields) -> r.Committed | r.Refused:
        outcome = Outcome(status=Status.RUNNING, **fields)
        ids = {"execution_id": claim.instance.execution_id, "entity_id": claim.instance.entity_id}
        part = r.Commit(**ids, epoch=claim.epoch, base_seq=1, wake=claim.wake, outcome=outcome, release=False)
        return (await self.store.commit([part]))[0]

    async def dead(self, entity_id: str) -> str:
        found = await self.store.inspector.get(entity_id)
        assert found is not None
        return found.dead_letter or ""


@pytest.fixture
async def world(tmp_path):
    made = World(tmp_path / "a.db")
    yield made
    await made.store.close()


async def test_an_inbox_that_cannot_be_decoded_holds_up_no_neighbour(world):
    await world.create("bad")
    await world.create("good")
    world.poison_inbox("bad")

    assert list(await world.claim()) == ["good"]
    assert "inbox entry 1 " in await world.dead("bad")
    assert REASON in await world.dead("bad")
    assert await world.claim() == {}

    world.sql("DELETE FROM inbox")  # as if a version that knows the entry had come
    await world.store.revive([BAD])
    assert list(await world.claim()) == ["bad"]


async def test_a_row_that_cannot_be_decoded_holds_up_no_neighbour(world):
    await world.create("bad")
    await world.create("good")
    world.sql("UPDATE instances SET tags = '[]' WHERE entity_id = 'bad'")

    assert list(await world.claim()) == ["good"]
    world.sql("UPDATE instances SET tags = '{}' WHERE entity_id = 'bad'")
    assert REASON in await world.dead("bad")


async def test_a_delivery_to_an_inbox_that_cannot_be_decoded_is_accepted_without_a_claim(world):
    await world.create("bad")
    world.poison_inbox("bad")
    offer = r.EagerOffer(worker="w", queues=("default",))
    signal = events.SignalReceived(at=1, name="n", id="i", value=Raw(b"1"))

    assert await world.store.deliver([r.Delivery(event=signal, entity_id="bad", offer=offer)]) == [r.Delivered()]
    assert REASON in await world.dead("bad")


async def test_a_commit_counts_though_what_came_meanwhile_cannot_be_decoded(world):
    await world.create("bad")
    claim = (await world.claim())["bad"]
    world.poison_inbox("bad")

    answer = await world.commit(claim, events=(events.ActivityCompleted(seq=2, ref=1),))
    assert isinstance(answer, r.Committed)
    assert answer.inbox == ()
    assert REASON in await world.dead("bad")
    assert [entry.seq for entry in await world.store.read(BAD)] == [1, 2]
    assert isinstance(
        (await world.store.extend([r.Lease(entity_id="bad", execution_id="x-bad", epoch=claim.epoch)]))[0], r.Refused
    )


@pytest.mark.parametrize("verb", ["extend", "strict commit"])
async def test_the_lease_ends_when_the_inbox_cannot_be_decoded(world, verb):
    await world.create("bad")
    claim = (await world.claim())["bad"]
    world.poison_inbox("bad")

    if verb == "extend":
        [answer] = await world.store.extend(
            [r.Lease(entity_id="bad", execution_id="x-bad", epoch=claim.epoch, wake=claim.wake)]
        )
    else:
        answer = await world.commit(claim, strict=True)
    assert isinstance(answer, r.Refused)
    assert REASON in await world.dead("bad")


async def test_an_activity_that_cannot_be_decoded_holds_up_no_neighbour(world):
    await world.create("both")
    claim = (await world.claim())["both"]
    wanted = [ActivityRequest(ref=ref, name="a", queue="default", input=Raw(b"[]"), entity_id="e") for ref in (2, 3)]
    await world.commit(claim, activities=tuple(wanted))
    world.sql('UPDATE activities SET request = \'{"ref": 2, "kind": 9}\' WHERE ref = 2')

    [task] = await world.store.claim_activities("w", ["default"], 10)
    assert task.request.ref == 3
    found = await world.store.inspector.get("both")
    assert "activity (entry 2) cannot be decoded" in found.activity_dead_letters[0]
    work = await world.store.inspector.open_work(r.ExecutionRef(entity_id="both", execution_id="x-both"))
    assert [activity.request.ref for activity in work.activities] == [3]

    good = msgspec.json.encode(wanted[0]).decode()
    world.sql("UPDATE activities SET request = ? WHERE ref = 2", good)
    assert await world.store.revive([r.ExecutionRef(entity_id="both", execution_id="x-both")]) == [r.Revived(count=1)]
    [again] = await world.store.claim_activities("w", ["default"], 10)
    assert again.request == wanted[0]


async def test_an_ended_execution_that_cannot_be_decoded_stops_neither_a_list_nor_a_purge(tmp_path, caplog):
    world = World(tmp_path / "store.db")
    for entity_id in ("a", "b"):
        await world.create(entity_id)
    world.sql("UPDATE instances SET status = 'completed', closed_at = 5, deactivated = 1")
    world.sql("UPDATE instances SET tags = ? WHERE entity_id = 'a'", "{no json")
    try:
        found = await world.store.inspector.ended(r.EndedQuery(before=10, limit=10))
        assert [one.entity_id for one in found] == ["b"]
        assert [one.entity_id for one in (await world.store.inspector.list(r.Query())).instances] == ["b"]
        assert "execution x-a is not listed" in caplog.text
    finally:
        await world.store.close()
