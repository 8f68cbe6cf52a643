"""The plan brain: instances of kind ``flow``. Each is a fold over its log, and advances by `decide`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.errors import NotFound
from resurgam.core.event import Event, Started
from resurgam.core.operation import Operation
from resurgam.core.outcome import Entry, Message, Outcome, Withdrawal
from resurgam.core.state import Status
from resurgam.flows.decide import decide, wake_at
from resurgam.flows.judge import Judge
from resurgam.flows.requests import activity_request, notify_parent
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
        ended_before = self._state.status is not FlowStatus.ACTIVE
        for entry in inbox:
            for event in self._translated(entry.event):
                self._decide(event, clock)
        self._decide(None, clock)
        if self._state.status is not FlowStatus.ACTIVE:
            # Handed over by this very commit, so no worker can have started it.
            for number in self._handed_over():
                if number not in self._state.compensations:
                    item = self._state.items[number]
                    self._decide(fe.WorkCancelled(ref=number, step=item.step), clock)
        return self._outcome(inbox, clock, ended_before=ended_before)

    def _decide(self, event: Event | None, clock: int) -> None:
        if not self._state.deactivated:
            self._new += decide(self._state, event, self._judge, clock)

    def _handed_over(self) -> Sequence[int]:
        return [number for number in self._state.outstanding if number not in self._requested]

    def _outcome(self, inbox: Sequence[Entry], clock: int, *, ended_before: bool) -> Outcome:
        state = self._state
        handed_over = self._handed_over()
        withdrawn = self._withdrawn()
        self._requested.update(handed_over)
        ended = state.status is not FlowStatus.ACTIVE
        return Outcome(
            events=tuple(self._new),
            consumed=tuple(entry.id for entry in inbox if entry.id is not None),
            activities=tuple(activity_request(state, number) for number in handed_over),
            withdrawals=tuple(
                Withdrawal(number, answered=False, entry=events.ActivityCancelled(at=clock, ref=number))
                for number in withdrawn
            ),
            messages=tuple(self._notifications(clock)) if ended and not ended_before else (),
            status=_STATUS[state.status],
            deactivated=state.deactivated,
            wake_at=wake_at(state, self._judge, clock),
            failure=state.failure.type if state.failure is not None else None,
        )

    def _withdrawn(self) -> Iterator[int]:
        """Yield the items that are waited for no longer: they are taken off their queues, unless a worker has begun them."""
        state = self._state
        for number in state.outstanding:
            if number in self._requested and number not in state.compensations:
                item = state.items[number]
                if state.status is not FlowStatus.ACTIVE or state.steps[item.step].status.terminal:
                    yield number

    def _notifications(self, clock: int) -> Iterator[Message]:
        for entry in self._new:
            if isinstance(entry, fe.FlowCompleted | fe.FlowFailed | fe.FlowCancelled):
                yield from notify_parent(self._state, entry, clock)

    # What the entries of an inbox mean to a flow.

    def _translated(self, event: Event) -> Iterator[Event]:
        number = event.ref
        item = self._state.item_of(number)
        if number is None or item is None:
            yield event
        elif number in self._state.compensations:
            yield from _about_compensation(event, number, item.step, item.comp_retry_count)
        else:
            whole = (python := self._state.plan.steps[item.step].python) is not None and not python.fields
            yield from _about_item(event, number, item.step, item.retry_count, whole=whole)


def _about_item(event: Event, number: int, step: str, retries: int, *, whole: bool) -> Iterator[Event]:
    """Return what an entry about the activity of a work item means."""
    match event:
        case events.ActivityCompleted():
            yield fe.WorkSucceeded(ref=number, step=step, outputs=outputs_of(event.result, step, whole=whole))
        case events.ActivityFailed():
            yield fe.WorkFailed(ref=number, step=step, failure=event.failure)
        case events.ActivityRetryScheduled():
            yield fe.WorkNotCompleted(ref=number, step=step, failure=event.failure)
            yield fe.RetryScheduled(item=number, step=step, retry_count=retries + 1, next_retry_at=event.next_at)
        case events.ActivityCancelled():
            yield fe.WorkCancelled(ref=number, step=step)
        case _:
            yield event


def _about_compensation(event: Event, number: int, step: str, retries: int) -> Iterator[Event]:
    match event:
        case events.ActivityCompleted():
            yield fe.CompSucceeded(ref=number, step=step)
        case events.ActivityFailed():
            yield fe.CompFailed(ref=number, step=step, failure=event.failure)
        case events.ActivityRetryScheduled():
            yield fe.CompRetryScheduled(
                ref=number, step=step, retry_count=retries + 1, next_retry_at=event.next_at, failure=event.failure
            )
        case _:
            yield event


def outputs_of(result: Raw, step: str, *, whole: bool) -> Raw:
    """Return the outputs in a result: its fields; if it has none, or counts as a *whole*, one that is named after the step."""
    if not whole and bytes(result[:1]) == b"{":
        return result
    return Raw(b"{" + msgspec.json.encode(step) + b":" + bytes(result) + b"}")


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
