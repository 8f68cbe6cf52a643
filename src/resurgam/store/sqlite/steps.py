"""Steps: the commits of a running instance that only extend its log and claim what they schedule.

Almost all commits are such steps, so they have a path of their own that equals `commit` and costs a fraction of it. All
that can be made without the file is made before the transaction begins. The fenced update has all conditions in it that
`commit` would look at one by one; if it changes no row, `commit` decides. Events and activities are put off, so that the
steps of a group share one run of each statement.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest, Outcome
from resurgam.store import records as r
from resurgam.store.rules import covered_by
from resurgam.store.sqlite.activities import encode_request, is_busy
from resurgam.store.sqlite.commit import commit
from resurgam.store.sqlite.covered import encode_requests
from resurgam.store.sqlite.history import encode_log
from resurgam.store.sqlite.transaction import Transaction

Work: TypeAlias = Callable[[Transaction], r.Committed | r.Refused]

_FINAL: Final = (events.ActivityCompleted, events.ActivityFailed)

_ref: Callable[[ActivityRequest], int] = attrgetter("ref")

# Not a comparison of whole outcomes: that would make another one for each commit.
_others: Final[Callable[[Outcome], Any]] = attrgetter(
    *(set(Outcome.__struct_fields__) - {"events", "activities", "wake_at", "signal_schemas"})
)
_PLAIN: Final = _others(Outcome())


def is_plain(outcome: Outcome) -> bool:
    """Whether an outcome has nothing but events, activities, a deadline and perhaps schemas of signals."""
    return bool(_others(outcome) == _PLAIN)


def prepare(part: r.Commit) -> Work:
    """Return what applies a commit in a transaction."""
    outcome, eager, activities = part.outcome, part.eager, part.outcome.activities
    # A step keeps the lease, and has nothing but events, and activities that it claims.
    if not (
        (eager or not part.release)
        and not part.retries
        and _others(outcome) == _PLAIN
        and outcome.signal_schemas is None
        and len(eager) == len(activities)
        and eager.issuperset(map(_ref, activities))
    ):
        return partial(commit, part=part)
    execution_id, base_seq, wake_at = part.execution_id, part.base_seq, outcome.wake_at
    claimed = claimed_by(part)
    answered = part.answered if part.covers else _answered(outcome)
    last_seq = base_seq + len(outcome.events)
    update = (last_seq, claimed.covered, execution_id, part.epoch, base_seq, part.wake)
    return Step(
        part,
        claimed,
        encode_log(execution_id, outcome.events),
        [(execution_id, ref) for ref in answered] if answered else (),
        "commit_awake" if wake_at is None else "commit_step",
        update if wake_at is None else (*update, wake_at),
        r.Committed(wake=part.wake, tasks=claimed.tasks),
    )


class Claimed(msgspec.Struct, gc=False, frozen=True):
    """The activities that a commit claims: their tasks, their queues, and what is to be written of them.

    *covered* is the column of those that run without a row, earlier ones among them; *rows* are the others.
    """

    tasks: tuple[r.ActivityTask, ...] = ()
    queues: Sequence[str] = ()
    covered: str | None = None
    rows: Sequence[tuple[object, ...]] = ()

    def write(self, t: Transaction, execution_id: str) -> None:
        """Write the rows of those that have a lease of their own."""
        leased = (t.now, t.lease_until, 1, t.owner)
        t.session.put_off("schedule_activity", [(execution_id, *row, *leased) for row in self.rows])
        t.changes.due(t.lease_until)


_NOTHING: Final = Claimed()


def claimed_by(part: r.Commit) -> Claimed:
    """Return what a commit claims that claims all that it schedules."""
    claimed = part.outcome.activities
    if not claimed:
        return Claimed(covered=encode_requests(part.running)) if part.running else _NOTHING
    covered = covered_by(part, claimed)
    # Not comprehensions: each is a call, which costs more than what it would do for the one activity of most steps.
    tasks: list[r.ActivityTask] = []
    queues: list[str] = []
    for request in claimed:
        queue = request.queue
        if queue not in queues:
            queues.append(queue)
        tasks.append(
            r.ActivityTask(
                execution_id=part.execution_id,
                entity_id=part.entity_id,
                epoch=0 if len(tasks) < len(covered) else 1,
                attempt=1,
                deliveries=0,
                request=request,
            )
        )
    own = claimed[len(covered) :]
    return Claimed(
        tasks=tuple(tasks),
        queues=queues,
        covered=encode_requests((*part.running, *covered)),
        rows=[(request.ref, request.queue, encode_request(request)) for request in own] if own else (),
    )


class Step(msgspec.Struct, gc=False, frozen=True):
    """A commit that is ready to be written."""

    part: r.Commit
    claimed: Claimed
    entries: Sequence[object]
    removed: Sequence[tuple[object, ...]]
    statement: str
    update: tuple[object, ...]
    answer: r.Committed

    def __call__(self, t: Transaction) -> r.Committed | r.Refused:
        """Apply the commit."""
        part, session, changes = self.part, t.session, t.changes
        asked: str | int = 0  # not None, for which Python's binding looks for an adapter
        for queue in self.claimed.queues:
            # The update itself asks for the first queue that is not known.
            if asked == 0 and queue not in t.busy_queues:
                asked = queue
            elif is_busy(t, queue):
                return commit(t, part)
        if not session.run(self.statement, (asked, t.now, *self.update)):
            return commit(t, part)
        if asked != 0:
            t.busy_queues[str(asked)] = False
        session.append(self.entries)
        if self.removed:
            session.put_off("remove_activity", self.removed)
        if self.claimed.rows:
            self.claimed.write(t, part.execution_id)
        if part.outcome.wake_at is not None:
            changes.due(part.outcome.wake_at)
        changes.grown.append(part.execution_id)
        return self.answer


def _answered(outcome: Outcome) -> Sequence[int]:
    """Return the refs of results that the worker delivered in memory; those from the inbox have no row any more."""
    return [e.ref for e in outcome.events if isinstance(e, _FINAL)]
