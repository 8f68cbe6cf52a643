"""What each verb of a store does within a transaction, told in the named statements of `queries.sql`.

A part is applied whole or refused alone: the fenced statement comes first, and the rest only if it hit.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from resurgam.core import event as events
from resurgam.core.event import decode_event, encode_event
from resurgam.core.outcome import ActivityRequest, Entry, Outcome, Withdrawal
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.protocol import REDELIVERIES

Row = Mapping[str, Any]


class Session(Protocol):
    """A connection within a transaction."""

    def all(self, query: str, **parameters: object) -> Sequence[Row]:
        """Run a named statement and return its rows."""
        ...

    def do(self, query: str, **parameters: object) -> int:
        """Run a named statement and return how many rows it changed."""
        ...

    def many(self, query: str, parameters: Sequence[Mapping[str, object]]) -> None:
        """Run a named statement for each set of parameters."""
        ...


class Transactions:
    """The verbs, one part at a time, at one moment."""

    def __init__(self, session: Session, *, now: int, lease: int, owner: str) -> None:
        self._session = session
        self._now = now
        self._until = now + lease
        self._owner = owner

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
        return r.Created(instance=instance)

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
        return r.Delivered()

    def _terminate(self, row: Row, event: events.WorkflowTerminated) -> None:
        """End an instance whatever its code does; a new epoch fences whoever holds it."""
        execution_id, seq = row["execution_id"], row["last_seq"] + 1
        [last] = self._session.all("events_after", execution_id=execution_id, after=row["last_seq"] - 1)
        at = max(self._now, msgspec.json.decode(last["body"], type=_Moment).at)
        self._append(execution_id, (msgspec.structs.replace(event, seq=seq, at=at),))
        self._session.do(
            "terminate_instance", execution_id=execution_id, status=Status.TERMINATED.value, seq=seq, now=self._now
        )
        self._session.do("forget_tries", execution_id=execution_id)

    def revive(self, execution_id: str) -> r.Revived | r.Missing:
        """Hand out again what was put aside."""
        if not self._session.all("instance_by_execution", execution_id=execution_id):
            return r.Missing()
        count = self._session.do("revive_instance", execution_id=execution_id)
        if count:
            self._session.do("forget_tries", execution_id=execution_id)
        return r.Revived(count=count + self._session.do("revive_activities", execution_id=execution_id))

    def claim(self, worker: str, queues: Sequence[str], limit: int) -> list[r.Claim]:
        """Lease instances that are ready, due, or left behind."""
        rows = self._session.all(
            "claimable_instances", worker=worker, queues=_json(list(queues)), limit=limit, now=self._now
        )
        return [claim for row in rows if (claim := self._claim(row)) is not None]

    def _claim(self, row: Row) -> r.Claim | None:
        execution_id = row["execution_id"]
        if row["deliveries"] >= REDELIVERIES:
            dead = f"handed out {row['deliveries']} times without a commit{row['last_failure']}"
            self._session.do("bury_instance", execution_id=execution_id, dead=dead)
            return None
        [leased] = self._session.all("lease_instance", execution_id=execution_id, owner=self._owner, until=self._until)
        return r.Claim(
            instance=instance_of(row),
            epoch=leased["epoch"],
            wake=row["wake"],
            inbox=self._news(execution_id, -1),
        )

    def commit(self, part: r.Commit) -> r.Committed | r.Refused:
        """Apply an outcome, if the lease still holds."""
        outcome = part.outcome
        hit = self._session.all(
            "commit_instance",
            execution_id=part.execution_id,
            epoch=part.epoch,
            base_seq=part.base_seq,
            status=outcome.status.value,
            closed_at=self._now if outcome.status.terminal else None,
            deactivated=outcome.deactivated,
            last_seq=part.base_seq + len(outcome.events),
            wake_at=outcome.wake_at,
            parked=outcome.diagnosis,
        )
        if not hit:
            return r.Refused(reason="the lease is lost, or the log is elsewhere")
        older = self._queues_with_older_work(part)
        wake = hit[0]["wake"] + self._apply(part.execution_id, outcome)
        tasks = self._hand_out(part, older)
        if outcome.status is Status.DIVERGED:
            self._session.do("mark_tried", execution_id=part.execution_id, worker=part.worker)
        if part.release and not tasks:
            self._let_go(part.execution_id, part.epoch, ready=wake != part.wake)
            return r.Committed(wake=wake)
        return r.Committed(wake=wake, inbox=self._news(part.execution_id, part.wake), tasks=tasks)

    def _queues_with_older_work(self, part: r.Commit) -> set[str]:
        if not part.hands or not part.outcome.activities:
            return set()
        rows = self._session.all("queues_with_work", queues=_json(list(part.queues)), now=self._now)
        return {row["queue"] for row in rows}

    def _hand_out(self, part: r.Commit, older: set[str]) -> tuple[r.ActivityTask, ...]:
        """Lease as many of the activities just asked for as the worker has free hands for."""
        served = set(part.queues) - older
        wanted = [request for request in part.outcome.activities if request.queue in served][: part.hands]
        if not wanted:
            return ()
        [row] = self._session.all("instance_by_execution", execution_id=part.execution_id)
        for request in wanted:
            self._session.do(
                "lease_activity", execution_id=part.execution_id, ref=request.ref, owner=self._owner, until=self._until
            )
        return tuple(
            r.ActivityTask(
                execution_id=part.execution_id,
                workflow_id=row["entity_id"],
                epoch=1,
                attempt=1,
                deliveries=0,
                request=request,
            )
            for request in wanted
        )

    def _apply(self, execution_id: str, outcome: Outcome) -> int:
        """Write what an outcome brings; return how often that raised the wake counter."""
        self._append(execution_id, outcome.events)
        for entry in outcome.events:
            # What the worker that held the instance answered itself; answers from the inbox have no row any more.
            if isinstance(entry, events.ActivityCompleted | events.ActivityFailed):
                self._session.do("remove_activity", execution_id=execution_id, ref=entry.ref)
        if outcome.consumed:
            self._session.do("take_from_inbox", execution_id=execution_id, ids=_json(list(outcome.consumed)))
        if outcome.activities:
            self._session.many(
                "schedule_activity", [self._activity(execution_id, request) for request in outcome.activities]
            )
        return sum(self._withdraw(execution_id, withdrawal) for withdrawal in outcome.withdrawals)

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
            return r.Extended()
        hit = self._session.all(
            "extend_instance", execution_id=lease.execution_id, epoch=lease.epoch, until=self._until
        )
        if not hit:
            return r.Refused(reason="the lease is lost")
        return r.Extended(wake=hit[0]["wake"], inbox=self._news(lease.execution_id, lease.wake))

    def release(self, part: r.Release) -> r.Released | r.Refused:
        """Give a lease back."""
        lease, undelivered = part.lease, int(part.failed is None)
        if lease.ref is not None:
            held = self._held_activity(lease)
            if isinstance(held, r.Refused):
                return held
            self._session.do(
                "release_activity", execution_id=lease.execution_id, ref=lease.ref, undelivered=undelivered
            )
            return r.Released()
        failure = f"; the last error: {part.failed}" if part.failed else ""
        released = self._let_go(
            lease.execution_id, lease.epoch, ready=True, undelivered=undelivered, last_failure=failure
        )
        return r.Released() if released else r.Refused(reason="the lease is lost")

    def claim_activities(self, queues: Sequence[str], limit: int) -> list[r.ActivityTask]:
        """Lease activities whose time has come."""
        rows = self._session.all("claimable_activities", queues=_json(list(queues)), limit=limit, now=self._now)
        return [task for row in rows if (task := self._claim_activity(row)) is not None]

    def _claim_activity(self, row: Row) -> r.ActivityTask | None:
        execution_id, ref = row["execution_id"], row["ref"]
        request = _requests.decode(row["request"])
        if row["deliveries"] >= REDELIVERIES:
            what = f"activity {request.name!r} (entry {ref})"
            dead = f"{what} was handed out {row['deliveries']} times without an answer"
            self._session.do("bury_activity", execution_id=execution_id, ref=ref, dead=dead)
            return None
        [leased] = self._session.all(
            "lease_activity", execution_id=execution_id, ref=ref, owner=self._owner, until=self._until
        )
        return r.ActivityTask(
            execution_id=execution_id,
            workflow_id=row["entity_id"],
            epoch=leased["epoch"],
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
                "visible_at": part.event.next_at,
                "attempt": held["attempt"] + 1,
            }
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
        self._session.do("purge_instance", execution_id=execution_id)
        return r.Purged()

    def end_leases_of(self, owner: str) -> None:
        """End the leases of an owner that is dead."""
        self._session.do("end_instance_leases", owner=owner, now=self._now)
        self._session.do("end_activity_leases", owner=owner, now=self._now)

    def _append(self, execution_id: str, entries: Sequence[events.Event]) -> None:
        rows = [{"execution_id": execution_id, "seq": e.seq, "body": encode_event(e).decode()} for e in entries]
        self._session.many("append_event", rows)

    def _activity(self, execution_id: str, request: ActivityRequest) -> dict[str, object]:
        return {
            "execution_id": execution_id,
            "ref": request.ref,
            "queue": request.queue,
            "request": msgspec.json.encode(request).decode(),
            "visible_at": self._now,
            "attempt": 1,
            "epoch": 0,
        }

    def _put(self, execution_id: str, event: events.Event) -> None:
        [raised] = self._session.all("raise_wake", execution_id=execution_id)
        body = encode_event(event).decode()
        self._session.do("put_into_inbox", execution_id=execution_id, wake=raised["wake"], body=body)

    def _news(self, execution_id: str, since: int) -> tuple[Entry, ...]:
        rows = self._session.all("inbox_since", execution_id=execution_id, wake=since)
        return tuple(Entry(row["id"], decode_event(row["body"])) for row in rows)

    def _let_go(
        self, execution_id: str, epoch: int, *, ready: bool, undelivered: int = 0, last_failure: str = ""
    ) -> int:
        return self._session.do(
            "release_instance",
            execution_id=execution_id,
            epoch=epoch,
            ready=ready,
            undelivered=undelivered,
            last_failure=last_failure,
        )

    def _held_activity(self, lease: r.Lease) -> Row | r.Refused:
        rows = self._session.all("activity", execution_id=lease.execution_id, ref=lease.ref)
        if not rows:
            return r.Refused(reason="the activity is answered or withdrawn")
        if rows[0]["epoch"] != lease.epoch or rows[0]["leased_until"] is None:
            return r.Refused(reason="the lease of the activity is lost")
        return rows[0]


class _Moment(msgspec.Struct):
    """The one field of an entry that the next one must not precede."""

    at: int = 0


_requests = msgspec.json.Decoder(ActivityRequest)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


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
        tags=msgspec.json.decode(row["tags"], type=dict[str, str]),
        parked=row["parked"],
        dead=row["dead"],
        troubles=troubles,
    )
