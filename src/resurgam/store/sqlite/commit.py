"""Commit the outcome of an advance, whole or not at all.

The fenced update of the instance comes first. Everything else is written only if it hit a row.
"""

from collections.abc import Sequence
from typing import Final

from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest, Outcome
from resurgam.core.state import Status, closing_entry
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.rules import TRIED_KEPT, covered_by, is_withdrawn, overtakes
from resurgam.store.sqlite import history
from resurgam.store.sqlite.activities import choose_eager, eager_tasks, retry, schedule, withdraw
from resurgam.store.sqlite.covered import encode_requests, lease_requests
from resurgam.store.sqlite.effects import send_effects
from resurgam.store.sqlite.inbox import entries_since
from resurgam.store.sqlite.instances import change_tags, find
from resurgam.store.sqlite.session import Row
from resurgam.store.sqlite.transaction import Transaction

_FINAL: Final = (events.ActivityCompleted, events.ActivityFailed)


def commit(t: Transaction, part: r.Commit) -> r.Committed | r.Refused:
    """Apply an outcome, if the lease still holds."""
    outcome = part.outcome
    eager = choose_eager(t, part)
    keeps = not part.release or bool(eager)
    # The update below may clear how the instance was paused, which children and a successor inherit.
    heirs = outcome.children or outcome.successor is not None
    before = find(t.session, part.execution_id) if heirs else None
    covered = covered_by(part, eager)
    running = encode_requests(_running_after(part, covered)) if keeps else None
    wake, paused = part.wake, False
    if not _step(t, part, running, keeps=keeps):
        hit = _update(t, part, running, keeps=keeps)
        if not hit:
            return _refused(t, part)
        wake, paused = hit[0]["wake"], hit[0]["paused"] is not None
        if eager and paused:
            eager, covered, keeps = (), (), not part.release
            _take_back(t, part)
    _note(t, part, released_ready=not keeps and wake != part.wake)
    if part.running and not keeps:
        lease_requests(t, part.execution_id, part.running)
    without_row = {request.ref for request in (*part.running, *covered)} if keeps else set()
    wake += _apply(t, part, eager, without_row)
    if paused:
        t.busy_queues.clear()  # what it has scheduled is held back
    if heirs or _has_effects(outcome):
        send_effects(t, part.execution_id, outcome, before)
    if outcome.children or outcome.messages:
        [now] = t.session.fetch("progress", execution_id=part.execution_id)
        wake = now["wake"]
        keeps = keeps and now["epoch"] == part.epoch  # a message to itself may have terminated the instance
    own = eager[len(covered) :]  # those that are covered come first
    tasks = (*eager_tasks(part, covered, epoch=0), *eager_tasks(part, own, epoch=1))
    if not keeps:
        return r.Committed(wake=wake, tasks=tasks)
    entries = entries_since(t, part.execution_id, part.wake) if wake != part.wake else ()
    # None: the instance is a dead letter and its lease is over, which the next verb of the worker finds. This one counts.
    return r.Committed(wake=wake, inbox=entries or (), tasks=tasks)


def _running_after(part: r.Commit, covered: Sequence[ActivityRequest]) -> Sequence[ActivityRequest]:
    """Return the activities that run without a row after a commit."""
    withdrawn = {withdrawal.ref for withdrawal in part.outcome.withdrawals if is_withdrawn(withdrawal)}
    return [request for request in (*part.running, *covered) if request.ref not in withdrawn]


def _take_back(t: Transaction, part: r.Commit) -> None:
    """Claim nothing after all: the instance is paused. The lease is kept only if it would have been anyway."""
    if part.release:
        t.session.execute("end_kept_lease", execution_id=part.execution_id, wake=part.wake, ready_at=t.ready_at())
    else:
        running = encode_requests(_running_after(part, ()))
        t.session.execute("set_covered", execution_id=part.execution_id, covered=running)


def _step(t: Transaction, part: r.Commit, running: str | None, *, keeps: bool) -> bool:
    """Make the fenced update of most commits: a running instance whose inbox did not change."""
    outcome = part.outcome
    if outcome.status is not Status.RUNNING:
        return False
    last_seq = part.base_seq + len(outcome.events)
    fence = (part.execution_id, part.epoch, part.base_seq, part.wake)
    if keeps:
        return bool(t.session.run("commit_step", (0, 0, last_seq, running, *fence, outcome.wake_at)))
    return bool(t.session.run("commit_and_rest", (last_seq, outcome.wake_at, *fence)))


