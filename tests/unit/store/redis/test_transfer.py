from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from resurgam.core.errors import StoreError
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import request, scheduled

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
