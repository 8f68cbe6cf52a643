"""What each verb of a store does within a transaction, told in the named statements of `queries.sql`.

A part is applied whole or refused alone: the fenced statement comes first, and the rest only if it hit. The verbs stand
in several modules, each a class that the next one builds upon: `writing`, `activities`, `claiming`, `telling`, `outbox`,
and here.
"""

from collections.abc import Sequence
from typing import Final

from resurgam.core import event as events
from resurgam.core.outcome import ActivityRequest, Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.rules import overtakes
from resurgam.store.sqlite.activities import first_attempt
from resurgam.store.sqlite.forgetting import drop, forget
from resurgam.store.sqlite.outbox import Outbox
from resurgam.store.sqlite.queries import Asking
from resurgam.store.sqlite.rows import instance_of
from resurgam.store.sqlite.session import Row
from resurgam.store.watches import growth_of, reply_to

_FINAL: Final = (events.ActivityCompleted, events.ActivityFailed)


class Transactions(Outbox, Asking):
    """The verbs, one part at a time, at one moment."""

    def revive(self, execution_id: str) -> r.Revived | r.Missing:
        """Hand out again what was put aside."""
        if not self._session.all("instance_by_execution", execution_id=execution_id):
            return r.Missing()
        self.changes.work = True
        count = self._session.do("revive_instance", execution_id=execution_id, turn=self.turn())
        if count:
            self._session.do("forget_tries", execution_id=execution_id)
        return r.Revived(count=count + self._session.do("revive_activities", execution_id=execution_id))

    def commit(self, part: r.Commit) -> r.Committed | r.Refused:
        """Apply an outcome, if the lease still holds."""
        outcome = part.outcome
        handed_out = self._choose(part)
        keeps = not part.release or bool(handed_out)
        # What the update below may take away is asked for before: how the instance was halted, and its run.
        heirs = outcome.children or outcome.successor is not None
        before = self._find(part.execution_id) if heirs else None
        if keeps and self._step(part):
            wake = part.wake
        else:
            hit = self._move_on(part, keeps=keeps)
            if not hit:
                return self._refused(part)
            wake = hit[0]["wake"]
            if handed_out and hit[0]["paused"] is not None:
                handed_out, keeps = (), not part.release
                if part.release:
                    self._session.do("let_go", execution_id=part.execution_id, wake=part.wake, turn=self.turn())
        self._note(part, released_ready=not keeps and wake != part.wake)
        wake += self._apply(part.execution_id, outcome, handed_out)
        if outcome.status is Status.DIVERGED:
            self._session.do("mark_tried", execution_id=part.execution_id, worker=part.worker)
        if heirs or _goes_out(outcome):
            self._send_out(part.execution_id, outcome, before)
        if outcome.children or outcome.messages:
            [now] = self._session.all("progress", execution_id=part.execution_id)
            wake = now["wake"]
            keeps = keeps and now["epoch"] == part.epoch  # unless it has ended itself, by a message
        tasks = tuple(first_attempt(part, request) for request in handed_out)
        if not keeps:
            return r.Committed(wake=wake, tasks=tasks)
        news = self._news(part.execution_id, part.wake) if wake != part.wake else ()
        # None: the lease is over, of which the worker hears with the next word about it. This commit counts.
        return r.Committed(wake=wake, inbox=news or (), tasks=tasks)

    def _step(self, part: r.Commit) -> bool:
        """Make the fenced update of by far the most commits: of a running instance that was told nothing meanwhile."""
        outcome = part.outcome
        return outcome.status is Status.RUNNING and bool(
            self._session.do(
                "commit_step",
                execution_id=part.execution_id,
                epoch=part.epoch,
                base_seq=part.base_seq,
                last_seq=part.base_seq + len(outcome.events),
                wake=part.wake,
                wake_at=outcome.wake_at,
            )
        )

    def _move_on(self, part: r.Commit, *, keeps: bool) -> Sequence[Row]:
        """Make the fenced update of a commit; return its row, or none if it is refused."""
        outcome = part.outcome
        return self._session.all(
            "commit_and_keep" if keeps else "commit_and_release",
            execution_id=part.execution_id,
            epoch=part.epoch,
            base_seq=part.base_seq,
            last_seq=part.base_seq + len(outcome.events),
            wake=part.wake,
            wake_at=outcome.wake_at,
            turn=self.turn(),
            strict=outcome.strict and overtakes(self._news(part.execution_id, part.wake) or ()),
            status=outcome.status.value,
            closed_at=self._now if outcome.status.terminal else None,
            deactivated=outcome.deactivated,
            parked=outcome.diagnosis,
        )

    def _refused(self, part: r.Commit) -> r.Refused:
        row = self._find(part.execution_id) if part.outcome.strict else None
        as_named = {"epoch": part.epoch, "last_seq": part.base_seq}
        if row is not None and row["leased_until"] is not None and all(row[key] == n for key, n in as_named.items()):
            return r.Refused(reason=r.NEWS)
        return r.Refused(reason="the lease is lost, or the log is elsewhere")

    def _note(self, part: r.Commit, *, released_ready: bool) -> None:
        """Note what a commit may mean to those who wait."""
        outcome = part.outcome
        self.changes.due(outcome.wake_at)
        self.changes.grown.append(part.execution_id)
        if outcome.status is not Status.RUNNING:
            self.changes.touched.add(part.execution_id)
        if released_ready or outcome.status is Status.DIVERGED:
            self.changes.work = True

    def _apply(self, execution_id: str, outcome: Outcome, handed_out: Sequence[ActivityRequest]) -> int:
        """Write what an outcome brings; return how often that raised the wake counter."""
        self._append(execution_id, outcome.events)
        if outcome.forgotten or outcome.dropped:
            forget(self._session, execution_id, outcome.forgotten)
            drop(self._session, execution_id, outcome.dropped)
        # What the worker that held the instance answered itself; answers from the inbox have no row any more.
        answered = [{"execution_id": execution_id, "ref": e.ref} for e in outcome.events if type(e) in _FINAL]
        if answered:
            self._session.many("remove_activity", answered)
        if outcome.accepts is not None:
            self._session.do("accept_signals", execution_id=execution_id, accepts=encode(outcome.accepts))
        if outcome.failure is not None:
            self._session.do("note_failure", execution_id=execution_id, failure=outcome.failure)
        if outcome.consumed:
            self._session.do("take_from_inbox", execution_id=execution_id, ids=encode(outcome.consumed))
        if outcome.activities:
            self._schedule(execution_id, outcome.activities, {request.ref for request in handed_out})
        return sum(self._withdraw(execution_id, withdrawal) for withdrawal in outcome.withdrawals)

    def purge(self, execution_id: str) -> r.Purged | r.Missing | r.Unfinished:
        """Remove an ended execution."""
        rows = self._session.all("instance_by_execution", execution_id=execution_id)
        if not rows:
            return r.Missing()
        if not Status(rows[0]["status"]).terminal:
            return r.Unfinished(status=instance_of(rows[0]).status)
        for statement in (
            "purge_instance",
            "purge_events",
            "purge_inbox",
            "purge_activities",
            "purge_promises",
            "forget_tries",
        ):
            self._session.do(statement, execution_id=execution_id)
        gone = self._session.all("purge_questions", execution_id=execution_id)
        self.changes.touched |= {execution_id, growth_of(execution_id)}
        self.changes.touched |= {reply_to(row["question_id"]) for row in gone}
        return r.Purged()

    def note_adoption(self, part: r.Adoption) -> None:
        """Note what executions that are taken in mean to those who wait."""
        self.changes.work = True
        for copy in part.copies:
            self.changes.due(copy.instance.wake_at)
            for pending in copy.activities:
                self.changes.due(pending.visible_at)

    def keep_secret(self, value: bytes) -> None:
        """Make this the secret of the store, if it has none."""
        self._session.do("keep_secret", value=value)


def _goes_out(outcome: Outcome) -> bool:
    """Whether an outcome has something beyond its own log, inbox and activities."""
    return bool(outcome.messages or outcome.promises or outcome.closed or outcome.publications)