def _update(t: Transaction, part: r.Commit, running: str | None, *, keeps: bool) -> Sequence[Row]:
    """Make the fenced update of any commit; return its row, or none if the commit is refused."""
    outcome = part.outcome
    return t.session.fetch(
        "commit_and_keep" if keeps else "commit_and_release",
        execution_id=part.execution_id,
        epoch=part.epoch,
        base_seq=part.base_seq,
        last_seq=part.base_seq + len(outcome.events),
        wake=part.wake,
        wake_at=outcome.wake_at,
        ready_at=t.ready_at(),
        # As integers: for a bool, sqlite3 first looks for an adapter, which takes longer than to bind it.
        strict=int(outcome.strict and overtakes(entries_since(t, part.execution_id, part.wake) or ())),
        status=outcome.status.value,
        closed_at=t.now if outcome.status.terminal else None,
        deactivated=int(outcome.deactivated),
        parked=outcome.diagnosis,
        covered=running,
    )


def _refused(t: Transaction, part: r.Commit) -> r.Refused:
    row = find(t.session, part.execution_id) if part.outcome.strict else None
    as_named = {"epoch": part.epoch, "last_seq": part.base_seq}
    if row is not None and row["leased_until"] is not None and all(row[key] == n for key, n in as_named.items()):
        return r.Refused(reason=r.INBOX_CHANGED)
    return r.Refused(reason="the lease is lost, or the log is elsewhere")


def _note(t: Transaction, part: r.Commit, *, released_ready: bool) -> None:
    """Note what waiters must hear of."""
    outcome, changes = part.outcome, t.changes
    changes.due(outcome.wake_at)
    if outcome.status is not Status.RUNNING:
        changes.touched.add(part.execution_id)
        if outcome.status.terminal:
            changes.closed[part.execution_id] = closing_entry(outcome.events)
    if released_ready or outcome.status is Status.DIVERGED:
        changes.work = True


def _apply(t: Transaction, part: r.Commit, eager: Sequence[ActivityRequest], without_row: set[int]) -> int:
    """Write the instance's own part of an outcome; return how often that raised the wake counter.

    *eager* are the activities that it claims, *without_row* the refs of all that the lease on the instance covers.
    """
    outcome, execution_id = part.outcome, part.execution_id
    history.append(t, execution_id, outcome.events)
    if outcome.forgotten or outcome.dropped:
        history.forget(t.session, execution_id, outcome.forgotten)
        history.drop(t.session, execution_id, outcome.dropped)
    # Results that the worker delivered in memory; those from the inbox have no row any more.
    answered = {e.ref for e in outcome.events if type(e) in _FINAL}.union(part.answered)
    if answered:
        t.session.put_off("remove_activity", [(execution_id, ref) for ref in answered])
    session = t.session
    _describe(t, part)
    if outcome.consumed:
        session.put_off("consume_inbox", [(number, execution_id) for number in outcome.consumed])
    if outcome.activities:
        requests = [request for request in outcome.activities if request.ref not in without_row]
        schedule(t, execution_id, requests, {request.ref for request in eager})
    if part.retries:
        retry(t, execution_id, part.retries)
    if not outcome.withdrawals:
        return 0
    return sum(withdraw(t, execution_id, withdrawal, without_row) for withdrawal in outcome.withdrawals)


def _describe(t: Transaction, part: r.Commit) -> None:
    """Write what others must know of the instance, as far as the outcome says it."""
    outcome, execution_id, session = part.outcome, part.execution_id, t.session
    if outcome.signal_schemas is not None:
        session.execute("set_signal_schemas", execution_id=execution_id, schemas=encode(outcome.signal_schemas))
    if outcome.tags is not None:
        change_tags(session, execution_id, outcome.tags)
    if outcome.failure is not None:
        session.execute("set_failure", execution_id=execution_id, failure=outcome.failure)
    if outcome.status is Status.DIVERGED:
        session.execute("mark_tried", execution_id=execution_id, worker=part.worker)
        session.execute("forget_old_tries", execution_id=execution_id, worker=part.worker, kept=TRIED_KEPT)


def _has_effects(outcome: Outcome) -> bool:
    """Whether an outcome goes beyond its own log, inbox and activities."""
    return bool(outcome.messages or outcome.promises or outcome.closed or outcome.publications)
