"""Steps: the commits of a running instance that only extend its log and claim what they schedule.

Almost all commits are such steps, so they have a path of their own that equals `commit` and costs a fraction of it. All
that can be made without the file is made before the transaction begins. The fenced update has all conditions in it that
`commit` would look at one by one; if it changes no row, `commit` decides. Events and activities are put off, so that the
steps of a group share one run of each statement.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from resurgam.core import event as events
from resurgam.core.event import encode_event
from resurgam.core.outcome import Outcome
from resurgam.store import records as r
from resurgam.store.rules import covered_by
from resurgam.store.sqlite.activities import eager_task, encode_request, is_busy
from resurgam.store.sqlite.commit import commit
from resurgam.store.sqlite.handed_out import encode_requests
from resurgam.store.sqlite.transaction import Transaction

Work: TypeAlias = Callable[[Transaction], r.Committed | r.Refused]

_FINAL: Final = (events.ActivityCompleted, events.ActivityFailed)


def prepare(part: r.Commit) -> Work:
    """Return what applies a commit in a transaction."""
    outcome, eager = part.outcome, part.eager
    # A step keeps the lease, and has nothing but events, and activities that it claims.
    if (
        (eager or not part.release)
        and not part.retries
        and outcome == Outcome(events=outcome.events, activities=outcome.activities, wake_at=outcome.wake_at)
        and eager == {request.ref for request in outcome.activities}
    ):
        return Step(part)
    return partial(commit, part=part)


class Step:
    """A commit that is ready to be written."""

    __slots__ = ("_answer", "_events", "_part", "_queues", "_removed", "_requests", "_update")

    def __init__(self, part: r.Commit) -> None:
        outcome, execution_id = part.outcome, part.execution_id
        self._part = part
        self._events = [(execution_id, e.seq, encode_event(e).decode()) for e in outcome.events]
        self._removed = [(execution_id, ref) for ref in _answered(part)]
        claimed = outcome.activities
        covered = covered_by(part, claimed)
        self._queues = {request.queue for request in claimed}
        self._requests = [(one.ref, one.queue, encode_request(one)) for one in claimed[len(covered) :]]
        running = encode_requests((*part.running, *covered))
        last_seq = part.base_seq + len(outcome.events)
        self._update = (last_seq, outcome.wake_at, running, execution_id, part.epoch, part.base_seq, part.wake)
        tasks = [eager_task(part, one, epoch=int(number >= len(covered))) for number, one in enumerate(claimed)]
        self._answer = r.Committed(wake=part.wake, tasks=tuple(tasks))

    def __call__(self, t: Transaction) -> r.Committed | r.Refused:
        """Apply the commit."""
        part = self._part
        for queue in self._queues:
            if is_busy(t, queue):
                return commit(t, part)
        if not t.session.run("commit_step", self._update):
            return commit(t, part)
        t.session.put_off("append_event", self._events)
        if self._removed:
            t.session.put_off("remove_activity", self._removed)
        if self._requests:
            leased = (t.now, t.lease_until, 1, t.owner)
            t.session.put_off(
                "schedule_activity", [(part.execution_id, *request, *leased) for request in self._requests]
            )
            t.changes.due(t.lease_until)
        t.changes.due(part.outcome.wake_at)
        t.changes.grown.append(part.execution_id)
        return self._answer


def _answered(part: r.Commit) -> Sequence[int]:
    """Return the refs of activities whose rows a step removes."""
    if part.covers:
        return part.answered
    # Results that the worker delivered in memory; those from the inbox have no row any more.
    return [e.ref for e in part.outcome.events if isinstance(e, _FINAL)]
