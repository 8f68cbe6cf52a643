from dataclasses import dataclass

import msgspec
import pytest
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.errors import StoreError
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.redis import inspector as inspectors
from resurgam.store.redis.library import text_of
from resurgam.testing.contract.bench import HOUR, QUEUE, request, scheduled
from resurgam.testing.contract.queries import query_task

ENTRIES = 5000  # entries of complete logs that one call returns (scripts/copies.lua)


@dataclass
class Between:
    """Does something after the first calls of a function."""

    link: object
    verb: str
    times: int

    def then(self, monkeypatch, action):
        """Have *action* run after each of the first calls."""
        ask = self.link.ask

        async def interrupted(partition, verb, part):
            answer = await ask(partition, verb, part)
            if verb == self.verb and self.times > 0:
                self.times -= 1
                await action()
            return answer

        monkeypatch.setattr(self.link, "ask", interrupted)


async def ended_with(b, count):
    """Create an execution that is complete, with *count* entries in its log."""
    instance = await b.create()
    log = [scheduled(request(seq)) for seq in range(2, count + 1)]
    await b.committed(await b.claim_one(), *log, status=Status.COMPLETED, deactivated=True)
    return instance


def adoption(copy, *ids):
    """Return an adoption of the execution of a copy under other ids."""
    copies = [replace(copy, instance=replace(copy.instance, execution_id=one, run_id=one)) for one in ids]
    return r.Adoption(entity_id=copy.instance.entity_id, copies=tuple(copies))


