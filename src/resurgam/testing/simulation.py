"""Runs one workflow against a world that a chooser decides: no store, no worker, no clock.

At every point the world can do one of several things: complete any open activity, let the next deadline come, send the
next message from outside. The *chooser* picks. Every history that an engine could write comes out of some sequence of
choices, and `Simulation(..., log=prefix)` goes on from any prefix of one, as a worker does after a crash.
"""

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

import msgspec

from resurgam.core import event as events
from resurgam.core.errors import ResurgamError
from resurgam.core.failure import capture
from resurgam.core.outcome import Entry, Outcome
from resurgam.core.state import InstanceState, Status
from resurgam.runtime.callback import outside_tasks
from resurgam.runtime.definition import Activity, Workflow
from resurgam.runtime.execution import Execution
from resurgam.runtime.log import conclude
from resurgam.runtime.operation import Operation
from resurgam.runtime.registry import Registry, default_registry
from resurgam.testing.clock import START

T = TypeVar("T")

_LED_TO: dict[type[events.Event], str] = {
    events.ActivityCompleted: "activity",
    events.ActivityFailed: "activity",
    events.TimerFired: "deadline",
    events.ListenTimedOut: "deadline",
    events.SignalReceived: "message",
    events.CancelRequested: "message",
}

STEPS = 100_000
"""Choices after which a simulation that has not ended is given up."""


class Chooser(Protocol):
    """Decides what happens next; `random.Random` is one."""

    def choice(self, seq: Sequence[T], /) -> T:
        """Pick one."""
        ...


@dataclass(frozen=True, slots=True)
class Possibility:
    """Something that the world can do next: end an activity (*ref* says which), reach a deadline, send a message."""

    kind: str
    ref: int
    happen: Callable[[], Coroutine[Any, Any, list[events.Event]]]


class Follower:
    """The chooser that does what a recorded history says came next."""

    def __init__(self, history: Sequence[events.Event]) -> None:
        self._history = history
        self.simulation: Simulation | None = None

    def choice(self, seq: Sequence[T], /) -> T:
        """Pick what led to the first entry from outside beyond the end of the simulation's own log."""
        assert self.simulation is not None
        last = self.simulation.log[-1].seq
        entry = next(e for e in self._history if e.seq > last and type(e) in _LED_TO)
        kind = _LED_TO[type(entry)]
        ref = entry.ref if kind == "activity" else 0
        return next(p for p in seq if isinstance(p, Possibility) and (p.kind, p.ref) == (kind, ref))


class First:
    """The chooser that always takes the first possibility."""

    def choice(self, seq: Sequence[T], /) -> T:
        """Pick the first."""
        return seq[0]


class Stuck(ResurgamError):
    """Nothing in the simulated world can go on, but the workflow has not ended."""


