"""The durable state of a simulation: executions with their logs and inboxes, as a store keeps them.

There are no leases and no queues, and the clock is a number, so that the whole store can be copied after any entry and
a simulation resumed from there, as workers resume after all of them were killed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

import msgspec

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.identity import entity_of
from resurgam.core.outcome import (
    ActivityRequest,
    ChildRequest,
    Forgotten,
    Message,
    Outcome,
    Publication,
    Succession,
)
from resurgam.core.state import ENDS, Status
from resurgam.store.rules import answer_child, child_started, is_addressed, kept_answer, ran_for, settlement

_ENDS = tuple(ENDS)


_RETRIED = (events.ActivityRetryScheduled, fe.WorkNotCompleted, fe.CompRetryScheduled)
"""Entries about an activity that do not answer it: another attempt follows."""


@dataclass(frozen=True, slots=True)
class Work:
    """An activity that waits for an answer. Its next *attempt* may begin at *due*."""

    request: ActivityRequest
    attempt: int = 1
    due: int = 0

    @property
    def ref(self) -> int:
        """The command that scheduled it, or the number of the work item."""
        return self.request.ref


@dataclass
class StoredPromise:
    """A promise, open or settled."""

    name: str
    settled: bool = False


@dataclass
class StoredExecution:
    """One execution as it is stored.

    *full_log* is everything that was ever in its log; *forgotten_by* maps a forgotten entry to its checkpoint. *held*
    are the inbox entries that its code has received and not consumed, *unread* those that it was offered and has not
    read: they go before the next results of the worker. *begun*: a worker has advanced it.
    """

    started: events.Started
    clock: int
    full_log: list[events.Event] = field(default_factory=list)
    log: list[events.Event] = field(default_factory=list)
    forgotten_by: dict[int, int] = field(default_factory=dict)
    forgotten: int = 0
    inbox: dict[int, events.Event] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    unread: set[int] = field(default_factory=set)
    promises: dict[str, StoredPromise] = field(default_factory=dict)
    answer: events.Event | None = None
    requests: dict[int, ActivityRequest] = field(default_factory=dict)
    withdrawn: set[int] = field(default_factory=set)
    status: Status = Status.RUNNING
    wake_at: int | None = None
    begun: bool = False
    paused: bool = False

    def copy(self) -> "StoredExecution":
        """Return an independent copy."""
        return replace(
            self,
            full_log=list(self.full_log),
            log=list(self.log),
            forgotten_by=dict(self.forgotten_by),
            inbox=dict(self.inbox),
            held=set(self.held),
            unread=set(self.unread),
            promises={key: replace(promise) for key, promise in self.promises.items()},
            requests=dict(self.requests),
            withdrawn=set(self.withdrawn),
        )

    def as_of(self, seq: int) -> list[events.Event]:
        """Return the log as it was after the entry with this ``seq``."""
        until = [entry for entry in self.full_log if entry.seq <= seq]
        return [entry for entry in until if self.forgotten_by.get(entry.seq, seq + 1) > seq]

    @property
    def is_complete(self) -> bool:
        """Whether nothing more will be recorded."""
        return isinstance(self.full_log[-1], events.WorkflowDeactivated | fe.FlowDeactivated)

    @property
    def is_flow(self) -> bool:
        """Whether it follows a plan."""
        return self.started.kind == fe.FLOW

    def append(self, written: Iterable[events.Event], forgotten: Iterable[Forgotten] = ()) -> None:
        """Append entries, and forget those that the checkpoints among them release."""
        remaining = iter(forgotten)
        for entry in written:
            self.full_log.append(entry)
            self.log.append(entry)
            if isinstance(entry, events.LoopCheckpointed) or (isinstance(entry, events.LoopCompleted) and entry.whole):
                released = islice(remaining, entry.forgotten - self.forgotten)
                self.forgotten_by.update((old.seq, entry.seq) for old in released)
                self.forgotten = entry.forgotten
                self.log = self.as_of(entry.seq)

    def open_work(self) -> list[Work]:
        """Return the activities that wait for an answer and are not withdrawn."""
        answered = {entry.ref for entry in self.log if not isinstance(entry, _RETRIED)} | self.withdrawn
        return [self._work(one) for one in self._scheduled() if one.ref not in answered]

    def _scheduled(self) -> list[ActivityRequest]:
        """Return all activities, in the order in which they were put on their queues."""
        if self.is_flow:
            return list(self.requests.values())
        commands = (entry for entry in self.log if isinstance(entry, events.ActivityScheduled))
        return [self.requests.get(one.seq) or _request_of(one, self.started.run_id) for one in commands]

    def _work(self, request: ActivityRequest) -> Work:
        retries = self.retries(request.ref)
        return Work(request, len(retries) + 1, max(retries, default=0))

    def retries(self, ref: int) -> list[int]:
        """Return for each failed attempt at an activity when the next may begin."""
        found = []
        for entry in self.log:
            match entry:
                case events.ActivityRetryScheduled() if entry.ref == ref:
                    found.append(entry.next_at)
                case fe.RetryScheduled() if entry.item == ref:
                    found.append(entry.next_retry_at)
                case fe.CompRetryScheduled() if entry.ref == ref:
                    found.append(entry.next_retry_at)
                case _:
                    pass
        return found


def _request_of(command: events.ActivityScheduled, run_id: str) -> ActivityRequest:
    """Return the request of a command that an earlier simulation has made: its policy is that of the activity."""
    entity_id = entity_of(run_id, command.location)
    return ActivityRequest(
        ref=command.seq,
        name=command.name,
        queue=command.queue,
        input=command.input,
        entity_id=entity_id,
        retry=None,
    )


@dataclass
class SimulatedStore:
    """All executions in the order of their start, and the published messages.

    *sent* counts the messages from outside, *number* the inbox entries.
    """

    clock: int
    executions: dict[str, StoredExecution] = field(default_factory=dict)
    published: list[Publication] = field(default_factory=list)
    sent: int = 0
    number: int = 0

    def copy(self) -> "SimulatedStore":
        """Return an independent copy."""
        executions = {key: execution.copy() for key, execution in self.executions.items()}
        return replace(self, executions=executions, published=list(self.published))

    def newest(self, entity_id: str) -> StoredExecution | None:
        """Return the newest execution of an entity."""
        return next(
            (execution for execution in reversed(self.executions.values()) if execution.started.entity_id == entity_id),
            None,
        )

    def begin(self, started: events.Started, *, paused: bool = False) -> StoredExecution:
        """Add an execution."""
        execution = StoredExecution(started, self.clock, [started], [started], paused=paused)
        self.executions[started.execution_id] = execution
        return execution

    def put(self, execution: StoredExecution, event: events.Event) -> int:
        """Put an event into an inbox, and return its number there."""
        self.number += 1
        execution.inbox[self.number] = event
        return self.number

    def deliver(self, execution: StoredExecution, event: events.Event) -> None:
        """Deliver an event to an open execution: terminate it, pause or resume it, or put the event into its inbox."""
        if isinstance(event, events.WorkflowTerminated):
            at = max(self.clock, execution.full_log[-1].at)
            execution.append([msgspec.structs.replace(event, seq=execution.full_log[-1].seq + 1, at=at)])
            execution.status, execution.wake_at = Status.TERMINATED, None
        elif not isinstance(event, events.WorkflowPaused | events.WorkflowResumed):
            self.put(execution, event)
        elif execution.paused != isinstance(event, events.WorkflowPaused):
            execution.paused = not execution.paused
            self.put(execution, event)

    def settle(
        self, promise_id: str, event: events.Event, ending: StoredExecution | None = None
    ) -> StoredPromise | None:
        """Settle a promise unless it is settled; return its state before, None if there is no such promise.

        The commit that closes the execution *ending* may still settle its promises: the next attempt adopts them.
        """
        for execution in self.executions.values():
            promise = execution.promises.get(promise_id)
            if promise is not None:
                before = replace(
                    promise, settled=promise.settled or (execution.status.terminal and execution is not ending)
                )
                if not before.settled:
                    promise.settled = True
                    self.put(execution, settlement(event, promise_id))
                return before
        return None

    # Commits and their effects.

    def commit(self, execution: StoredExecution, outcome: Outcome) -> None:
        """Apply an outcome."""
        execution.append(outcome.events, outcome.forgotten)
        for number in outcome.consumed:
            execution.inbox.pop(number, None)
        execution.held &= execution.inbox.keys()
        execution.unread &= execution.inbox.keys()
        for request in outcome.activities:
            assert request.ref not in execution.requests, f"work {request.ref} ({request.name}) was requested twice"
            execution.requests[request.ref] = request
        execution.status, execution.wake_at = outcome.status, outcome.wake_at
        execution.answer = kept_answer(outcome) or execution.answer
        for withdrawal in outcome.withdrawals:
            started = withdrawal.never_started and execution.retries(withdrawal.ref)
            if withdrawal.entry is not None and not started and withdrawal.ref not in execution.withdrawn:
                execution.withdrawn.add(withdrawal.ref)
                self.put(execution, withdrawal.entry)
        self._apply_effects(execution, outcome)

    def _apply_effects(self, execution: StoredExecution, outcome: Outcome) -> None:
        for promise in outcome.promises:
            unread = {getattr(event, "promise_id", None) for event in execution.inbox.values()}
            settled = promise.promise_id in execution.promises and promise.promise_id in unread
            execution.promises[promise.promise_id] = StoredPromise(promise.name, settled)
        for promise_id in outcome.closed:
            execution.promises.setdefault(promise_id, StoredPromise("")).settled = True
        for request in outcome.children:
            # The id of an execution that goes on in a successor, begun below, stays taken.
            taken = outcome.successor is not None and request.started.entity_id == execution.started.entity_id
            for answer in self.start_child(request, taken=taken):
                self.put(execution, answer)
        for message in outcome.messages:
            entry = self.send(message, execution)
            if entry is not None:
                self.put(execution, entry)
        self.published += outcome.publications
        if outcome.successor is not None:
            self._succeed(execution, outcome.successor)

    def start_child(self, request: ChildRequest, *, taken: bool = False) -> list[events.Event]:
        """Start a child, unless it ran for this request before or its id is taken; return the answers for its parent."""
        started = request.started
        known = [one for one in self.executions.values() if one.started.entity_id == started.entity_id]
        ran = [one for one in known if ran_for(one.started, started)]
        same = ran[0].started if ran else None
        newest = known[-1].started if known else None
        closed = not taken and bool(known) and known[-1].status.terminal
        answer = answer_child(request, same, newest, closed=closed)
        if answer is None:
            return [child_started(request, self.begin(started).started)]
        return [answer, *(one.answer for one in ran[-1:] if one.answer is not None)]

    def send(self, message: Message, sender: StoredExecution | None = None) -> events.Event | None:
        """Send a message to another execution; return the entry for the sender."""
        if message.promise_id is not None:
            before = self.settle(message.promise_id, message.event, ending=sender)
            if before is None:
                return message.missing
            return message.ended if before.settled else message.delivered
        target = self.newest(message.entity_id)
        if target is None:
            return message.missing
        if target.status.terminal or not is_addressed(target.started, message):
            return message.ended
        self.deliver(target, message.event)
        return message.delivered

    def _succeed(self, execution: StoredExecution, succession: Succession) -> None:
        """Start the next execution with its own inbox and the unread messages of this one."""
        successor = self.begin(succession.started, paused=execution.paused)
        for event in succession.inbox:
            self.put(successor, event)
        for number in [key for key, event in execution.inbox.items() if event.type in succession.moves]:
            self.put(successor, execution.inbox.pop(number))
        if successor.started.run_id == execution.started.run_id:
            successor.promises, execution.promises = execution.promises, {}
