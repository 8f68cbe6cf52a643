"""How executions begin in the memory store, and how they are told something: by `deliver`, and by other executions."""

import msgspec

from resurgam.core import event as events
from resurgam.core.outcome import OpenPromise
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.memory.activities import MemoryActivities
from resurgam.store.protocol import PROMISES_KEPT
from resurgam.store.rows import Row
from resurgam.store.rules import is_same, settlement


class MemoryTelling(MemoryActivities):
    """Begins, tells, halts and ends instances, and settles their promises."""

    def _create(self, part: r.Creation) -> r.Created | r.Exists:
        started = part.started
        for execution_id in self._current.get(started.entity_id, ()):
            known = self._rows[execution_id]
            if is_same(known.instance, started):
                return r.Created(instance=known.shown())
        newest = self._newest(started.entity_id)
        if newest is not None and not self._makes_way(newest, part):
            return r.Exists(instance=newest.shown())
        row = self._begin(started)
        if newest is not None and part.follows is not None:
            self._move_promises(newest, row)
        for event in part.inbox:
            self._tell(row, event)
        claim = self._claim_at_once(row, part.offer)
        return r.Created(instance=row.shown(), claim=claim and msgspec.structs.replace(claim, log=(started,)))

    def _makes_way(self, newest: Row, part: r.Creation) -> bool:
        """Whether another execution may follow; one that is open is ended for it, or told what the other would be."""
        ended = newest.instance.status.terminal
        if part.follows is not None:
            return ended and newest.instance.execution_id == part.follows
        if ended:
            return not part.attach
        if part.replace is not None and not part.attach:
            self._terminate(newest, part.replace)
            return True
        for event in part.inbox:
            self._tell(newest, event)
        return False

    def _newest(self, entity_id: str) -> Row | None:
        execution_id = next(reversed(self._current.get(entity_id, [])), None)
        return None if execution_id is None else self._rows[execution_id]

    def _begin(self, started: events.Started, paused: r.Pause | None = None) -> Row:
        row = Row(r.Instance.of(started), {started.seq: started}, ready=False, paused=paused)
        self._rows[started.execution_id] = row
        self._current[started.entity_id].append(started.execution_id)
        self._let_go(row, ready=True)
        return row

    def _deliver(self, part: r.Delivery) -> r.Delivered | r.Missing | r.Ended | r.Settled:
        if part.promise_id is not None:
            settled = self._settle(part.promise_id, part.event)
            return self._delivered(settled, part.offer) if isinstance(settled, Row) else settled
        row = self._rows.get(part.execution_id) if part.execution_id else self._newest(part.entity_id)
        if row is None:
            return r.Missing()
        if row.instance.status.terminal:
            known = any(promise.name == part.promise for promise in row.promises.values())
            return r.Settled() if known else r.Ended(status=row.instance.status)
        if part.promise is not None:
            settled = self._settle_by_name(row, part.promise, part.event)
            return self._delivered(settled, part.offer) if isinstance(settled, Row) else settled
        return self._delivered(row, part.offer) if self._tell(row, part.event) else r.Delivered()

    def _delivered(self, row: Row, offer: r.EagerOffer | None) -> r.Delivered:
        return r.Delivered(claim=self._claim_at_once(row, offer))

    def _tell(self, row: Row, event: events.Event) -> bool:
        """Do what an event does to an open instance; return whether there is anything in the inbox for it."""
        match event:
            case events.WorkflowTerminated():
                self._terminate(row, event)
                return False
            case events.WorkflowPaused():
                return self._pause(row, event)
            case events.WorkflowResumed() if row.paused is None:
                return False
            case events.WorkflowResumed():
                row.paused = None
                self._show(row)
            case events.WorkflowBegun() if row.instance.status is not Status.SCHEDULED:
                return False
        self._hand_on(row, event)
        return True

    def _hand_on(self, row: Row, event: events.Event) -> None:
        """Put an event into the inbox; two kinds of them end the waiting of an instance that is put off."""
        early = isinstance(event, events.WorkflowBegun | events.CancelRequested)
        if early and row.instance.status is Status.SCHEDULED:
            row.instance = msgspec.structs.replace(row.instance, status=Status.RUNNING, wake_at=None)
        self._put(row, event)

    def _pause(self, row: Row, event: events.WorkflowPaused) -> bool:
        so_already = row.paused is r.Pause.TREE or (row.paused is r.Pause.ALONE and not event.tree)
        if so_already or row.instance.status.terminal:
            return False
        row.paused = r.Pause.TREE if event.tree else r.Pause.ALONE
        self._ready.pop(row.instance.execution_id, None)
        self._put(row, event)
        return True

    def _terminate(self, row: Row, event: events.WorkflowTerminated) -> None:
        """End an instance whatever its code does; a new epoch fences whoever holds it."""
        at = max([self._clock.now(), *(entry.at for entry in row.kept()[-1:])])
        row.append([msgspec.structs.replace(event, seq=row.instance.last_seq + 1, at=at)])
        row.epoch += 1
        row.instance = msgspec.structs.replace(
            row.instance,
            status=Status.TERMINATED,
            closed_at=self._clock.now(),
            last_seq=row.instance.last_seq + 1,
            wake_at=None,
            parked=None,
            dead=None,
        )
        row.paused = None
        row.deliveries = 0
        row.tried_by.clear()
        self._parked.pop(row.instance.execution_id, None)
        self._grown(row)
        self._let_go(row, ready=True)

    # Promises.

    def _open(self, row: Row, promise: OpenPromise) -> None:
        """Have a promise settled from now on; one of an earlier attempt is open again, unless it was settled since."""
        settled = promise.promise_id in row.promises and any(
            getattr(entry.event, "promise_id", None) == promise.promise_id for _, entry in row.inbox.values()
        )
        kept = r.Promise(promise_id=promise.promise_id, name=promise.name, settled=settled, schema=promise.schema)
        self._keep(row, kept)

    def _keep(self, row: Row, promise: r.Promise) -> None:
        """Have a promise be this execution's, and nobody else's."""
        elsewhere = self._rows.get(self._promises.get(promise.promise_id, ""), row)
        if elsewhere is not row:
            del elsewhere.promises[promise.promise_id]
        row.promises[promise.promise_id] = promise
        self._promises[promise.promise_id] = row.instance.execution_id

    def _close(self, row: Row, promise_id: str) -> None:
        """Have a promise count as settled; of those that are, the last are kept for whoever comes too late."""
        promise = row.promises.get(promise_id)
        if promise is None:
            return
        self._count_as_settled(row, promise)

    def _count_as_settled(self, row: Row, promise: r.Promise) -> None:
        row.promises[promise.promise_id] = msgspec.structs.replace(promise, settled=True)
        settled = [promise.promise_id for promise in row.promises.values() if promise.settled]
        for old in settled[:-PROMISES_KEPT]:
            del row.promises[old], self._promises[old]

    def _settle(self, promise_id: str, event: events.Event, ending: Row | None = None) -> Row | r.Missing | r.Settled:
        row = self._rows.get(self._promises.get(promise_id, ""))
        if row is None:
            return r.Missing()
        # The commit that ends an execution may still settle its promises: the next attempt takes them over.
        if row.promises[promise_id].settled or (row.instance.status.terminal and row is not ending):
            return r.Settled()
        self._count_as_settled(row, row.promises[promise_id])
        self._put(row, settlement(event, promise_id))
        return row

    def _settle_by_name(self, row: Row, name: str, event: events.Event) -> Row | r.Missing | r.Settled:
        found = self._promise_named(row, name)
        return r.Missing() if found is None else self._settle(found.promise_id, event)

    def _promise_named(self, row: Row, name: str) -> r.Promise | None:
        """Return the oldest open promise of a name; if none is open, the oldest."""
        named = (promise for promise in row.promises.values() if promise.name == name)
        return min(named, key=lambda promise: promise.settled, default=None)

    def _meant(self, to: r.Delivery) -> tuple[Row | None, r.Promise | None]:
        """Return the promise that a delivery is addressed to, and its execution."""
        if to.promise_id is not None:
            row = self._rows.get(self._promises.get(to.promise_id, ""))
            return row, None if row is None else row.promises[to.promise_id]
        row = self._rows.get(to.execution_id) if to.execution_id else self._newest(to.entity_id)
        return row, None if row is None or to.promise is None else self._promise_named(row, to.promise)

    def _move_promises(self, row: Row, successor: Row) -> None:
        """Hand the promises of an ended execution to the next attempt of its run."""
        if successor.instance.run_id == row.instance.run_id:
            successor.promises, row.promises = row.promises, {}
            self._promises.update(dict.fromkeys(successor.promises, successor.instance.execution_id))