class Simulation:
    """One execution in a simulated world.

    *mocks* says what activities do instead of their own function: a value, an exception, or a callable. *messages*
    are sent in their order, at moments that the chooser picks; unlike the rest they cannot be repeated after a crash,
    so those that *log* holds already are left out.

    *log* is what a store would read: entries that a loop has forgotten are not in it. `as_of` says what it was before.
    """

    def __init__(
        self,
        workflow: Workflow[..., Any],
        *args: object,
        log: Sequence[events.Event] = (),
        chooser: Chooser | None = None,
        mocks: Mapping[str, object] | None = None,
        messages: Sequence[events.Event] = (),
        registry: Registry = default_registry,
    ) -> None:
        self.workflow = workflow
        self.log: list[events.Event] = list(log) or [start_event(workflow, args)]
        self.performed: list[int] = []
        self._chooser = chooser or First()
        self._mocks = dict(mocks or {})
        self._registry = registry
        self._messages = list(messages)[_heard(self.log) :]
        # All that was ever in the log, and for what was forgotten, the checkpoint by which it was.
        self._ever = list(self.log)
        self._forgotten_by: dict[int, int] = {}
        self._forgotten = InstanceState(self.log).forgotten
        self._clock = self.log[-1].at
        self._execution = Execution(workflow, self.log)
        self._wake_at: int | None = None
        self.status = Status.RUNNING
        if isinstance(chooser, Follower):
            chooser.simulation = self

    async def run(self) -> list[events.Event]:
        """Go on until the workflow has ended, and return its history."""
        try:
            await self._advance([])
            for _ in range(STEPS):
                if self.status is not Status.RUNNING:
                    return self.log
                await self.step()
        finally:
            self.close()
        raise Stuck(f"workflow {self.workflow.name!r} has not ended after {STEPS} steps")

    async def step(self) -> None:
        """Let the world do one thing."""
        operations = self._execution.take_operations()
        if operations:
            await self._advance([await self._operate(operation) for operation in operations])
            return
        possible = [Possibility("activity", c.seq, partial(self._perform, c)) for c in self._open_activities()]

        if self._messages:
            possible.append(Possibility("message", 0, self._send))
        if self._wake_at is not None:
            possible.append(Possibility("deadline", 0, self._wake))
        if not possible:
            raise Stuck(f"workflow {self.workflow.name!r} waits for what never comes; its history:\n{self.show()}")
        await self._advance(await self._chooser.choice(possible).happen())

    def close(self) -> None:
        """Put the coroutine away."""
        self._execution.close()

    def as_of(self, seq: int) -> list[events.Event]:
        """Return what the log was after the entry with this ``seq``."""
        until = [entry for entry in self._ever if entry.seq <= seq]
        return [entry for entry in until if self._forgotten_by.get(entry.seq, seq + 1) > seq]

    @property
    def ever(self) -> list[events.Event]:
        """All that was ever in the log, what is forgotten by now included."""
        return list(self._ever)

    def show(self) -> str:
        """Return the history, a line for each entry."""
        return "\n".join(entry.to_json() for entry in self.log)

    async def _advance(self, inbox: list[events.Event]) -> None:
        entries = [Entry(None, entry) for entry in inbox]
        outcome: Outcome = await outside_tasks(lambda: self._execution.advance(entries, self._clock))
        self._append(outcome)
        unbegun = [Entry(None, gone.entry) for gone in outcome.withdrawals if gone.entry is not None]
        if unbegun:
            self._append(conclude(self.log, unbegun, self._clock))
        self.status = outcome.status
        self._wake_at = outcome.wake_at

    def _append(self, outcome: Outcome) -> None:
        gone = iter(outcome.forgotten)
        for entry in outcome.events:
            self._ever.append(entry)
            if isinstance(entry, events.LoopCheckpointed) or (isinstance(entry, events.LoopCompleted) and entry.whole):
                lost = islice(gone, entry.forgotten - self._forgotten)
                self._forgotten_by.update((forgotten.seq, entry.seq) for forgotten in lost)
                self._forgotten = entry.forgotten
        self.log = self.as_of(self._ever[-1].seq)

    def _open_activities(self) -> list[events.ActivityScheduled]:
        answered = {entry.ref for entry in self.log if not isinstance(entry, events.ActivityRetryScheduled)}
        scheduled = [entry for entry in self.log if isinstance(entry, events.ActivityScheduled)]
        return [command for command in scheduled if command.seq not in answered]

    async def _perform(self, command: events.ActivityScheduled) -> list[events.Event]:
        self.performed.append(command.seq)
        activity = self._registry.activities.find(command.name)
        try:
            result = activity.result.check(await self._answer(activity, command), f"result of {command.name!r}")
        except Exception as error:  # noqa: BLE001 -- whatever the activity raises is its answer
            return [events.ActivityFailed(ref=command.seq, at=self._clock, failure=capture(error))]
        return [events.ActivityCompleted(ref=command.seq, at=self._clock, result=result)]

    async def _answer(self, activity: Activity[..., Any], command: events.ActivityScheduled) -> object:
        mock = self._mocks.get(activity.name, activity.function)
        if isinstance(mock, BaseException):
            raise mock
        if not callable(mock):
            return mock
        assert activity.signature is not None
        args, kwargs = activity.signature.decode(command.input)
        result = mock(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    async def _wake(self) -> list[events.Event]:
        assert self._wake_at is not None
        self._clock = max(self._clock, self._wake_at)
        return []

    async def _send(self) -> list[events.Event]:
        return [msgspec.structs.replace(self._messages.pop(0), at=self._clock)]

    async def _operate(self, operation: Operation) -> events.Event:
        try:
            value = operation.function(*operation.args)
            return operation.completed(await value if inspect.isawaitable(value) else value, self._clock)
        except Exception as error:  # noqa: BLE001 -- whatever the operation raises is its answer
            return operation.failed(error, self._clock)


def _heard(log: Sequence[events.Event]) -> int:
    """Return how many messages a history has received, those included that are forgotten."""
    forgotten = next((e.signals for e in reversed(log) if isinstance(e, events.Checkpoint) and e.signals), ())
    return len(forgotten) + sum(isinstance(e, events.SignalReceived | events.CancelRequested) for e in log)


def start_event(workflow: Workflow[..., Any], args: Sequence[object]) -> events.WorkflowStarted:
    """Return the first entry of a simulated history."""
    assert workflow.signature is not None
    return events.WorkflowStarted(
        seq=1,
        at=START,
        name=workflow.name,
        queue=workflow.queue,
        entity_id="simulated",
        execution_id="execution-1",
        run_id="run-1",
        tree_id="run-1",
        matching=workflow.options.matching if workflow.options else None,
        python="simulated",
        input=workflow.signature.encode(args),
    )
