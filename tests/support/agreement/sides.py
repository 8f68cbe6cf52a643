"""The two stores of a story, and what they may differ in.

Left out of every comparison: the ids of inbox entries, the values of wake counters, the order of claims (and of what a
claim cancels or starts), the wording of refusals, and the names of workers, which one store takes from the claim and the other from
itself. A claim may bring the log along. With partitions, the answers to the effects of one commit come in any order.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import msgspec

from resurgam.core import event as events
from resurgam.core.event import encode_event
from resurgam.core.flow_event import WorkStarted
from resurgam.core.outcome import ActivityRequest, Entry
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.protocol import Store

EFFECT_ANSWERS = (
    events.ChildStarted,
    events.ChildFailed,
    events.ChildCompleted,
    events.SignalDelivered,
    events.SignalFailed,
)


@dataclass
class Side:
    """One of the two: the store that each worker has opened, and its own names for what both have.

    *settle* waits until the effects of all commits have arrived. *cursors* are those that the store has returned.
    """

    stores: Mapping[str, Store]
    settle: Callable[[], Any]
    cursors: dict[str, str] = field(default_factory=dict)


@dataclass
class View:
    """What one store has told the holder of a lease."""

    wake: int
    inbox: list[Entry]


@dataclass
class Hold:
    """A lease on an instance that both stores gave to a worker, current or lost."""

    worker: str
    claim: r.Claim
    seq: int
    status: Status
    views: tuple[View, View]
    running: dict[int, ActivityRequest] = field(default_factory=dict)

    @property
    def instance(self) -> r.Instance:
        return self.claim.instance

    def lease(self, side: int) -> r.Lease:
        return r.Lease(
            entity_id=self.instance.entity_id,
            execution_id=self.instance.execution_id,
            epoch=self.claim.epoch,
            wake=self.views[side].wake,
        )


class Normal:
    """Answers in the form in which they are compared. *ordered*: answers to effects come in the order of the outcome."""

    def __init__(self, *, ordered: bool) -> None:
        claimed = (events.ActivityCancelled, WorkStarted)
        self._unordered = claimed if ordered else (*claimed, *EFFECT_ANSWERS)

    def answer(self, answer: Any) -> object:
        if isinstance(answer, r.Refused):
            return answer if answer.reason == r.INBOX_CHANGED else r.Refused(reason="")
        if isinstance(answer, r.OpenWork):
            return self._open_work(answer)
        if isinstance(answer, r.Copy):
            return msgspec.structs.replace(answer, inbox=tuple(self.inbox(answer.inbox)))
        if not isinstance(answer, r.Claim | r.Committed | r.Extended | r.Created | r.Delivered):
            return answer
        found = msgspec.structs.asdict(answer)
        for name in ("wake", "log"):
            found.pop(name, None)
        if "inbox" in found:
            found["inbox"] = self.inbox(entry.event for entry in found["inbox"])
        for part in ("claim", "committed"):
            if found.get(part) is not None:
                found[part] = self.answer(found[part])
        return type(answer).__name__, found

    def inbox(self, inbox: Iterable[events.Event]) -> list[events.Event]:
        """Return the entries of an inbox; each run of those that come in any order is sorted."""
        found: list[events.Event] = []
        for sortable, run in groupby(inbox, lambda event: isinstance(event, self._unordered)):
            entries = list(run)
            found += sorted(entries, key=encode_event) if sortable else entries
        return found

    def _open_work(self, work: r.OpenWork) -> r.OpenWork:
        activities = tuple(msgspec.structs.replace(one, worker=one.worker and "held") for one in work.activities)
        inbox = tuple(self.inbox(work.inbox))
        return msgspec.structs.replace(work, activities=activities, inbox=inbox, worker=work.worker and "held")


def by_event(inbox: Iterable[Entry]) -> dict[tuple[bytes, int], int]:
    """Return the ids of entries by what they say, and a number among those that say the same."""
    found: dict[tuple[bytes, int], int] = {}
    seen: Counter[bytes] = Counter()
    for entry in inbox:
        body = encode_event(entry.event)
        assert entry.id is not None
        found[body, seen[body]] = entry.id
        seen[body] += 1
    return found


def pairs(answers: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, Any]]:
    """Return the answers of both stores to each part."""
    return zip(*answers, strict=True)
