"""Simulate one workflow, or one flow, without a store, a worker and a clock; a chooser picks each step.

At every point one of several steps is possible: complete any open activity, deliver an inbox, settle a promise, send
the next message from outside, reach the next deadline. The *chooser* picks one. Every history that an engine could
write is the result of some sequence of choices. Children, further attempts and generations of the workflow are
simulated too.

`Simulation(..., log=prefix)` resumes any prefix of a history, as a worker does after a crash; `at=point` resumes any
point of a simulation that kept them, with everything that was durable then.
"""

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from resurgam.core import event as events
from resurgam.core.brain import LiveInstance
from resurgam.core.codec import codec_for
from resurgam.core.errors import ResurgamError
from resurgam.core.failure import capture
from resurgam.core.operation import Operation
from resurgam.core.outcome import Entry, Outcome, Publication
from resurgam.core.state import Status
from resurgam.flows.catalog import Catalog
from resurgam.runtime.definitions.definition import DEFAULT_QUEUE, Workflow
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.registry import Registry, default_registry
from resurgam.testing.attempt import activity_of, run_attempt
from resurgam.testing.clock import START
from resurgam.testing.crash_points import cut_outcome, depends_on_memory, is_impossible_cut
from resurgam.testing.loading import Loader
from resurgam.testing.rebuild import rebuild_store, unsent
from resurgam.testing.simulated_store import SimulatedStore, StoredExecution, Work

T = TypeVar("T")
Key = tuple[str, int, str, str]

_STEP_KINDS: dict[type[events.Event], str] = {
    events.ActivityCompleted: "activity",
    events.ActivityFailed: "activity",
    events.ActivityRetryScheduled: "activity",
    events.TimerFired: "deadline",
    events.ListenTimedOut: "deadline",
    events.SignalReceived: "message",
    events.CancelRequested: "message",
}

STEPS = 100_000
"""How many steps a simulation may take."""

_ANY = codec_for(Any)


class Chooser(Protocol):
    """Decide what happens next; `random.Random` is a chooser."""

    def choice(self, seq: Sequence[T], /) -> T:
        """Pick one."""
        ...


@dataclass(frozen=True, slots=True)
class Possibility:
    """A step that can happen next in the execution *of*.

    Complete an activity (with the command *ref*), deliver its inbox, settle a promise (of this *name*), begin a
    deferred execution, reach a deadline; or send a message from outside to the workflow.
    """

    kind: str
    ref: int
    happen: Callable[[], Coroutine[Any, Any, None]]
    of: str = ""
    name: str = ""

    @property
    def key(self) -> Key:
        """The identity of this step in another simulation of the same workflow."""
        return self.kind, self.ref, self.of, self.name


@dataclass(frozen=True, slots=True)
class Point:
    """The durable state right after an entry of an execution was recorded, and the number of choices made by then."""

    entry: events.Event
    execution_id: str
    store: SimulatedStore
    choices: int

    @property
    def log(self) -> list[events.Event]:
        """The log of the newest execution of the simulated workflow."""
        return _root(self.store).log


class Follower:
    """A chooser that follows the recorded history of a single execution."""

    def __init__(self, history: Sequence[events.Event]) -> None:
        self._history = history
        self.simulation: Simulation | None = None

    def choice(self, seq: Sequence[T], /) -> T:
        """Pick the step that led to the next recorded entry from outside."""
        assert self.simulation is not None
        last = self.simulation.log[-1].seq
        entry = next(e for e in self._history if e.seq > last and type(e) in _STEP_KINDS)
        kind = _STEP_KINDS[type(entry)]
        ref = entry.ref if kind == "activity" else 0
        return next(p for p in seq if isinstance(p, Possibility) and (p.kind, p.ref) == (kind, ref))


class Again:
    """A chooser that repeats the choices of another simulation, then always picks the first possibility."""

    def __init__(self, choices: Sequence[Key]) -> None:
        self._remaining = iter(choices)

    def choice(self, seq: Sequence[T], /) -> T:
        """Pick the recorded choice."""
        key = next(self._remaining, None)
        found = [p for p in seq if isinstance(p, Possibility) and p.key == key]
        assert found or key is None, f"{key} is not possible now; it was when it was chosen"
        return found[0] if found else seq[0]


class First:
    """A chooser that always picks the first possibility."""

    def choice(self, seq: Sequence[T], /) -> T:
        """Pick the first."""
        return seq[0]


class Stuck(ResurgamError):
    """No step is possible in a simulation, but the workflow has not ended."""