async def test_executions_that_do_not_fit_into_one_call_are_copied_in_order(b):
    ids = [(await ended_with(b, ENTRIES // 2 + 10)).execution_id for _ in range(3)]
    ids.append((await b.create()).execution_id)
    flights = b.store._link.flights
    copies = await b.store.transfer.copies("order")
    assert b.store._link.flights - flights >= 2
    assert [copy.instance.execution_id for copy in copies] == ids
    assert [len(copy.log) for copy in copies] == [ENTRIES // 2 + 10] * 3 + [1]


async def test_an_execution_that_is_purged_while_others_are_copied_is_left_out(b, monkeypatch):
    kept = [await ended_with(b, ENTRIES + 10) for _ in range(3)]
    between = Between(b.store._link, "copies", 1)
    between.then(monkeypatch, lambda: b.store.purge([kept[1]]))
    copies = await b.store.transfer.copies("order")
    assert [copy.instance.execution_id for copy in copies] == [kept[0].execution_id, kept[2].execution_id]


async def test_an_adoption_is_planned_again_when_another_writer_comes_in_between(b, monkeypatch):
    await b.ended()
    [copy] = await b.store.transfer.copies("order")
    await b.pass_time(5)
    between = Between(b.store._link, "find_executions", 1)
    between.then(monkeypatch, lambda: b.create(execution_id="here", run_id="here"))
    [answer] = await b.store.transfer.adopt([adoption(copy, "moved")])
    assert isinstance(answer, r.Adopted)
    ids = [one.instance.execution_id for one in await b.store.transfer.copies("order")]
    assert ids == [copy.instance.execution_id, "moved", "here"]


async def test_an_adoption_is_refused_when_the_entity_is_opened_in_between(b, monkeypatch):
    await b.create()
    [copy] = await b.store.transfer.copies("order")
    await b.end(await b.claim_one())
    between = Between(b.store._link, "find_executions", 1)
    between.then(monkeypatch, lambda: b.create(execution_id="here", run_id="here"))
    [answer] = await b.store.transfer.adopt([adoption(copy, "moved")])
    assert isinstance(answer, r.Exists)
    assert answer.instance.execution_id == "here"
    assert await b.store.inspector.get("order", execution_id="moved") is None


async def test_an_adoption_gives_up_when_others_come_in_between_every_time(b, monkeypatch):
    await b.ended()
    [copy] = await b.store.transfer.copies("order")
    between = Between(b.store._link, "find_executions", 1000)
    between.then(monkeypatch, b.ended)
    with pytest.raises(StoreError, match="was changed by others in each of 20 attempts"):
        await b.store.transfer.adopt([adoption(copy, "moved")])
    assert await b.store.inspector.get("order", execution_id="moved") is None


async def test_an_adopted_log_with_gaps_keeps_its_numbers(b):
    await ended_with(b, 4)
    [copy] = await b.store.transfer.copies("order")
    gaps = replace(copy, log=tuple(entry for entry in copy.log if entry.seq != 2))
    await b.store.transfer.adopt([adoption(gaps, "moved")])
    moved = await b.store.inspector.get("order", execution_id="moved")
    assert [entry.seq for entry in await b.store.read(moved)] == [entry.seq for entry in gaps.log]
    assert moved.last_seq == copy.instance.last_seq


# Archives.


def archival(copies):
    return r.Archival(entity_id="order", copies=tuple(copies), archive="file:///a")


async def keys_of(b, instance):
    """Return the kinds of keys that an execution has of its own."""
    link = b.store._link
    connection = link._routes[0]._connection
    names = await connection.ask("KEYS", f"{link.address.prefix}*{instance.execution_id}*")
    return sorted(name.decode().partition("}:")[2].partition("-")[0] for name in names)


async def test_an_archived_execution_has_no_keys_but_those_of_its_row(b):
    instance = await ended_with(b, 40)
    await b.store.queries.submit([query_task("q", instance, b.clock.now() + HOUR)])
    assert await b.store.transfer.archive([archival(await b.store.transfer.copies("order"))]) == [r.Archived()]
    assert await keys_of(b, instance) == ["instances", "state"]
    assert await b.store.queries.result("q") is None
    await b.store.purge([instance])
    assert await keys_of(b, instance) == []


async def test_what_is_appended_after_the_comparison_is_not_archived(b, monkeypatch):
    instance = await b.ended()
    copies = await b.store.transfer.copies("order")
    event = events.WorkflowArchiving(seq=instance.last_seq + 1, at=5, archiver="other")
    part = r.Reservation(entity_id="order", execution_id=instance.execution_id, event=event)
    Between(b.store._link, "copies", 1).then(monkeypatch, lambda: b.store.transfer.reserve([part]))
    assert await b.store.transfer.archive([archival(copies)]) == [r.Changed()]
    assert (await b.store.read(instance))[-1] == event


async def test_an_execution_that_another_adoption_has_restored_stays_as_it_is(b, monkeypatch):
    await b.ended()
    copies = tuple(await b.store.transfer.copies("order"))
    await b.store.transfer.archive([archival(copies)])
    part = r.Adoption(entity_id="order", copies=copies)
    Between(b.store._link, "find_executions", 1).then(monkeypatch, lambda: b.store.transfer.adopt([part]))
    [adopted] = await b.store.transfer.adopt([part])
    assert [arrival.new for arrival in adopted.arrivals] == [False]
    assert tuple(await b.store.transfer.copies("order")) == copies
    assert len((await b.store.feed.read(r.FeedQuery())).entries) == len(copies[0].log)


async def test_an_archived_execution_takes_no_reply_that_comes_late(b):
    instance = await b.ended()
    await b.store.transfer.archive([archival(await b.store.transfer.copies("order"))])
    link = b.store._link
    entry = ["external_signal_delivered", "{}", False, None]
    reply = [[1, instance.execution_id, False, QUEUE], ["reply", instance.execution_id, [entry]]]
    part = [1, 10, text_of(msgspec.msgpack.encode(reply))]
    assert await link.ask(link.partition_of("order"), "apply_effects", part) == 10
    assert await b.claim() == []
    assert await b.store.inspector.open_work(instance) == r.OpenWork()


async def test_a_log_that_is_archived_between_two_slices_is_not_shown_in_part(b, monkeypatch):
    monkeypatch.setattr(inspectors, "_ENTRIES", 10)
    instance = await ended_with(b, 35)
    part = archival(await b.store.transfer.copies("order"))
    Between(b.store._link, "read_history", 1).then(monkeypatch, lambda: b.store.transfer.archive([part]))
    assert await b.store.inspector.history(instance, forgotten=True) == []
