"""Runs one workflow against a world that a chooser decides: no store, no worker, no clock.

At every point the world can do one of several things: complete any open activity, tell an execution what waits for it,
settle a promise, send the next message from outside, let the next deadline come. The *chooser* picks. Every history that
an engine could write comes out of some sequence of choices. What the workflow begins lives in the same world: its
children, its next attempt, its next generation.

`Simulation(..., log=prefix)` goes on from any prefix of a history, as a worker does after a crash; `at=point` goes on from
any point of a simulation that kept them, with everything that was durable then.
"""

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from resurgam.core import event as events
from resurgam.core.codec import codec_for
from resurgam.core.errors import ResurgamError
from resurgam.core.failure import capture
from resurgam.core.operation import Operation
from resurgam.core.outcome import Entry, Outcome, Publication
from resurgam.core.state import Status
from resurgam.runtime.definitions.definition import DEFAULT_QUEUE, Workflow
from resurgam.runtime.execution import late_results
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.matching.dedup import known_as
from resurgam.runtime.registry import Registry, default_registry
from resurgam.testing.clock import START
from resurgam.testing.performing import attempt
from resurgam.testing.rebuilding import rebuild
from resurgam.testing.world import Life, World, is_remembered, is_torn, part_of

T = TypeVar("T")
Key = tuple[str, int, str, str]

_LED_TO: dict[type[events.Event], str] = {
    events.ActivityCompleted: "activity",
    events.ActivityFailed: "activity",
    events.ActivityRetryScheduled: "activity",
    events.TimerFired: "deadline",
    events.ListenTimedOut: "deadline",
    events.SignalReceived: "message",
    events.CancelRequested: "message",
}

STEPS = 100_000
"""Choices after which a simulation that has not ended is given up."""

_ANY = codec_for(Any)
_MESSAGES = events.SignalReceived | events.UpdateAccepted | events.UpdateRejected


class Chooser(Protocol):
    """Decides what happens next; `random.Random` is one."""

    def choice(self, seq: Sequence[T], /) -> T:
        """Pick one."""
        ...


@dataclass(frozen=True, slots=True)
class Possibility:
    """Something that the world can do next.

    End an activity (*ref* says which), tell what waits in the inbox, settle a promise (of this *name*), begin what was
    put off, reach a deadline; each of the execution *of*. Or send it a message from outside.
    """

    kind: str
    ref: int
    happen: Callable[[], Coroutine[Any, Any, None]]
    of: str = ""
    name: str = ""

    @property
    def key(self) -> Key:
        """What it is known by in another simulation of the same world."""
        return self.kind, self.ref, self.of, self.name


@dataclass(frozen=True, slots=True)
class Point:
    """What was durable right after an entry of an execution was recorded, and how many choices had been made by then."""

    entry: events.Event
    execution_id: str
    world: World
    choices: int

    @property
    def log(self) -> list[events.Event]:
        """The log of the newest execution of the simulated workflow."""
        return _root(self.world).log


class Follower:
    """The chooser that does what a recorded history of a single execution says came next."""

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


class Again:
    """The chooser that makes the choices of another simulation once more; where they are at an end, the first."""

    def __init__(self, choices: Sequence[Key]) -> None:
        self._left = iter(choices)

    def choice(self, seq: Sequence[T], /) -> T:
        """Pick what was picked then."""
        key = next(self._left, None)
        found = [p for p in seq if isinstance(p, Possibility) and p.key == key]
        assert found or key is None, f"{key} cannot happen now; it could when it was chosen"
        return found[0] if found else seq[0]


class First:
    """The chooser that always takes the first possibility."""

    def choice(self, seq: Sequence[T], /) -> T:
        """Pick the first."""
        return seq[0]


class Stuck(ResurgamError):
    """Nothing in the simulated world can go on, but the workflow has not ended."""


