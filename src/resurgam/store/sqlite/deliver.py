"""How executions begin, and how they are told something: by `deliver`, and by other executions."""

from collections.abc import Sequence

import msgspec

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.protocol import PROMISES_KEPT
from resurgam.store.rules import is_same, settlement
from resurgam.store.sqlite.claim import Claiming
from resurgam.store.sqlite.rows import columns_of, instance_of
from resurgam.store.sqlite.session import Row
from resurgam.store.watches import growth_of


class Telling(Claiming):
    """Begins, tells, halts and ends instances, and settles their promises."""

    def create(self, part: r.Creation) -> r.Created | r.Exists:
        """Begin an execution."""
        started = part.started
        newest = self._newest(started.entity_id)
        if newest is not None:
            same = self._same(started, newest)
            if same is not None:
                return r.Created(instance=same)
            known = instance_of(newest)
            if not self._makes_way(newest, known, part):
                return r.Exists(instance=self._as_told(known, part))
        instance = self._begin(started)
        if part.follows is not None and newest is not None:
            self._move_promises(newest, instance)
        for event in part.inbox:
            self._tell(instance.execution_id, event)
        claim = self._claim_at_once(instance.execution_id, instance.queue, part.offer)
        instance = self._as_told(instance, part)
        if claim is None:
            self.changes.work = True
            return r.Created(instance=instance)
        return r.Created(instance=instance, claim=msgspec.structs.replace(claim, log=(started,)))

    def _makes_way(self, row: Row, newest: r.Instance, part: r.Creation) -> bool:
        """Whether another execution may follow; one that is open is ended for it, or told what the other would be."""
        ended = newest.status.terminal
        if part.follows is not None:
            return ended and newest.execution_id == part.follows
        if ended:
            return not part.attach
        if part.replace is not None and not part.attach:
            self._terminate(row, part.replace)
            return True
        for event in part.inbox:
            self._tell(newest.execution_id, event)
        return False

    def _as_told(self, instance: r.Instance, part: r.Creation) -> r.Instance:
        """Return the instance as it is now, after it may have been told something."""
        if not part.inbox:
            return instance
        [row] = self._session.all("instance_by_execution", execution_id=instance.execution_id)
        return instance_of(row)

    def _begin(self, started: events.Started, paused: r.Pause | None = None) -> r.Instance:
        instance = r.Instance.of(started)
        ready = 0 if instance.status is Status.SCHEDULED else self.turn()
        self._session.do("create_instance", **columns_of(instance, paused), ready=ready)
        self._append(instance.execution_id, (started,))
        self.changes.due(instance.wake_at)
        return instance

    def _same(self, started: events.Started, newest: Row) -> r.Instance | None:
        """Return the very execution that is to be begun, if an entity that has a *newest* one has it already."""
        if is_same(instance_of(newest), started):
            return instance_of(newest)
        rows = self._session.all(
            "same_execution", entity_id=started.entity_id, run_id=started.run_id, attempt=started.attempt
        )
        return instance_of(rows[0]) if rows else None

    def _newest(self, entity_id: str) -> Row | None:
        rows = self._session.all("newest_execution", entity_id=entity_id)
        return rows[0] if rows else None

    def _find(self, execution_id: str) -> Row | None:
        rows = self._session.all("instance_by_execution", execution_id=execution_id)
        return rows[0] if rows else None

    def deliver(self, part: r.Delivery) -> r.Delivered | r.Missing | r.Ended | r.Settled:
        """Put an event into an inbox."""
        if part.promise_id is not None:
            answer = self._settle(part.promise_id, part.event)
            row = self._find(answer) if isinstance(answer, str) else None
            return self._delivered(row, part.offer) if isinstance(answer, str) else answer
        row = self._newest(part.entity_id) if part.execution_id is None else self._find(part.execution_id)
        if row is None:
            return r.Missing()
        status = Status(row["status"])
        if status.terminal:
            known = part.promise is not None and self._promises_named(row["execution_id"], part.promise)
            return r.Settled() if known else r.Ended(status=status)
        if part.promise is not None:
            answer = self._settle_by_name(row["execution_id"], part.promise, part.event)
            return self._delivered(row, part.offer) if isinstance(answer, str) else answer
        if isinstance(part.event, events.WorkflowTerminated):
            self._terminate(row, part.event)
            return r.Delivered()
        return self._delivered(row if self._tell(row["execution_id"], part.event) else None, part.offer)

    def _delivered(self, row: Row | None, offer: r.EagerOffer | None) -> r.Delivered:
        """Answer that something was told to the instance of a row, or that there was nothing to tell."""
        claim = None if row is None else self._claim_at_once(row["execution_id"], row["queue"], offer)
        return r.Delivered(claim=claim)

    def _tell(self, execution_id: str, event: events.Event) -> bool:
        """Do what an event does to an open instance; return whether there is anything in the inbox for it."""
        match event:
            case events.WorkflowTerminated():
                [row] = self._session.all("instance_by_execution", execution_id=execution_id)
                self._terminate(row, event)
                return False
            case events.WorkflowPaused():
                pause = r.Pause.TREE if event.tree else r.Pause.ALONE
                told = self._session.do("pause_instance", execution_id=execution_id, paused=pause.value)
            case events.WorkflowResumed():
                told = self._session.do("resume_instance", execution_id=execution_id, turn=self.turn())
            case events.WorkflowBegun():
                told = self._session.do("begin_instance", execution_id=execution_id)
            case _:
                told = 1
        if told:
            self._hand_on(execution_id, event)
        return bool(told)

    def _hand_on(self, execution_id: str, event: events.Event) -> None:
        """Put an event into the inbox; two kinds of them end the waiting of an instance that is put off."""
        if isinstance(event, events.CancelRequested | events.WorkflowBegun):
            self._session.do("begin_instance", execution_id=execution_id)
        self._put(execution_id, event)

    def _terminate(self, row: Row, event: events.WorkflowTerminated) -> None:
        """End an instance whatever its code does; a new epoch fences whoever holds it."""
        execution_id, seq = row["execution_id"], row["last_seq"] + 1
        kept = self._session.all("last_events", execution_id=execution_id, last=1, forgotten=True)
        at = max([self._now, *(msgspec.json.decode(last["body"], type=_Moment).at for last in kept)])
        self._append(execution_id, (msgspec.structs.replace(event, seq=seq, at=at),))
        self._session.do(
            "terminate_instance",
            execution_id=execution_id,
            status=Status.TERMINATED.value,
            seq=seq,
            now=self._now,
            turn=self.turn(),
        )
        self._session.do("forget_tries", execution_id=execution_id)
        self.changes.touched |= {execution_id, growth_of(execution_id)}
        self.changes.work = True

    # Promises.

    def _close(self, execution_id: str, promise_ids: Sequence[str]) -> None:
        """Have promises count as settled; of those that are, the last are kept for whoever comes too late."""
        closed = [{"execution_id": execution_id, "promise_id": promise_id} for promise_id in promise_ids]
        self._session.many("close_promise", closed)
        self._session.do("forget_promises", execution_id=execution_id, kept=PROMISES_KEPT)

    def _settle(self, promise_id: str, event: events.Event, ending: str = "") -> str | r.Missing | r.Settled:
        """Settle a promise, and return the execution that was told; *ending* may still settle its own."""
        hit = self._session.all("settle_promise", promise_id=promise_id, ending=ending)
        if not hit:
            return r.Settled() if self._session.all("promise", promise_id=promise_id) else r.Missing()
        execution_id: str = hit[0]["execution_id"]
        self._put(execution_id, settlement(event, promise_id))
        self._session.do("forget_promises", execution_id=execution_id, kept=PROMISES_KEPT)
        return execution_id

    def _settle_by_name(self, execution_id: str, name: str, event: events.Event) -> str | r.Missing | r.Settled:
        rows = self._promises_named(execution_id, name)
        return self._settle(rows[0]["promise_id"], event) if rows else r.Missing()

    def _promises_named(self, execution_id: str, name: str) -> Sequence[Row]:
        return self._session.all("promises_named", execution_id=execution_id, name=name)

    def _move_promises(self, before: Row, successor: r.Instance) -> None:
        """Hand the promises of an ended execution to the next attempt of its run."""
        if successor.run_id == before["run_id"]:
            self._session.do("move_promises", execution_id=before["execution_id"], successor=successor.execution_id)


class _Moment(msgspec.Struct):
    """The one field of an entry that the next one must not precede."""

    at: int = 0
