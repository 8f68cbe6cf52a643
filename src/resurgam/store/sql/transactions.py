"""What each verb of a store does within a transaction, told in the named statements of `queries.sql`.

A part is applied whole or refused alone: the fenced statement comes first, and the rest only if it hit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from resurgam.core import event as events
from resurgam.core.event import decode_event, encode_event
from resurgam.core.outcome import ActivityRequest, Entry, Outcome, Withdrawal
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.protocol import REDELIVERIES
from resurgam.store.sql.forgetting import drop, forget
from resurgam.store.sql.session import Row, Session, claimable_activities, claimable_instances


@dataclass(slots=True)
class Changes:
    """What a transaction changed that somebody may wait for.

    *touched*: instances that ended or have something new in their inbox. *work*: something may be claimable now.
    *moment*: the earliest moment at which something becomes so by itself.
    """

    touched: set[str] = field(default_factory=set)
    work: bool = False
    moment: int | None = None

    def due(self, moment: int | None) -> None:
        """Note that something becomes claimable at *moment*."""
        if moment is not None and (self.moment is None or moment < self.moment):
            self.moment = moment


class Transactions:
    """The verbs, one part at a time, at one moment."""

    def __init__(self, session: Session, *, now: int, lease: int, owner: str) -> None:
        self._session = session
        self._now = now
        self._until = now + lease
        self._owner = owner
        self._queues_with_work: set[str] | None = None
        self.changes = Changes()

    @property
    def session(self) -> Session:
        """The connection, for what belongs into the same transaction."""
        return self._session

    def create(self, part: r.Creation) -> r.Created | r.Exists:
        """Begin an execution."""
        started = part.started
        known = [instance_of(row) for row in self._session.all("executions_of", entity_id=started.entity_id)]
        for instance in known:
            if (instance.run_id, instance.attempt) == (started.run_id, started.attempt):
                return r.Created(instance=instance)
        if known and (part.attach or not known[-1].status.terminal):
            return r.Exists(instance=known[-1])
        instance = r.Instance.of(started)
        self._session.do(
            "create_instance",
            execution_id=instance.execution_id,
            entity_id=instance.entity_id,
            run_id=instance.run_id,
            tree_id=instance.tree_id,
            generation=instance.generation,
            attempt=instance.attempt,
            name=instance.name,
            queue=instance.queue,
            status=instance.status.value,
            created_at=instance.created_at,
            tags=msgspec.json.encode(instance.tags).decode(),
        )
        self._append(instance.execution_id, (started,))
        claim = self._claim_at_once(instance.execution_id, instance.queue, part.offer)
        if claim is None:
            self.changes.work = True
            return r.Created(instance=instance)
        return r.Created(instance=instance, claim=msgspec.structs.replace(claim, log=(started,)))

    def deliver(self, part: r.Delivery) -> r.Delivered | r.Missing | r.Ended:
        """Put an event into an inbox."""
        if part.execution_id is not None:
            rows = self._session.all("instance_by_execution", execution_id=part.execution_id)
        else:
            rows = self._session.all("instance_of_run", entity_id=part.entity_id, run_id=None)
        if not rows:
            return r.Missing()
        status = Status(rows[0]["status"])
        if status.terminal:
            return r.Ended(status=status)
        if isinstance(part.event, events.WorkflowTerminated):
            self._terminate(rows[0], part.event)
        else:
            self._put(rows[0]["execution_id"], part.event)
            return r.Delivered(claim=self._claim_at_once(rows[0]["execution_id"], rows[0]["queue"], part.offer))
        return r.Delivered()

    def _terminate(self, row: Row, event: events.WorkflowTerminated) -> None:
        """End an instance whatever its code does; a new epoch fences whoever holds it."""
        execution_id, seq = row["execution_id"], row["last_seq"] + 1
        kept = self._session.all("last_events", execution_id=execution_id, last=1, forgotten=True)
        at = max([self._now, *(msgspec.json.decode(last["body"], type=_Moment).at for last in kept)])
        self._append(execution_id, (msgspec.structs.replace(event, seq=seq, at=at),))
        self._session.do(
            "terminate_instance", execution_id=execution_id, status=Status.TERMINATED.value, seq=seq, now=self._now
        )
        self._session.do("forget_tries", execution_id=execution_id)
        self.changes.touched.add(execution_id)
        self.changes.work = True

    def revive(self, execution_id: str) -> r.Revived | r.Missing:
        """Hand out again what was put aside."""
        if not self._session.all("instance_by_execution", execution_id=execution_id):
            return r.Missing()
        self.changes.work = True
        count = self._session.do("revive_instance", execution_id=execution_id)
        if count:
            self._session.do("forget_tries", execution_id=execution_id)
        return r.Revived(count=count + self._session.do("revive_activities", execution_id=execution_id))

    def claim(self, worker: str, queues: Sequence[str], limit: int) -> list[r.Claim]:
        """Lease instances that are ready, due, or left behind."""
        return self._claim(claimable_instances(self._session, worker, queues, limit, self._now))

    def _claim_at_once(self, execution_id: str, queue: str, offer: r.Offer | None) -> r.Claim | None:
        """Lease what was made ready to the worker that offers itself, unless older work waits in its queue."""
        if offer is None or queue not in offer.queues:
            return None
        rows = self._session.all("claimable_at_once", execution_id=execution_id, worker=offer.worker)
        return next(iter(self._claim(rows)), None)

    def _claim(self, rows: Sequence[Row]) -> list[r.Claim]:
        claimed = [row for row in rows if not self._is_dead(row)]
        if not claimed:
            return []
        self._session.many(
            "lease_instance",
            [{"place": row["place"], "owner": self._owner, "until": self._until} for row in claimed],
        )
        self.changes.due(self._until)
        inboxes: dict[str, list[Entry]] = {row["execution_id"]: [] for row in claimed}
        told = [row["execution_id"] for row in claimed if row["wake"]]
        for entry in self._session.all("inboxes", execution_ids=_json(told)) if told else ():
            inboxes[entry["execution_id"]].append(Entry(entry["id"], decode_event(entry["body"])))
        return [
            r.Claim(
                instance=instance_of(row),
                epoch=row["epoch"] + 1,
                wake=row["wake"],
                inbox=tuple(inboxes[row["execution_id"]]),
            )
            for row in claimed
        ]

    def _is_dead(self, row: Row) -> bool:
        """Put an instance aside that was handed out too often."""
        if row["deliveries"] < REDELIVERIES:
            return False
        dead = f"handed out {row['deliveries']} times without a commit{row['last_failure']}"
        self._session.do("bury_instance", execution_id=row["execution_id"], dead=dead)
        return True

    def commit(self, part: r.Commit) -> r.Committed | r.Refused:
        """Apply an outcome, if the lease still holds."""
        outcome = part.outcome
        handed_out = self._choose(part)
        keeps = not part.release or bool(handed_out)
        wake = self._move_on(part, keeps=keeps)
        if wake is None:
            return r.Refused(reason="the lease is lost, or the log is elsewhere")
        self._note(part, released_ready=not keeps and wake != part.wake)
        wake += self._apply(part.execution_id, outcome, handed_out)
        if outcome.status is Status.DIVERGED:
            self._session.do("mark_tried", execution_id=part.execution_id, worker=part.worker)
        if not keeps:
            return r.Committed(wake=wake)
        tasks = tuple(_first_attempt(part, request) for request in handed_out)
        news = self._news(part.execution_id, part.wake) if wake != part.wake else ()
        return r.Committed(wake=wake, inbox=news, tasks=tasks)

    def _move_on(self, part: r.Commit, *, keeps: bool) -> int | None:
        """Make the fenced update of a commit; return the wake counter, None if the lease is lost."""
        outcome = part.outcome
        step = {
            "execution_id": part.execution_id,
            "epoch": part.epoch,
            "base_seq": part.base_seq,
            "last_seq": part.base_seq + len(outcome.events),
            "wake": part.wake,
            "wake_at": outcome.wake_at,
        }
        # By far the most commits are a step of a running instance that nobody has told anything meanwhile.
        if keeps and outcome.status is Status.RUNNING and self._session.do("commit_step", **step):
            return part.wake
        hit = self._session.all(
            "commit_and_keep" if keeps else "commit_and_release",
            **step,
            status=outcome.status.value,
            closed_at=self._now if outcome.status.terminal else None,
            deactivated=outcome.deactivated,
            parked=outcome.diagnosis,
        )
        return hit[0]["wake"] if hit else None

    def _choose(self, part: r.Commit) -> Sequence[ActivityRequest]:
        """Choose those of the activities asked for that the worker may begin at once."""
        if not part.hands or not part.outcome.activities:
            return ()
        if self._queues_with_work is None:
            rows = self._session.all("queues_with_work", queues=_json(list(part.queues)), now=self._now)
            self._queues_with_work = {row["queue"] for row in rows}
        served = set(part.queues) - self._queues_with_work
        return [request for request in part.outcome.activities if request.queue in served][: part.hands]

    def _note(self, part: r.Commit, *, released_ready: bool) -> None:
        """Note what a commit may mean to those who wait."""
        outcome = part.outcome
        self.changes.due(outcome.wake_at)
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
        if outcome.consumed:
            self._session.do("take_from_inbox", execution_id=execution_id, ids=_json(list(outcome.consumed)))
        if outcome.activities:
            self._schedule(execution_id, outcome.activities, {request.ref for request in handed_out})
        return sum(self._withdraw(execution_id, withdrawal) for withdrawal in outcome.withdrawals)

    def _schedule(self, execution_id: str, requests: Sequence[ActivityRequest], handed_out: set[int]) -> None:
        """Put activities on their queues, those that were handed out under their first lease."""
        for request in requests:
            if request.ref not in handed_out:
                self.changes.work = True
                if self._queues_with_work is not None:
                    self._queues_with_work.add(request.queue)
        if handed_out:
            self.changes.due(self._until)
        self._session.many(
            "schedule_activity",
            [self._activity(execution_id, request, leased=request.ref in handed_out) for request in requests],
        )

    def _withdraw(self, execution_id: str, withdrawal: Withdrawal) -> int:
        gone = self._session.all(
            "withdraw_activity", execution_id=execution_id, ref=withdrawal.ref, answered=withdrawal.answered
        )
        if not gone or withdrawal.entry is None:
            return 0
        self._put(execution_id, withdrawal.entry)
        return 1

    def extend(self, lease: r.Lease) -> r.Extended | r.Refused:
        """Renew a lease."""
        if lease.ref is not None:
            held = self._held_activity(lease)
            if isinstance(held, r.Refused):
                return held
            self._session.do("extend_activity", execution_id=lease.execution_id, ref=lease.ref, until=self._until)
            self.changes.due(self._until)
            return r.Extended()
        hit = self._session.all(
            "extend_instance", execution_id=lease.execution_id, epoch=lease.epoch, until=self._until
        )
        if not hit:
            return r.Refused(reason="the lease is lost")
        self.changes.due(self._until)
        return r.Extended(wake=hit[0]["wake"], inbox=self._news(lease.execution_id, lease.wake))

    def release(self, part: r.Release) -> r.Released | r.Refused:
        """Give a lease back."""
        lease, undelivered = part.lease, int(part.failed is None)
        self.changes.work = True
        if lease.ref is not None:
            held = self._held_activity(lease)
            if isinstance(held, r.Refused):
                return held
            self._session.do(
                "release_activity", execution_id=lease.execution_id, ref=lease.ref, undelivered=undelivered
            )
            return r.Released()
        failure = f"; the last error: {part.failed}" if part.failed else ""
        released = self._session.do(
            "release_instance",
            execution_id=lease.execution_id,
            epoch=lease.epoch,
            undelivered=undelivered,
            last_failure=failure,
        )
        return r.Released() if released else r.Refused(reason="the lease is lost")

    def claim_activities(self, queues: Sequence[str], limit: int) -> list[r.ActivityTask]:
        """Lease activities whose time has come."""
        rows = claimable_activities(self._session, queues, limit, self._now)
        return [task for row in rows if (task := self._claim_activity(row)) is not None]

    def _claim_activity(self, row: Row) -> r.ActivityTask | None:
        execution_id, ref = row["execution_id"], row["ref"]
        if Status(row["status"]).terminal:
            # Whoever ran it is gone, and nobody waits for it: it is not begun again for a workflow that has ended.
            self._session.do("remove_activity", execution_id=execution_id, ref=ref)
            self._put(execution_id, events.ActivityCancelled(at=self._now, ref=ref))
            return None
        request = _requests.decode(row["request"])
        if row["deliveries"] >= REDELIVERIES:
            what = f"activity {request.name!r} (entry {ref})"
            dead = f"{what} was handed out {row['deliveries']} times without an answer"
            self._session.do("bury_activity", execution_id=execution_id, ref=ref, dead=dead)
            return None
        self._session.do("lease_activity", execution_id=execution_id, ref=ref, owner=self._owner, until=self._until)
        self.changes.due(self._until)
        return r.ActivityTask(
            execution_id=execution_id,
            workflow_id=row["entity_id"],
            epoch=row["epoch"] + 1,
            attempt=row["attempt"],
            deliveries=row["deliveries"],
            request=request,
        )

    def complete_activity(self, part: r.ActivityResult) -> r.Accepted | r.Refused:
        """Tell an instance what became of its activity."""
        lease = r.Lease(execution_id=part.execution_id, epoch=part.epoch, ref=part.event.ref)
        held = self._held_activity(lease)
        if isinstance(held, r.Refused):
            return held
        self._session.do("remove_activity", execution_id=part.execution_id, ref=part.event.ref)
        if isinstance(part.event, events.ActivityRetryScheduled):
            again = {
                **{key: held[key] for key in ("execution_id", "ref", "queue", "request", "epoch")},
                **_NOT_LEASED,
                "visible_at": part.event.next_at,
                "available_at": part.event.next_at,
                "attempt": held["attempt"] + 1,
            }
            self.changes.due(part.event.next_at)
            self._session.do("schedule_activity", **again)
        self._put(part.execution_id, part.event)
        return r.Accepted()

    def purge(self, execution_id: str) -> r.Purged | r.Missing | r.Unfinished:
        """Remove an ended execution."""
        rows = self._session.all("instance_by_execution", execution_id=execution_id)
        if not rows:
            return r.Missing()
        status = Status(rows[0]["status"])
        if not status.terminal:
            return r.Unfinished(status=status)
        for statement in ("purge_instance", "purge_events", "purge_inbox", "purge_activities", "forget_tries"):
            self._session.do(statement, execution_id=execution_id)
        self.changes.touched.add(execution_id)
        return r.Purged()

    def note_adoption(self, part: r.Adoption) -> None:
        """Note what executions that are taken in mean to those who wait."""
        self.changes.work = True
        for copy in part.copies:
            for pending in copy.activities:
                self.changes.due(pending.visible_at)

    def end_leases_of(self, owner: str) -> None:
        """End the leases of an owner that is dead."""
        self._session.do("end_instance_leases", owner=owner, now=self._now)
        self._session.do("end_activity_leases", owner=owner, now=self._now)
        self.changes.work = True

    def _append(self, execution_id: str, entries: Sequence[events.Event]) -> None:
        rows = [{"execution_id": execution_id, "seq": e.seq, "body": encode_event(e).decode()} for e in entries]
        self._session.many("append_event", rows)

    def _activity(self, execution_id: str, request: ActivityRequest, *, leased: bool) -> dict[str, object]:
        return {
            "execution_id": execution_id,
            "ref": request.ref,
            "queue": request.queue,
            "request": _encoder.encode(request).decode(),
            "visible_at": self._now,
            "available_at": self._until if leased else self._now,
            "attempt": 1,
            "epoch": 1,  # whoever claims it later has another: this one is the commit's own
            "deliveries": int(leased),
            "owner": self._owner if leased else None,
        }

    def _put(self, execution_id: str, event: events.Event) -> None:
        [raised] = self._session.all("raise_wake", execution_id=execution_id)
        body = encode_event(event).decode()
        self._session.do("put_into_inbox", execution_id=execution_id, wake=raised["wake"], body=body)
        self.changes.touched.add(execution_id)
        self.changes.work = True

    def _news(self, execution_id: str, since: int) -> tuple[Entry, ...]:
        rows = self._session.all("inbox_since", execution_id=execution_id, wake=since)
        return tuple(Entry(row["id"], decode_event(row["body"])) for row in rows)

    def _held_activity(self, lease: r.Lease) -> Row | r.Refused:
        rows = self._session.all("activity", execution_id=lease.execution_id, ref=lease.ref)
        if not rows:
            return r.Refused(reason="the activity is answered or withdrawn")
        if rows[0]["epoch"] != lease.epoch or rows[0]["lease_owner"] is None:
            return r.Refused(reason="the lease of the activity is lost")
        return rows[0]


class _Moment(msgspec.Struct):
    """The one field of an entry that the next one must not precede."""

    at: int = 0


_requests = msgspec.json.Decoder(ActivityRequest)
_encoder = msgspec.json.Encoder()
_tags = msgspec.json.Decoder(dict[str, str])
_FINAL: Final = (events.ActivityCompleted, events.ActivityFailed)
_NOT_LEASED: Final[dict[str, object]] = {"deliveries": 0, "owner": None}


def _first_attempt(part: r.Commit, request: ActivityRequest) -> r.ActivityTask:
    return r.ActivityTask(
        execution_id=part.execution_id,
        workflow_id=part.entity_id,
        epoch=1,
        attempt=1,
        deliveries=0,
        request=request,
    )


def _json(value: object) -> str:
    return _encoder.encode(value).decode()


def instance_of(row: Row, troubles: tuple[str, ...] = ()) -> r.Instance:
    """Return the instance that a row holds."""
    return r.Instance(
        entity_id=row["entity_id"],
        execution_id=row["execution_id"],
        run_id=row["run_id"],
        tree_id=row["tree_id"],
        generation=row["generation"],
        attempt=row["attempt"],
        name=row["name"],
        queue=row["queue"],
        status=Status(row["status"]),
        created_at=row["created_at"],
        closed_at=row["closed_at"],
        deactivated=bool(row["deactivated"]),
        last_seq=row["last_seq"],
        wake_at=row["wake_at"],
        tags=_tags.decode(row["tags"]),
        parked=row["parked"],
        dead=row["dead"],
        troubles=troubles,
    )
