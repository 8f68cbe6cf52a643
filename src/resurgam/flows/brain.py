"""The plan brain: instances of kind ``flow``. Each is a fold over its log, and advances by `decide`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.errors import NotFound
from resurgam.core.event import Event, Started
from resurgam.core.failure import root_type
from resurgam.core.operation import Operation
from resurgam.core.outcome import Entry, Outcome, Withdrawal
from resurgam.core.state import Status
from resurgam.flows.answers import translated
from resurgam.flows.decide import decide, wake_at
from resurgam.flows.judge import Judge
from resurgam.flows.requests import activity_request, is_activity, notify_parent
from resurgam.flows.state import FlowState, FlowStatus

_STATUS: Final = {
    FlowStatus.ACTIVE: Status.RUNNING,
    FlowStatus.COMPLETED: Status.COMPLETED,
    FlowStatus.FAILED: Status.FAILED,
    FlowStatus.CANCELLED: Status.CANCELLED,
    FlowStatus.TERMINATED: Status.TERMINATED,
}


class LiveFlow:
    """One flow in memory."""

    def __init__(self, log: Sequence[Event], judge: Judge) -> None:
        self.closed = False
        self.brought: Sequence[Entry] = ()
        self._state = FlowState(log)
        self._judge = judge
        # What earlier commits have put on queues. A commit requests everything that the flow hands over by then, so what a
        # log hands over was requested, except before the first advance.
        self._requested = set(self._state.outstanding)
        self._new: list[Event] = []

    @property
    def started(self) -> Started:
        """The first entry of its log."""
        return self._state.started

    @property
    def last_seq(self) -> int:
        """The ``seq`` of the newest entry."""
        return self._state.last_seq

    @property
    def delivered_seq(self) -> int:
        """The same: a flow takes in every entry at once."""
        return self._state.last_seq

    @property
    def paused(self) -> bool:
        """Whether it is paused: nothing new starts."""
        return self._state.paused

    @property
    def wants_more(self) -> bool:
        """Nothing: an advance brings the flow to rest."""
        return False

    def holds(self, entry: Entry) -> bool:
        """Nothing: every entry is consumed."""
        return False

    def take_operations(self) -> Sequence[Operation]:
        """Return nothing: all work of a flow is on queues."""
        return ()

    def is_open(self, ref: int) -> bool:
        """Whether a work item or a compensation still waits for its result."""
        return ref in self._state.outstanding

    def log_failure(self) -> None:
        """A failed flow says why in its log; no exception has left any code."""

    def close(self) -> None:
        """Do not advance it any more."""
        self.closed = True

    def advance(self, inbox: Sequence[Entry], clock: int, worker: str = "") -> Outcome:
        """Record each entry and what it leads to; then what the time leads to."""
        assert not self.closed
        self._new = []
        self.brought = [entry for entry in inbox if entry.id is None]
        for entry in inbox:
            for event in translated(self._state, entry.event):
                self._decide(event, clock)
        self._decide(None, clock)
        for number in self._handed_over():
            if not self._state.is_wanted(number):
                # Handed over by an entry of this advance and dropped by a later one, so no worker can have begun it.
                self._decide(fe.WorkCancelled(ref=number, step=self._state.items[number].step), clock)
        return self._outcome(inbox, clock)

    def _decide(self, event: Event | None, clock: int) -> None:
        if not self._state.deactivated:
            self._new += decide(self._state, event, self._judge, clock)

    def _handed_over(self) -> Sequence[int]:
        """Return what no commit has requested yet."""
        return [number for number in self._state.outstanding if number not in self._requested]

    def _outcome(self, inbox: Sequence[Entry], clock: int) -> Outcome:
        state = self._state
        withdrawn = [one for one in state.outstanding if one in self._requested and not state.is_wanted(one)]
        handed_over = self._handed_over()
        self._requested.update(handed_over)
        ends = any(isinstance(entry, fe.FlowDigestUpdated) for entry in self._new)
        return Outcome(
            events=tuple(self._new),
            consumed=tuple(entry.id for entry in inbox if entry.id is not None),
            activities=tuple(activity_request(state, one) for one in handed_over if is_activity(state, one)),
            # Only what no worker has begun. Asked for again with every commit, since a failed attempt may be retried.
            withdrawals=tuple(
                Withdrawal(one, answered=False, entry=events.ActivityCancelled(at=clock, ref=one)) for one in withdrawn
            ),
            messages=tuple(notify_parent(state, clock)) if ends else (),
            status=_STATUS[state.status],
            deactivated=state.deactivated,
            wake_at=wake_at(state, self._judge, clock),
            failure=None if state.failure is None else root_type(state.failure.cause or state.failure),
        )


class FlowBrain(msgspec.Struct, frozen=True):
    """Instances of kind ``flow``. The plan is in the log, so every worker knows every flow."""

    judge: Judge

    def load(
        self,
        name: str,
        log: Sequence[Event],
        *,
        signal_schemas: Mapping[str, Raw],
        paused: bool = False,
        running: Collection[int] = (),
    ) -> LiveFlow:
        """Fold a log."""
        return LiveFlow(log, self.judge)

    def record_late(self, log: Sequence[Event], inbox: Sequence[Entry], clock: int) -> Outcome:
        """Record what arrived after the end; it changes no outcome."""
        return LiveFlow(log, self.judge).advance(inbox, clock)

    def answer(self, log: Sequence[Event], query: str, input: Raw) -> Raw:
        """A flow has no queries; its log says everything."""
        raise NotFound(f"a flow answers no query, got {query!r}; `resurgam flow show` shows its state")
