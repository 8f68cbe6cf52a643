"""Steps: the commits of a running instance that only extend its log and claim what they schedule.

Almost all commits are such steps, so they have a path of their own that equals `commit` and costs a fraction of it. All
that can be made without the file is made before the transaction begins. The fenced update has all conditions in it that
`commit` would look at one by one; if it changes no row, `commit` decides. Events and activities are put off, so that the
steps of a group share one run of each statement.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, TypeAlias

from resurgam.core import event as events
from resurgam.core.event import encode_event
from resurgam.core.outcome import ActivityRequest, Outcome
from resurgam.store import records as r
from resurgam.store.rules import covered_by
from resurgam.store.sqlite.activities import eager_tasks, encode_request, is_busy
from resurgam.store.sqlite.commit import commit
from resurgam.store.sqlite.covered import encode_requests
from resurgam.store.sqlite.transaction import Transaction

Work: TypeAlias = Callable[[Transaction], r.Committed | r.Refused]

_FINAL: Final = (events.ActivityCompleted, events.ActivityFailed)

# A comprehension is a call, which costs more than what it would do for the one activity of most steps.
_ref: Callable[[ActivityRequest], int] = attrgetter("ref")
_queue: Callable[[ActivityRequest], str] = attrgetter("queue")


def prepare(part: r.Commit) -> Work:
    """Return what applies a commit in a transaction."""
    outcome, eager = part.outcome, part.eager
    # A step keeps the lease, and has nothing but events, and activities that it claims.
    if (
        (eager or not part.release)
        and not part.retries
        and outcome == Outcome(events=outcome.events, activities=outcome.activities, wake_at=outcome.wake_at)
        and len(eager) == len(outcome.activities)
        and eager.issuperset(map(_ref, outcome.activities))
    ):
        return Step(part)
    return partial(commit, part=part)


class Claimed:
    """The activities that a commit claims: their tasks, their queues, and what is to be written of them.

    *covered* is the column of those that run without a row, earlier ones among them; *rows* are the others.
    """

    __slots__ = ("covered", "queues", "rows", "tasks")

    def __init__(self, part: r.Commit) -> None:
        claimed = part.outcome.activities
        covered = covered_by(part, claimed)
        own = claimed[len(covered) :]
        self.covered = encode_requests((*part.running, *covered))
        self.queues = set(map(_queue, claimed))
        tasks = eager_tasks(part, covered, epoch=0)
        self.rows: list[tuple[object, ...]] = []
        if own:
            tasks += eager_tasks(part, own, epoch=1)
            self.rows = [(request.ref, request.queue, encode_request(request)) for request in own]
        self.tasks = tuple(tasks)

    def write(self, t: Transaction, execution_id: str) -> None:
        """Write the rows of those that have a lease of their own."""
        leased = (t.now, t.lease_until, 1, t.owner)
        t.session.put_off("schedule_activity", [(execution_id, *row, *leased) for row in self.rows])
        t.changes.due(t.lease_until)


class Step:
    """A commit that is ready to be written."""

    __slots__ = ("_answer", "_claimed", "_events", "_part", "_removed", "_statement", "_update")

    def __init__(self, part: r.Commit) -> None:
        outcome, execution_id, base_seq = part.outcome, part.execution_id, part.base_seq
        self._part = part
        self._claimed = claimed = Claimed(part)
        self._events = [(execution_id, e.seq, encode_event(e).decode()) for e in outcome.events]
        answered = part.answered if part.covers else _answered(outcome)
        self._removed = [(execution_id, ref) for ref in answered] if answered else ()
        last_seq = base_seq + len(outcome.events)
        update = (last_seq, claimed.covered, execution_id, part.epoch, base_seq, part.wake)
        self._statement = "commit_awake" if outcome.wake_at is None else "commit_step"
        self._update: tuple[object, ...] = update if outcome.wake_at is None else (*update, outcome.wake_at)
        self._answer = r.Committed(wake=part.wake, tasks=claimed.tasks)

    def __call__(self, t: Transaction) -> r.Committed | r.Refused:
        """Apply the commit."""
        part, session, changes = self._part, t.session, t.changes
        asked: str | None = None
        for queue in self._claimed.queues:
            # The update itself asks for the first queue that is not known.
            if asked is None and queue not in t.busy_queues:
                asked = queue
            elif is_busy(t, queue):
                return commit(t, part)
        if not session.run(self._statement, (asked, t.now, *self._update)):
            return commit(t, part)
        if asked is not None:
            t.busy_queues[asked] = False
        session.put_off("append_event", self._events)
        if self._removed:
            session.put_off("remove_activity", self._removed)
        if self._claimed.rows:
            self._claimed.write(t, part.execution_id)
        if part.outcome.wake_at is not None:
            changes.due(part.outcome.wake_at)
        changes.grown.append(part.execution_id)
        return self._answer


def _answered(outcome: Outcome) -> Sequence[int]:
    """Return the refs of results that the worker delivered in memory; those from the inbox have no row any more."""
    return [e.ref for e in outcome.events if isinstance(e, _FINAL)]
