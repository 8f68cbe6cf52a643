"""The requests of an execution to the world, each with the entry that makes it, until they are committed."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from resurgam.core.event import ActivityCancelled, ActivityScheduled, Event
from resurgam.core.outcome import ActivityRequest, ChildRequest, Message, OpenPromise, Publication, Withdrawal
from resurgam.runtime.matching.course import Course

Field: TypeAlias = Literal["promises", "closed", "children", "messages", "publications", "withdrawals", "tags"]
Wanted: TypeAlias = OpenPromise | str | ChildRequest | Message | Publication | Withdrawal | dict[str, str]


class Outbox(msgspec.Struct, gc=False, eq=False):
    """Requests made since the last commit. Each belongs to an entry, and is dropped if that is not written."""

    course: Course
    activities: dict[int, ActivityRequest] = {}
    # A list only while there are any: of most runs the garbage collector need not visit one.
    _others: list[tuple[int, Field, Wanted]] | tuple[()] = ()

    def empty(self) -> None:
        """Start an advance: the requests of the last one are committed."""
        if self.activities:
            self.activities = {}
        if self._others:
            self._others = ()

    def add(self, seq: int, field: Field, wanted: Wanted) -> None:
        """Add a request that belongs to the entry *seq*."""
        self.course.leave()
        if not self._others:
            self._others = []
        self._others.append((seq, field, wanted))

    def take_back(self, seq: int, field: Field) -> bool:
        """Remove the request of an entry; return whether it was not committed yet."""
        before = len(self._others)
        self._others = [one for one in self._others if one[:2] != (seq, field)]
        return len(self._others) < before

    def fields(self, last_seq: int) -> dict[str, Any]:
        """Return the requests of the entries up to *last_seq*, as fields of an outcome."""
        fields: dict[str, list[Wanted]] = {}
        for seq, field, wanted in self._others:
            if seq <= last_seq:
                fields.setdefault(field, []).append(wanted)
        tags = {"tags": found[-1]} if (found := fields.pop("tags", None)) else {}  # the last change has all of them
        return {field: tuple(all_wanted) for field, all_wanted in fields.items()} | tags

    def activities_of(self, written: Sequence[Event]) -> tuple[ActivityRequest, ...]:
        """Return the requests of activities whose commands are among these entries, and are not cancelled there."""
        issued = {entry.seq for entry in written if isinstance(entry, ActivityScheduled)} - cancelled_by(written)
        return tuple(request for request in self.activities.values() if request.ref in issued)

    def withdrawals(self, cancelled: Iterable[int]) -> Iterator[Withdrawal]:
        """Return the withdrawals of cancelled activities that earlier commits have put on their queues."""
        for ref in sorted(cancelled):
            if ref not in self.activities:
                yield Withdrawal(ref, answered=True)


def cancelled_by(written: Sequence[Event]) -> set[int]:
    """Return the activities that these entries cancel."""
    return {entry.ref for entry in written if isinstance(entry, ActivityCancelled)}
