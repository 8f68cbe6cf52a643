"""Forgotten entries: no longer read by replay, and deleted when their location is dropped."""

from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any

from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Forgotten, Span
from resurgam.core.state import Status
from resurgam.store import export
from resurgam.store import records as r
from resurgam.testing.contract.bench import HOUR, LEASE, UNKNOWN, Bench, OpensStores

_LOCATIONS = ("{2}", "{2, 5}", "{2, 5, 3, 1}", "{2, 5.0.1}", "{2, 6}", "{2, 10}", "{2, 300}", "{3}", "{20}")
"""In the order of locations, which is neither that of their texts nor that of their lengths."""


class ForgettingCases(OpensStores):
    """`commit` with entries that are forgotten and locations that are dropped."""

    # Forgetting.

    async def test_what_is_forgotten_is_not_read_again(self) -> None:
        """The log has a gap there, from wherever it is read."""
        async with self.bench() as b:
            claim = await _grown(b, 5)
            await b.committed(claim, forgotten=_marks({3: "{2}", 4: "{2}"}))
            log = claim.instance
            assert await _active(b, log) == [1, 2, 5]
            assert [_seqs(await b.store.read(log, after)) for after in range(1, 6)] == [[2, 5], [5], [5], [5], []]
            assert _seqs(await b.store.inspector.history(log)) == [1, 2, 5]
            assert _seqs(await b.store.inspector.history(log, 2)) == [2, 5]
            pages = {(0, 1): [1], (0, 2): [1, 2], (1, 2): [2, 5], (2, 1): [5], (3, None): [5], (5, 9): [], (9, 1): []}
            for (after, limit), page in pages.items():
                assert _seqs(await b.store.inspector.history(log, after=after, limit=limit)) == page

    async def test_tools_see_all_that_is_kept_in_order(self) -> None:
        """Unchanged and in order, up to the last entry of all."""
        async with self.bench() as b:
            claim = await _grown(b, 5)
            log = claim.instance
            written = list(await b.store.read(log))
            await b.committed(claim, forgotten=_marks({2: "{9}", 4: "{1}", 5: "{1}"}))
            assert list(await b.store.inspector.history(log, forgotten=True)) == written
            assert list(await b.store.inspector.history(log, 2, forgotten=True)) == written[-2:]
            page = await b.store.inspector.history(log, forgotten=True, after=1, limit=3)
            assert list(page) == written[1:4]
            assert list(await b.store.inspector.history(log, forgotten=True, after=4)) == written[4:]
            assert list(await b.store.inspector.history(UNKNOWN, forgotten=True)) == []

    async def test_a_commit_forgets_what_it_appends_itself(self) -> None:
        """Old entries and new ones alike."""
        async with self.bench() as b:
            claim = await _grown(b, 3)
            await b.committed(claim, _entry(4), _entry(5), forgotten=_marks({2: "{2}", 4: "{2}"}))
            assert await _active(b, claim.instance) == [1, 3, 5]
            assert await _kept(b, claim.instance) == [1, 2, 3, 4, 5]

    async def test_the_log_goes_on_behind_what_is_forgotten(self) -> None:
        """Its length is unchanged: the next entry has the next number, and a commit from an older seq is refused."""
        async with self.bench() as b:
            claim = await _grown(b, 3)
            await b.committed(claim, release=False, forgotten=_marks({2: "{2}", 3: "{2}"}))
            assert (await b.get()).last_seq == 3
            assert isinstance(await b.commit(claim, _entry(2), base_seq=1), r.Refused)
            await b.committed(claim, _entry(4))
            assert await _active(b, claim.instance) == [1, 4]
            assert (await b.get()).last_seq == 4

    async def test_only_the_log_that_is_named_forgets(self) -> None:
        """Another execution has entries of the same numbers, and keeps its own under the same locations."""
        async with self.bench() as b:
            mine, other = await _grown(b, 3), await _grown(b, 3, "other")
            await b.committed(other, release=False, forgotten=_marks({3: "{2}"}))
            await b.committed(mine, forgotten=_marks({2: "{2}"}), dropped=_spans(("{2}", "{3}")))
            assert await _kept(b, mine.instance) == [1, 3]
            assert await _active(b, other.instance) == [1, 2]
            assert await _kept(b, other.instance) == [1, 2, 3]

    async def test_forgetting_again_moves_to_the_new_location(self) -> None:
        """Also within one commit; the earlier location no longer counts."""
        async with self.bench() as b:
            claim = await _grown(b, 3)
            log = claim.instance
            await b.committed(claim, release=False, forgotten=_marks({2: "{1}", 3: "{1}"}))
            twice = (*_marks({2: "{7}"}), *_marks({2: "{5}"}))
            await b.committed(claim, release=False, forgotten=twice, dropped=_spans(("{1}", "{2}"), ("{7}", "{8}")))
            assert await _kept(b, log) == [1, 2]
            await b.committed(claim, dropped=_spans(("{5}", "{6}")))
            assert await _kept(b, log) == [1]

    async def test_what_is_not_there_is_not_forgotten(self) -> None:
        """Neither unknown nor dropped entries come into existence."""
        async with self.bench() as b:
            claim = await _grown(b, 3)
            log = claim.instance
            await b.committed(claim, release=False, forgotten=_marks({2: "{1}"}), dropped=_spans(("{1}", "{2}")))
            await b.committed(claim, release=False, forgotten=_marks({2: "{1}", 3: "{1}", 4: "{1}", 99: "{1}"}))
            assert (await _active(b, log), await _kept(b, log)) == ([1], [1, 3])
            await b.committed(claim, _entry(4))
            assert await _active(b, log) == [1, 4]

    # Dropping.

    async def test_a_span_drops_exactly_the_locations_within_it(self) -> None:
        """From its start on and before its end, in the order of locations; an entry below a location comes after it."""
        async with self.bench() as b:
            marks = _marks(dict(enumerate(_LOCATIONS, 2)))
            for first, end in combinations_with_replacement(range(len(_LOCATIONS)), 2):
                claim = await _grown(b, len(_LOCATIONS) + 1, f"from {first} before {end}")
                await b.committed(claim, release=False, forgotten=marks)
                await b.committed(claim, dropped=_spans((_LOCATIONS[first], _LOCATIONS[end])))
                left = [mark.seq for mark in (*marks[:first], *marks[end:])]
                assert await _kept(b, claim.instance) == [1, *left], (_LOCATIONS[first], _LOCATIONS[end])

    async def test_a_location_is_dropped_with_all_below_it(self) -> None:
        """The fifth iteration of a loop and whatever stands in it, but neither the loop nor the sixth."""
        async with self.bench() as b:
            claim = await _grown(b, 6)
            locations = {2: "{2}", 3: "{2, 5}", 4: "{2, 5, 3, 1}", 5: "{2, 6}", 6: "{2, 4, 9}"}
            await b.committed(claim, forgotten=_marks(locations), dropped=_spans(("{2, 5}", "{2, 6}")))
            assert await _kept(b, claim.instance) == [1, 2, 5, 6]

    async def test_several_spans_are_dropped_by_one_commit(self) -> None:
        """Each for itself, whether or not there is anything in it."""
        async with self.bench() as b:
            claim = await _grown(b, 5)
            marks = _marks({2: "{1}", 3: "{2}", 4: "{3}", 5: "{4}"})
            spans = _spans(("{1}", "{2}"), ("{7}", "{8}"), ("{3}", "{4}"), ("{4}", "{2}"))
            await b.committed(claim, forgotten=marks, dropped=spans)
            assert await _kept(b, claim.instance) == [1, 3, 5]

    async def test_a_commit_drops_what_it_forgets_itself(self) -> None:
        """Also entries that it has just appended: appending comes first, then forgetting, then dropping."""
        async with self.bench() as b:
            claim = await _grown(b, 3)
            marks = _marks({3: "{2}", 4: "{2}"})
            await b.committed(claim, _entry(4), _entry(5), forgotten=marks, dropped=_spans(("{2}", "{3}")))
            log = claim.instance
            assert await _active(b, log) == await _kept(b, log) == [1, 2, 5]
            assert (await b.get()).last_seq == 5

    async def test_what_is_active_is_never_dropped(self) -> None:
        """Only forgotten entries are dropped, wherever a command is located."""
        async with self.bench() as b:
            claim = await _grown(b, 4)
            await b.committed(claim, forgotten=_marks({3: "{9}"}), dropped=_spans(("{0}", "{8}")))
            assert await _active(b, claim.instance) == [1, 2, 4]
            assert await _kept(b, claim.instance) == [1, 2, 3, 4]

    # What it has to do with the rest.

    async def test_a_refused_commit_forgets_nothing(self) -> None:
        """Neither from another state nor under a lease that was lost."""
        async with self.bench() as b:
            claim = await _grown(b, 4)
            log = claim.instance
            await b.committed(claim, release=False, forgotten=_marks({4: "{1}"}))
            forgetting: dict[str, Any] = {"forgotten": _marks({2: "{2}", 4: "{5}"}), "dropped": _spans(("{1}", "{9}"))}
            assert isinstance(await b.commit(claim, _entry(4), base_seq=3, **forgetting), r.Refused)
            await b.pass_time(LEASE)
            await b.claim_one("second", ["order"])
            assert isinstance(await b.commit(claim, **forgetting), r.Refused)
            assert (await _active(b, log), await _kept(b, log)) == ([1, 2, 3], [1, 2, 3, 4])

    async def test_a_log_whose_end_is_forgotten_can_be_terminated(self) -> None:
        """Its last entry has the next number, and no earlier time than the entry before it, though that is forgotten."""
        async with self.bench() as b:
            claim = await _grown(b, 2)
            late = replace(_entry(3), at=b.clock.now() + HOUR)
            await b.committed(claim, late, forgotten=_marks({2: "{1}", 3: "{1}"}))
            await _terminate(b)
            [_, last] = await b.store.read(claim.instance)
            assert (last.seq, last.at, last.type) == (4, late.at, "workflow_terminated")
            assert (await b.get()).last_seq == 4

    async def test_a_log_whose_end_is_dropped_can_be_terminated(self) -> None:
        """Even if nothing is left of it."""
        async with self.bench() as b:
            for name, first in (("some", 2), ("all", 1)):
                claim = await _grown(b, 3, name)
                marks = _marks(dict.fromkeys(range(first, 4), "{1}"))
                await b.committed(claim, forgotten=marks, dropped=_spans(("{1}", "{2}")))
                await _terminate(b, name)
                assert (await _kept(b, claim.instance))[first - 1 :] == [4]
                assert (await b.get(name)).status is Status.TERMINATED

    async def test_purging_takes_the_forgotten_along(self) -> None:
        """Nothing is left for tools to read."""
        async with self.bench() as b:
            claim = await _grown(b, 3)
            await b.committed(claim, release=False, forgotten=_marks({2: "{1}", 3: "{2}"}))
            await b.end(claim)
            assert await b.store.purge([claim.instance]) == [r.Purged()]
            assert await _kept(b, claim.instance) == []

    async def test_the_forgotten_moves_to_another_store_and_stays_so(self) -> None:
        """Each under its location, by which it is dropped there."""
        async with self.bench() as a, self.bench(a.clock) as b:
            claim = await _grown(a, 5)
            log = claim.instance
            marks = _marks({2: "{2, 300}", 3: "{2, 5.0.1}", 4: "{}"})
            await a.committed(claim, forgotten=tuple(reversed(marks)))
            copies = tuple(await a.store.transfer.copies("order"))
            assert copies[0].forgotten == marks
            assert copies[0].log == tuple(await a.store.inspector.history(log, forgotten=True))
            assert isinstance(
                (await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=copies)]))[0], r.Adopted
            )
            assert tuple(await b.store.transfer.copies("order")) == copies
            assert (await _active(b, log), await _kept(b, log)) == ([1, 5], [1, 2, 3, 4, 5])
            await b.committed(await b.claim_one(queues=["order"]), dropped=_spans(("{2, 5}", "{2, 6}")))
            assert await _kept(b, log) == [1, 2, 4, 5]

    async def test_the_forgotten_is_in_an_export(self) -> None:
        """Written as lines and read again it is the same; a replay of them sees the active entries only."""
        async with self.bench() as b:
            claim = await _grown(b, 5)
            await b.committed(claim, forgotten=_marks({4: "{2, 5}", 5: "{2, 5, 3, 1}"}))
            copies = tuple(await b.store.transfer.copies("order"))
            written = export.write(copies)
            assert export.read(written) == copies
            assert export.newest_history(written) == list(await b.store.read(claim.instance))


