"""The inbox of an execution: which entry is taken next, which has to wait, and which is consumed."""

from collections import deque
from collections.abc import Sequence

import msgspec

from resurgam.core import event as events
from resurgam.core.outcome import Entry
from resurgam.runtime.execution.updates import Consumed, UpdateQueue
from resurgam.runtime.matching.dedup import ReceivedIds
from resurgam.runtime.replay.driver import Driver


class Inbox:
    """Take the entries of the inbox into the log, in the order of their arrival.

    An entry whose call the code has not made yet, and an update without a handler, stay in the store's inbox until
    then.
    """

    def __init__(self, driver: Driver, log: Sequence[events.Event]) -> None:
        self._driver = driver
        self._recorder = driver.recorder
        self.received = ReceivedIds(log)
        self.consumed = Consumed()
        self.updates = UpdateQueue(driver, log, self.received, self.consumed)
        # The run is paused: nothing new is started until it is resumed. A plain attribute, since every step reads it.
        self.paused = False

    @property
    def held(self) -> list[Entry]:
        """The entries that wait for the code to reach them."""
        return [*self._recorder.carryover.held, *self.updates.waiting.values()]

    def holds(self, entry: Entry) -> bool:
        """Whether an entry that is not consumed waits for the code, so that it need not be delivered again."""
        return self.paused or self._recorder.carryover.holds(entry) or self.updates.holds(entry)

    def note_pauses(self, waiting: deque[Entry]) -> None:
        """Set `paused` by the last entry that pauses or resumes the run; entries that pause it are recorded at once."""
        for entry in waiting:
            if isinstance(entry.event, events.WorkflowPaused | events.WorkflowResumed):
                self.paused = isinstance(entry.event, events.WorkflowPaused)
        if self.paused:
            for entry in [entry for entry in waiting if isinstance(entry.event, events.WorkflowPaused)]:
                waiting.remove(entry)
                self.consumed.add(entry)
                self._recorder.log.take_in(entry.event)

    def next(self, waiting: deque[Entry]) -> Entry | None:
        """Remove the next entry from *waiting*; while paused, only results that this worker brings itself."""
        if not self.paused:
            if waiting and isinstance(waiting[0].event, events.CancelRequested):
                settled = take_settlement(waiting)
                if settled is not None:
                    return settled
            return waiting.popleft() if waiting else None
        own = next((entry for entry in waiting if entry.id is None), None)
        if own is not None:
            waiting.remove(own)
        return own

    def take(self, entry: Entry) -> events.Event | None:
        """Append an entry to the log; None if it is a duplicate, means nothing, or has to wait."""
        event = entry.event
        if isinstance(event, events.UpdateAccepted):
            return self.updates.receive(entry, event)
        if isinstance(event, events.ChildAnswer | events.PromiseAnswer) and not event.ref:
            addressed = self._addressed(entry, event)
            if addressed is None:
                return None
            event = addressed
        self.consumed.add(entry)
        if isinstance(event, events.SignalReceived) and event in self.received:
            return None
        if isinstance(event, events.WorkflowBegun) and self._driver.root is not None:
            return None
        if isinstance(event, events.CancelRequested) and self._driver.cancel_requested:
            # Cancel is idempotent during clean-up.
            return None
        taken = self._recorder.log.take_in(event)
        if isinstance(taken, events.SignalReceived):
            self.received.add(taken)
        return taken

    def _addressed(self, entry: Entry, event: events.ChildAnswer | events.PromiseAnswer) -> events.Answer | None:
        """Find the command of an answer from outside; an answer to an earlier attempt may come before its call."""
        state, carryover = self._recorder.log.state, self._recorder.carryover
        address = event.child if isinstance(event, events.ChildAnswer) else event.promise_id
        ref = state.addresses.get(address)
        retried = self._driver.started.attempt > 1
        awaited = carryover.expects(event) if isinstance(event, events.ChildAnswer) else retried
        if ref is None and awaited:
            if not carryover.holds(entry):
                carryover.hold(address, entry)
            return None
        if ref is None or ref not in state.open or self._is_by_another_attempt(event, ref):
            self.consumed.add(entry)
            return None
        # If the call was made in this very advance, nothing need be started for it.
        self._recorder.outbox.take_back(ref, "children")
        return msgspec.structs.replace(event, ref=ref)

    def _is_by_another_attempt(self, event: events.Answer, ref: int) -> bool:
        """Whether an answer is of a child that another attempt started, even at the same location."""
        call = self._recorder.log.state.open[ref]
        if not isinstance(event, events.ChildAnswer) or not isinstance(call, events.ChildCommand):
            return False
        adopted = self._recorder.carryover.adopted(call)
        return event.by != (self._driver.started.execution_id if adopted is None else adopted.by)


def take_settlement(waiting: deque[Entry], promise_id: str | None = None) -> Entry | None:
    """Remove the settlement of a promise from the inbox, of this one or of any, before the promise is given up.

    The sender was told that it counts: a promise is open until its end is recorded, however late the settlement is.
    """
    for entry in waiting:
        if isinstance(entry.event, events.PromiseAnswer) and promise_id in (None, entry.event.promise_id):
            waiting.remove(entry)
            return entry
    return None