class Simulation:
    """A workflow, and all that it begins, in a simulated world.

    *mocks* says what activities do instead of their own function: a value, an exception, or a callable. *messages*
    are sent to the workflow in their order, at moments that the chooser picks; unlike the rest they cannot be repeated
    after a crash, so those that *log* holds already are left out. *promises* are settled by their names, with a value or
    an exception, whoever made them. Children run if *registry* knows their workflows.

    *log* is what a store would read: entries that a loop has forgotten are not in it. `as_of` says what it was before.
    With *keep*, `points` holds the world as it was after every entry of every execution.
    """

    def __init__(  # noqa: PLR0913 -- each is an option of its own with a default, and only given by name
        self,
        workflow: Workflow[..., Any],
        *args: object,
        log: Sequence[events.Event] = (),
        at: Point | None = None,
        keep: bool = False,
        chooser: Chooser | None = None,
        mocks: Mapping[str, object] | None = None,
        messages: Sequence[events.Event] = (),
        promises: Mapping[str, object] | None = None,
        registry: Registry = default_registry,
    ) -> None:
        self.workflow = workflow
        self.choices: list[Key] = []
        self.points: list[Point] = []
        self.performed_by: list[tuple[str, int]] = []
        self._chooser = chooser or First()
        self._mocks, self._promises = dict(mocks or {}), {} if promises is None else promises
        self._messages = list(messages)
        self._registry = registry
        self._executions: dict[str, Execution] = {}
        self._keep = keep
        if at is not None:
            self.world = at.world.copy()
        else:
            self.world = rebuild(log or [start_event(workflow, args)])
            self._messages = _unsent(self._messages, log)
        self._execution  # noqa: B018 -- it is made now, so that it can be watched from the beginning
        if isinstance(chooser, Follower):
            chooser.simulation = self

    # What has come of it.

    @property
    def root(self) -> Life:
        """The newest execution of the workflow itself."""
        return _root(self.world)

    @property
    def log(self) -> list[events.Event]:
        """The log of the newest execution."""
        return self.root.log

    @property
    def ever(self) -> list[events.Event]:
        """All that was ever in the log of the newest execution, what is forgotten by now included."""
        return list(self.root.ever)

    @property
    def histories(self) -> dict[str, list[events.Event]]:
        """All that was ever in the logs of all executions, in the order in which they began."""
        return {key: list(life.ever) for key, life in self.world.lives.items()}

    @property
    def status(self) -> Status:
        """Where the newest execution stands."""
        return self.root.status

    @property
    def performed(self) -> list[int]:
        """The activities of the newest execution that were run, by their commands."""
        return [ref for of, ref in self.performed_by if of == self.root.started.execution_id]

    @property
    def published(self) -> list[Publication]:
        """What was said on topics."""
        return self.world.published

    def as_of(self, seq: int) -> list[events.Event]:
        """Return what the log of the newest execution was after the entry with this ``seq``."""
        return self.root.as_of(seq)

    def show(self) -> str:
        """Return the histories, a line for each entry."""
        return "\n\n".join("\n".join(entry.to_json() for entry in life.log) for life in self.world.lives.values())

    # Going on.

    async def run(self) -> list[events.Event]:
        """Go on until the workflow and all that it began has ended, and return the history of its newest execution."""
        try:
            await self.begin()
            for _ in range(STEPS):
                if not await self.step():
                    return self.log
        finally:
            self.close()
        raise Stuck(f"workflow {self.workflow.name!r} has not ended after {STEPS} steps")

    async def begin(self) -> None:
        """Bring every execution to where it was: one whose last commit was cut short writes the rest of it."""
        if self._keep:
            self.points.append(Point(self.log[-1], self.root.started.execution_id, self.world.copy(), 0))
        if not any(life.begun for life in self.world.lives.values()):
            self.root.begun = True
        for life in list(self.world.lives.values()):
            if life.begun and not life.paused and not life.status.terminal and life.status is not Status.DIVERGED:
                await self._advance(life, told=sorted(life.told | life.left))
        await self._conclude()

    async def step(self) -> bool:
        """Let the world do one thing; whether there was anything to be done."""
        for life in self._able():
            operations = self._execution_of(life).take_operations()
            if operations:
                await self._advance(life, [await self._operate(operation) for operation in operations])
                return True
        if self.status is Status.DIVERGED:
            return False
        possible = [*self._inside(), *self._outside(), *self._later()]
        if not possible and not self.status.terminal:
            raise Stuck(f"workflow {self.workflow.name!r} waits for what never comes; its history:\n{self.show()}")
        if not possible:
            return False
        chosen = self._chooser.choice(possible)
        self.choices.append(chosen.key)
        await chosen.happen()
        return True

    def close(self) -> None:
        """Put the coroutines away."""
        for execution in self._executions.values():
            execution.close()

    # What can happen.

    def _able(self) -> list[Life]:
        """Return the executions that a worker would take up."""
        return [
            life
            for life in self.world.lives.values()
            if not life.status.terminal and life.status is not Status.DIVERGED and not life.paused and self._knows(life)
        ]

    def _inside(self) -> Iterator[Possibility]:
        """Return what may go on by itself."""
        for life in self._able():
            of = life.started.execution_id
            if not life.begun or life.inbox.keys() - life.told:
                yield Possibility("inbox", 0, partial(self._advance, life), of)
            for command in life.open_activities():
                if all(retry.next_at <= self.world.clock for retry in life.retries(command.seq)):
                    yield Possibility("activity", command.seq, partial(self._perform, life, command), of)

    def _outside(self) -> Iterator[Possibility]:
        """Return what people may do."""
        for life in self._able():
            of = life.started.execution_id
            for promise_id, promise in life.promises.items():
                if not promise.settled and promise.name in self._promises:
                    settle = partial(self._settle, life, promise_id, promise.name)
                    yield Possibility("promise", 0, settle, of, promise.name)
            if life.begun and life.started.deferred and life.status is Status.SCHEDULED:
                yield Possibility("begin", 0, partial(self._tell, life, events.WorkflowBegun()), of)
        if len(self._messages) > self.world.sent and not self.status.terminal:
            yield Possibility("message", 0, self._send)

    def _later(self) -> list[Possibility]:
        """Return what comes next with time: deadlines, and further attempts at activities."""
        moments: list[tuple[int, Possibility]] = []
        for life in self._able():
            of = life.started.execution_id
            if life.wake_at is not None:
                moments.append((life.wake_at, Possibility("deadline", 0, partial(self._wake, life), of)))
            for command in life.open_activities():
                retries = life.retries(command.seq)
                if retries and retries[-1].next_at > self.world.clock:
                    happen = partial(self._perform, life, command)
                    moments.append((retries[-1].next_at, Possibility("activity", command.seq, happen, of)))
        first = min((moment for moment, _ in moments), default=0)
        return [possibility for moment, possibility in moments if moment == first]

    # What happens.

    async def _perform(self, life: Life, command: events.ActivityScheduled) -> None:
        retries = life.retries(command.seq)
        self.world.clock = max([self.world.clock, *(retry.next_at for retry in retries)])
        self.performed_by.append((life.started.execution_id, command.seq))
        activity = self._registry.activities.find(command.name)
        mock = self._mocks.get(activity.name, activity.function)
        asked = life.requests.get(command.seq)
        rule = (asked.retry if asked is not None else None) or activity.rule
        await self._advance(life, [await attempt(activity, mock, command, rule, len(retries) + 1, self.world.clock)])

    async def _settle(self, life: Life, promise_id: str, name: str) -> None:
        given, at = self._promises[name], self.world.clock
        settled: events.Event
        if isinstance(given, BaseException):
            settled = events.PromiseRejected(ref=0, at=at, failure=capture(given))
        else:
            settled = events.PromiseResolved(ref=0, at=at, value=_ANY.encode(given, f"value of promise {name!r}"))
        self.world.settle(promise_id, settled)
        await self._advance(life)

    async def _tell(self, life: Life, event: events.Event) -> None:
        self.world.tell(life, msgspec.structs.replace(event, at=self.world.clock))
        if not life.paused or isinstance(event, events.WorkflowPaused):
            await self._advance(life)

    async def _send(self) -> None:
        self.world.sent += 1
        await self._tell(self.root, self._messages[self.world.sent - 1])

    async def _wake(self, life: Life) -> None:
        assert life.wake_at is not None
        self.world.clock = max(self.world.clock, life.wake_at)
        await self._advance(life)

    async def _operate(self, operation: Operation) -> events.Event:
        try:
            value = operation.function(*operation.args)
            return operation.completed(await value if inspect.isawaitable(value) else value, self.world.clock)
        except Exception as error:  # noqa: BLE001 -- whatever the operation raises is its answer
            return operation.failed(error, self.world.clock)

    async def _advance(
        self, life: Life, brought: Sequence[events.Event] = (), told: Sequence[int] | None = None
    ) -> None:
        """Tell an execution what was *brought* and what of its inbox it does not know, and commit what comes of it."""
        numbers = [number for number in life.inbox if number not in life.told] if told is None else told
        entries = [Entry(number, life.inbox[number]) for number in numbers]
        # A worker keeps what was not looked at in front of what it brings itself; the rest has come since.
        ahead = next((place for place, number in enumerate(numbers) if number not in life.left), len(numbers))
        entries[ahead:ahead] = [Entry(None, event) for event in brought]
        life.begun, life.clock = True, life.clock if told is not None else self.world.clock
        execution = self._execution_of(life)
        outcome = await self._outcome(life, execution, entries)
        known = [Entry(number, life.inbox[number]) for number in sorted(life.told.union(numbers))]
        held = [entry for entry in known if entry.id in life.told]
        held += execution.brought
        life.told = {entry.id for entry in known if entry.id is not None and execution.holds(entry)}
        life.left = set(numbers) - life.told
        self._commit(life, outcome, known, held)
        await self._conclude()

    async def _outcome(self, life: Life, execution: Execution, entries: Sequence[Entry]) -> Outcome:
        outcome: Outcome = await run_outside_task(lambda: execution.advance(entries, life.clock))
        return outcome

    async def _conclude(self) -> None:
        """Record what came too late for executions that have ended, until their histories are complete."""
        for life in list(self.world.lives.values()):
            while life.status.terminal and not life.is_complete:
                entries = [Entry(number, event) for number, event in life.inbox.items()]
                self._commit(life, late_results.record(life.log, entries, self.world.clock), entries)

    def _commit(self, life: Life, outcome: Outcome, entries: Sequence[Entry], held: Sequence[Entry] = ()) -> None:
        of = life.started.execution_id
        # What only the worker's memory has is done anew after a crash, and may then come in another order.
        keep = self._keep and not is_remembered(outcome, held)
        for number in range(1, len(outcome.events) if keep else 0):
            part = part_of(outcome, number, life, entries)
            if is_torn(life, outcome, part, entries, held):
                continue
            cut = self.world.copy()
            cut.lives[of].told |= {entry.id for entry in entries if entry.id is not None}
            cut.commit(cut.lives[of], part)
            self.points.append(Point(outcome.events[number - 1], of, cut, len(self.choices)))
        self.world.commit(life, outcome)
        if keep and outcome.events:
            self.points.append(Point(outcome.events[-1], of, self.world.copy(), len(self.choices)))

    # Code.

    @property
    def _execution(self) -> Execution:
        return self._execution_of(self.root)

    def _execution_of(self, life: Life) -> Execution:
        of = life.started.execution_id
        if of not in self._executions:
            self._executions[of] = Execution(self._code(life), life.log)
        return self._executions[of]

    def _knows(self, life: Life) -> bool:
        return life.started.name == self.workflow.name or life.started.name in self._registry.workflows

    def _code(self, life: Life) -> Workflow[..., Any]:
        own = life.started.name == self.workflow.name
        return self.workflow if own else self._registry.workflows.find(life.started.name)


def _root(world: World) -> Life:
    first = next(iter(world.lives.values()))
    newest = world.newest(first.started.entity_id)
    assert newest is not None
    return newest


def _unsent(messages: Sequence[events.Event], log: Sequence[events.Event]) -> list[events.Event]:
    """Return the messages that a history has not received, those included that it has forgotten."""
    heard = {known_as(entry) for entry in log if isinstance(entry, _MESSAGES)}
    heard.update(known for entry in log if isinstance(entry, events.Checkpoint) for known in entry.signals)
    others = sum(isinstance(entry, events.CancelRequested) and entry.timeout is None for entry in log)
    left = []
    for message in messages:
        if isinstance(message, events.CancelRequested) and others:
            others -= 1
        elif not isinstance(message, _MESSAGES) or known_as(message) not in heard:
            left.append(message)
    return left


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