class Simulation:
    """A simulated workflow, with its children, attempts and generations.

    *mocks* replace the functions of activities by a value, an exception or a callable. *messages* are sent to the
    workflow in their order, at moments that the chooser picks; they cannot be repeated after a crash, so those that
    *log* already holds are skipped. *promises* are settled by name, with a value or an exception. Children run if
    *registry* has their workflows, and flows if *catalog* has their steps, by default those of *registry*.

    *log* is what a store would read, without the entries that a loop has forgotten; `as_of` returns an earlier state of
    it. With *keep*, `points` has a copy of the store after every entry of every execution.
    """

    def __init__(  # noqa: PLR0913 -- each is an option of its own with a default, and only given by name
        self,
        workflow: Workflow[..., Any] | events.Started,
        *args: object,
        log: Sequence[events.Event] = (),
        at: Point | None = None,
        keep: bool = False,
        chooser: Chooser | None = None,
        mocks: Mapping[str, object] | None = None,
        messages: Sequence[events.Event] = (),
        promises: Mapping[str, object] | None = None,
        registry: Registry = default_registry,
        catalog: Catalog | None = None,
    ) -> None:
        self.workflow = workflow
        self.choices: list[Key] = []
        self.points: list[Point] = []
        self.performed_by: list[tuple[str, int]] = []
        self._chooser = chooser or First()
        self._mocks, self._promises = dict(mocks or {}), {} if promises is None else promises
        self._messages = list(messages)
        self._registry = registry
        self._loader = Loader(workflow, registry, catalog)
        self._live: dict[str, LiveInstance] = {}
        self._keep = keep
        if at is not None:
            self.store = at.store.copy()
        else:
            # The arguments must fit only where there is no log yet.
            given = log or [start_event(workflow, args) if isinstance(workflow, Workflow) else workflow]
            self.store = rebuild_store(given)
            self._messages = unsent(self._messages, log)
        self._live_root  # noqa: B018 -- created now, so that tests can observe it from the start
        if isinstance(chooser, Follower):
            chooser.simulation = self

    # Results.

    @property
    def root(self) -> StoredExecution:
        """The newest execution of the workflow itself."""
        return _root(self.store)

    @property
    def log(self) -> list[events.Event]:
        """The log of the newest execution."""
        return self.root.log

    @property
    def full_log(self) -> list[events.Event]:
        """All entries that were ever in the log of the newest execution, forgotten ones included."""
        return list(self.root.full_log)

    @property
    def histories(self) -> dict[str, list[events.Event]]:
        """The full logs of all executions, in the order of their start."""
        return {key: list(execution.full_log) for key, execution in self.store.executions.items()}

    @property
    def status(self) -> Status:
        """The status of the newest execution."""
        return self.root.status

    @property
    def performed(self) -> list[int]:
        """The ``seq`` of the commands whose activities were run, in the newest execution."""
        return [ref for of, ref in self.performed_by if of == self.root.started.execution_id]

    @property
    def published(self) -> list[Publication]:
        """The published messages."""
        return self.store.published

    def as_of(self, seq: int) -> list[events.Event]:
        """Return the log of the newest execution as it was after the entry with this ``seq``."""
        return self.root.as_of(seq)

    def show(self) -> str:
        """Return the histories, a line for each entry."""
        return "\n\n".join(
            "\n".join(entry.to_json() for entry in execution.log) for execution in self.store.executions.values()
        )

    # Steps.

    async def run(self) -> list[events.Event]:
        """Run until the workflow and its children have ended, and return the history of its newest execution."""
        try:
            await self.begin()
            for _ in range(STEPS):
                if not await self.step():
                    return self.log
        finally:
            self.close()
        raise Stuck(f"{self._title} has not ended after {STEPS} steps")

    async def begin(self) -> None:
        """Resume every execution; one whose last commit was cut writes the rest of it."""
        if self._keep:
            self.points.append(Point(self.log[-1], self.root.started.execution_id, self.store.copy(), 0))
        if not any(execution.begun for execution in self.store.executions.values()):
            self.root.begun = True
        for execution in list(self.store.executions.values()):
            if (
                execution.begun
                and not execution.paused
                and not execution.status.terminal
                and execution.status is not Status.DIVERGED
            ):
                await self._advance(execution, resumed=sorted(execution.held | execution.unread))
        await self._record_late_results()

    async def step(self) -> bool:
        """Do one step; return whether one was possible."""
        for execution in self._runnable():
            operations = self._live_of(execution).take_operations()
            if operations:
                await self._advance(execution, [await self._operate(operation) for operation in operations])
                return True
        if self.status is Status.DIVERGED:
            return False
        possible = [*self._own_steps(), *self._outside_steps(), *self._timed_steps()]
        if not possible and not self.status.terminal:
            raise Stuck(f"{self._title} waits for something that cannot happen; its history:\n{self.show()}")
        if not possible:
            return False
        chosen = self._chooser.choice(possible)
        self.choices.append(chosen.key)
        await chosen.happen()
        return True

    def close(self) -> None:
        """Close the coroutines."""
        for live in self._live.values():
            live.close()

    # Possible steps.

    def _runnable(self) -> list[StoredExecution]:
        """Return the executions that a worker could claim."""
        return [
            execution
            for execution in self.store.executions.values()
            if not execution.status.terminal
            and execution.status is not Status.DIVERGED
            and not execution.paused
            and self._loader.knows(execution.started)
        ]

    def _working(self) -> list[StoredExecution]:
        """Return the executions whose activities a worker could claim: work may outlive a flow."""
        ended = (one for one in self.store.executions.values() if one.is_flow and one.status.terminal)
        return [*self._runnable(), *(one for one in ended if not one.is_complete)]

    def _own_steps(self) -> Iterator[Possibility]:
        """Yield inbox deliveries and activities."""
        for execution in self._runnable():
            of = execution.started.execution_id
            if not execution.begun or execution.inbox.keys() - execution.held:
                yield Possibility("inbox", 0, partial(self._advance, execution), of)
        for execution in self._working():
            for work in execution.open_work():
                if work.due <= self.store.clock:
                    of = execution.started.execution_id
                    yield Possibility("activity", work.ref, partial(self._perform, execution, work), of)

    def _outside_steps(self) -> Iterator[Possibility]:
        """Yield settlements, begins and messages from outside."""
        for execution in self._runnable():
            of = execution.started.execution_id
            for promise_id, promise in execution.promises.items():
                if not promise.settled and promise.name in self._promises:
                    settle = partial(self._settle, execution, promise_id, promise.name)
                    yield Possibility("promise", 0, settle, of, promise.name)
            if execution.begun and execution.started.deferred and execution.status is Status.SCHEDULED:
                yield Possibility("begin", 0, partial(self._deliver, execution, events.WorkflowBegun()), of)
        if len(self._messages) > self.store.sent and not self.status.terminal:
            yield Possibility("message", 0, self._send)

    def _timed_steps(self) -> list[Possibility]:
        """Return the steps that are due next: deadlines, and retries of activities."""
        moments: list[tuple[int, Possibility]] = []
        for execution in self._runnable():
            of = execution.started.execution_id
            if execution.wake_at is not None:
                moments.append((execution.wake_at, Possibility("deadline", 0, partial(self._wake, execution), of)))
        for execution in self._working():
            for work in execution.open_work():
                if work.due > self.store.clock:
                    of, happen = execution.started.execution_id, partial(self._perform, execution, work)
                    moments.append((work.due, Possibility("activity", work.ref, happen, of)))
        first = min((moment for moment, _ in moments), default=0)
        return [possibility for moment, possibility in moments if moment == first]

    # The steps themselves.

    async def _perform(self, execution: StoredExecution, work: Work) -> None:
        self.store.clock = max(self.store.clock, work.due)
        self.performed_by.append((execution.started.execution_id, work.ref))
        request, started = work.request, execution.started
        if request.starts is not None:
            begun = msgspec.structs.replace(request.starts, at=self.store.clock, attempt=work.attempt)
            execution.unread.add(self.store.put(execution, begun))
        activity, mock, work = activity_of(work, self._registry, self._mocks)
        answer = await run_attempt(activity, mock, work, self.store.clock, started.entity_id)
        if execution.status.terminal:
            self.store.put(execution, answer)
            await self._record_late_results()
        else:
            await self._advance(execution, [answer])

    async def _settle(self, execution: StoredExecution, promise_id: str, name: str) -> None:
        value, at = self._promises[name], self.store.clock
        settlement: events.Event
        if isinstance(value, BaseException):
            settlement = events.PromiseRejected(ref=0, at=at, failure=capture(value))
        else:
            settlement = events.PromiseResolved(ref=0, at=at, value=_ANY.encode(value, f"value of promise {name!r}"))
        self.store.settle(promise_id, settlement)
        await self._advance(execution)

    async def _deliver(self, execution: StoredExecution, event: events.Event) -> None:
        self.store.deliver(execution, msgspec.structs.replace(event, at=self.store.clock))
        if not execution.paused or isinstance(event, events.WorkflowPaused):
            await self._advance(execution)

    async def _send(self) -> None:
        self.store.sent += 1
        await self._deliver(self.root, self._messages[self.store.sent - 1])

    async def _wake(self, execution: StoredExecution) -> None:
        assert execution.wake_at is not None
        self.store.clock = max(self.store.clock, execution.wake_at)
        await self._advance(execution)

    async def _operate(self, operation: Operation) -> events.Event:
        try:
            value = operation.function(*operation.args)
            return operation.completed(await value if inspect.isawaitable(value) else value, self.store.clock)
        except Exception as error:  # noqa: BLE001 -- every exception of the operation is its answer
            return operation.failed(error, self.store.clock)

    async def _advance(
        self, execution: StoredExecution, results: Sequence[events.Event] = (), resumed: Sequence[int] | None = None
    ) -> None:
        """Advance an execution with the *results* of the worker and the new entries of its inbox, and commit.

        *resumed* are the entries to deliver instead of the new ones, after a crash.
        """
        new = [number for number in execution.inbox if number not in execution.held]
        numbers = new if resumed is None else resumed
        entries = [Entry(number, execution.inbox[number]) for number in numbers]
        # A worker delivers unread entries before its own results, and newer entries after them.
        ahead = next((index for index, number in enumerate(numbers) if number not in execution.unread), len(numbers))
        entries[ahead:ahead] = [Entry(None, event) for event in results]
        execution.begun, execution.clock = True, execution.clock if resumed is not None else self.store.clock
        live = self._live_of(execution)
        outcome = await self._outcome(execution, live, entries)
        known = [Entry(number, execution.inbox[number]) for number in sorted(execution.held.union(numbers))]
        held_before = [entry for entry in known if entry.id in execution.held]
        held_before += live.brought
        execution.held = {entry.id for entry in known if entry.id is not None and live.holds(entry)}
        execution.unread = set(numbers) - execution.held
        self._commit(execution, outcome, known, held_before)
        await self._record_late_results()

    async def _outcome(self, execution: StoredExecution, live: LiveInstance, entries: Sequence[Entry]) -> Outcome:
        outcome: Outcome = await run_outside_task(lambda: live.advance(entries, execution.clock))
        return outcome

    async def _record_late_results(self) -> None:
        """Record late results of closed executions, until their histories are complete."""
        for execution in list(self.store.executions.values()):
            while execution.status.terminal and not execution.is_complete:
                entries = [Entry(number, event) for number, event in execution.inbox.items()]
                late = self._loader.record_late(execution, entries, self.store.clock)
                self._commit(execution, late, entries)
                if execution.is_flow and not late.events:
                    break

    def _commit(
        self, execution: StoredExecution, outcome: Outcome, entries: Sequence[Entry], held: Sequence[Entry] = ()
    ) -> None:
        of = execution.started.execution_id
        # Work that is only in the worker's memory is repeated after a crash, possibly in another order.
        keep = self._keep and (execution.is_flow or not depends_on_memory(outcome, held))
        # What a result leads to in a flow is in one commit, and nothing else can be cut off from it.
        for number in range(1, len(outcome.events) if keep and not execution.is_flow else 0):
            part = cut_outcome(outcome, number, execution, entries)
            if is_impossible_cut(execution, outcome, part, entries, held):
                continue
            cut = self.store.copy()
            cut.executions[of].held |= {entry.id for entry in entries if entry.id is not None}
            cut.commit(cut.executions[of], part)
            self.points.append(Point(outcome.events[number - 1], of, cut, len(self.choices)))
        self.store.commit(execution, outcome)
        if keep and outcome.events:
            self.points.append(Point(outcome.events[-1], of, self.store.copy(), len(self.choices)))

    # The code of executions.

    @property
    def _title(self) -> str:
        return f"{self.root.started.kind} {self.root.started.name!r}"

    @property
    def _live_root(self) -> LiveInstance:
        return self._live_of(self.root)

    def _live_of(self, execution: StoredExecution) -> LiveInstance:
        of = execution.started.execution_id
        if of not in self._live:
            self._live[of] = self._loader.load(execution)
        return self._live[of]


def _root(store: SimulatedStore) -> StoredExecution:
    first = next(iter(store.executions.values()))
    newest = store.newest(first.started.entity_id)
    assert newest is not None
    return newest


def start_event(workflow: Workflow[..., Any], args: Sequence[object]) -> events.WorkflowStarted:
    """Return the first entry of a simulated history."""
    assert workflow.signature is not None
    return events.WorkflowStarted(
        seq=1,
        at=START,
        name=workflow.name,
        queue=workflow.queue or DEFAULT_QUEUE,
        entity_id="simulated",
        execution_id="execution-1",
        run_id="run-1",
        tree_id="run-1",
        matching=workflow.matching,
        python="simulated",
        input=workflow.signature.encode(args),
        retry=workflow.overrides.retry,
        timeout=workflow.overrides.timeout,
    )