async def _grown(b: Bench, last: int, entity_id: str = "order") -> r.Claim:
    """Return the claim of a new instance whose log goes up to *last*."""
    await b.create(entity_id, queue=entity_id)
    claim = await b.claim_one(queues=[entity_id])
    await b.committed(claim, *(_entry(seq) for seq in range(2, last + 1)), release=False)
    return replace(claim, instance=replace(claim.instance, last_seq=last))


def _entry(seq: int) -> events.TimerStarted:
    return events.TimerStarted(seq=seq, location=Location((seq - 1,)), command=f"Timer({seq - 2})", deadline=0)


def _marks(locations: Mapping[int, str]) -> tuple[Forgotten, ...]:
    return tuple(Forgotten(seq, Location.parse(location)) for seq, location in locations.items())


def _spans(*ends: tuple[str, str]) -> tuple[Span, ...]:
    return tuple(Span(Location.parse(start), Location.parse(end)) for start, end in ends)


async def _terminate(b: Bench, entity_id: str = "order") -> None:
    delivery = r.Delivery(event=events.WorkflowTerminated(reason="enough"), entity_id=entity_id)
    assert await b.store.deliver([delivery]) == [r.Delivered()]


async def _active(b: Bench, execution: r.Addressed) -> list[int]:
    return _seqs(await b.store.read(execution))


async def _kept(b: Bench, execution: r.Addressed) -> list[int]:
    return _seqs(await b.store.inspector.history(execution, forgotten=True))


def _seqs(log: Sequence[events.Event]) -> list[int]:
    return [entry.seq for entry in log]
