"""Run flows by the rules alone: results arrive in an order that a seed decides, and no time passes but on request.

After every entry the law of the log is checked: folding what is written of it by then gives the live state.
`FlowRun.check_crashes` checks the other one: from every point of the log the flow goes on as it did. The fixtures of the
tests of flows call it for every run.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import Raw

from resurgam.core import flow_event as fe
from resurgam.core.entry import Event, Failure, encode_event
from resurgam.core.event import decode_event
from resurgam.flows import model as m
from resurgam.flows.catalog import Catalog
from resurgam.flows.decide import decide, is_at_rest, wake_at
from resurgam.flows.errors import ExpressionFailed
from resurgam.flows.judge import Judge
from resurgam.flows.planner import plan
from resurgam.flows.state import FlowInput, FlowState, FlowStatus, WorkStatus
from resurgam.flows.wiring import encode_plan

Handler = Callable[[dict[str, Any]], Any]


class NotNow(Exception):
    """Raised by a handler: the attempt did not lead to a result."""


class Equality:
    """A judge for tests: an expression is a value as JSON, or ``!``, which fails; a mapping names a field."""

    def check(self, expression: m.Expression, parameters: Sequence[str]) -> None:
        self._value(expression)

    def matches(self, expression: m.Expression, value: object) -> bool:
        return bool(value == self._value(expression))

    def holds(self, expression: m.Expression, inputs: Mapping[str, object], parameters: Sequence[str]) -> bool:
        return bool(self._value(expression))

    def map_input(self, expression: m.Expression, value: Any) -> object:
        return value[self._value(expression)]

    def map_output(self, expression: m.Expression, result: Mapping[str, object]) -> object:
        return result[self._value(expression)]

    def _value(self, expression: m.Expression) -> Any:
        if expression.script == "!":
            raise ExpressionFailed("the expression is wrong")
        return msgspec.json.decode(expression.script)


class FlowRun:
    """One flow, from its start to its end."""

    usual_seed: ClassVar[int] = 0
    made: ClassVar[list["FlowRun"]] = []
    """The runs of the current test."""

    def __init__(
        self,
        steps: Sequence[m.Step],
        goals: Sequence[str],
        init: Mapping[str, Sequence[object]] = {},
        handlers: Mapping[str, Handler] = {},
        *,
        seed: int | None = None,
        retries: int = 3,
    ) -> None:
        self.judge = Equality()
        self.now = 1000
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.log: list[Event] = []
        self._handlers = handlers
        self._chance = random.Random(self.usual_seed if seed is None else seed)
        self._taken: list[tuple[Event | None, int, int]] = []
        """What has happened, when, and the length of the log afterwards."""
        self._retries = retries
        first = started(steps, goals, init, self.judge, at=self.now)
        self.log.append(first)
        self.state = FlowState([first])
        self._seen = watch(self.state)
        self._folded = FlowState([first])
        self.made.append(self)
        self.take(None)

    def take(self, event: Event | None) -> None:
        """Let something happen, and check that the log tells all of it."""
        entries = decide(self.state, event, self.judge, self.now)
        self.log += entries
        for entry, seen in zip(entries, self._seen, strict=True):
            self._folded.apply(decode_event(encode_event(entry)))
            assert described(self._folded) == seen
        self._seen.clear()
        assert described(self._folded) == described(self.state)
        assert self.state.deactivated or is_at_rest(self.state, self.judge, self.now)
        self._taken.append((event, self.now, len(self.log)))

    def check_crashes(self) -> None:
        """Crash after every commit, go on from the log, and let the same happen: the rest of the log is the same."""
        for number, (_, _, length) in enumerate(self._taken):
            state, last = FlowState(self.log[:length]), length
            for event, now, until in self._taken[number + 1 :]:
                assert [*decide(state, event, self.judge, now)] == self.log[last:until]
                last = until
            assert described(state) == described(self.state)

    def run(self) -> "FlowRun":
        """Complete what is outstanding, in the order of the seed, until the flow is deactivated or waits for time."""
        while self.step():
            pass
        return self

    def step(self) -> bool:
        """Let one outstanding item come to a result; return whether there was one."""
        waiting = list(self.state.outstanding)
        if not waiting:
            return False
        self.finish(self._chance.choice(waiting))
        return True

    def finish(self, ref: int) -> None:
        """Run the handler of an item, or of its compensation, and take its result."""
        item = self.state.item_of(ref)
        assert item is not None
        if item.status is WorkStatus.COMPENSATING:
            self._compensate(ref, item.step)
            return
        self.take(fe.WorkStarted(item=ref, step=item.step, attempt=item.attempts + 1))
        step = self.state.steps[item.step]
        arguments = {**msgspec.json.decode(step.inputs), **msgspec.json.decode(item.changes)}
        self.calls.append((item.step, arguments))
        try:
            result = self._handlers.get(item.step, lambda _: {})(arguments)
        except NotNow as error:
            self.take(fe.WorkNotCompleted(ref=ref, step=item.step, failure=failure(error)))
            if item.status is WorkStatus.NOT_COMPLETED and self.state.status is FlowStatus.ACTIVE:
                self._retry(ref, item.step, item.retry_count, error)
        except Exception as error:
            self.take(fe.WorkFailed(ref=ref, step=item.step, failure=failure(error)))
        else:
            self.take(fe.WorkSucceeded(ref=ref, step=item.step, outputs=Raw(msgspec.json.encode(result))))

    def _retry(self, ref: int, step: str, count: int, error: Exception) -> None:
        if count < self._retries:
            self.take(fe.RetryScheduled(item=ref, step=step, retry_count=count + 1, next_retry_at=self.now + 1))
        else:
            self.take(fe.WorkFailed(ref=ref, step=step, failure=failure(error)))

    def _compensate(self, ref: int, step: str) -> None:
        self.calls.append((f"undo {step}", {}))
        self.take(fe.CompSucceeded(ref=ref, step=step))

    def pass_time(self) -> None:
        """Move on to the next deadline."""
        moment = wake_at(self.state, self.judge, self.now)
        assert moment is not None
        self.now = moment
        self.take(None)

    @property
    def result(self) -> Any:
        return msgspec.json.decode(self.state.result)

    @property
    def statuses(self) -> dict[str, str]:
        return {step_id: str(step.status) for step_id, step in self.state.steps.items()}


def started(
    steps: Sequence[m.Step],
    goals: Sequence[str],
    init: Mapping[str, Sequence[object]],
    judge: Judge,
    *,
    at: int = 1000,
    metadata: Mapping[str, object] = {},
) -> fe.FlowStarted:
    """Return the first entry of a flow."""
    made = plan(Catalog(steps), goals, init, "strict", judge.matches)
    given = {name: tuple(Raw(msgspec.json.encode(one)) for one in values) for name, values in init.items()}
    about = {key: Raw(msgspec.json.encode(value)) for key, value in metadata.items()}
    return fe.FlowStarted(
        seq=1,
        at=at,
        name=",".join(goals),
        queue="default",
        entity_id="flow",
        execution_id="execution",
        run_id="run",
        tree_id="run",
        input=Raw(msgspec.json.encode(FlowInput(encode_plan(made), given, about))),
    )


def failure(error: Exception) -> Failure:
    return Failure(type=type(error).__name__, message=str(error))


def watch(state: FlowState) -> list[bytes]:
    """Return a list that gets everything that a state says, after each entry that is applied to it."""
    seen: list[bytes] = []
    apply = state.apply

    def applied(entry: Event) -> None:
        apply(entry)
        seen.append(described(state))

    state.apply = applied  # type: ignore[method-assign]  # what only tests look at, the code need not provide
    return seen


def described(state: FlowState) -> bytes:
    """Return everything that a state says; what it has touched is a note of `decide` for itself."""
    said = {name: one for name, one in vars(state).items() if name not in ("apply", "touched", "fresh", "wiring")}
    return msgspec.json.encode(said | {"plan": state.plan}, enc_hook=repr)
