"""The schemas of accepted signals are part of a commit only when they have changed."""

from typing import Any

import pytest
from msgspec import Raw

from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.outcome import Entry
from resurgam.core.schema import schema_of
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.execution.execution import Execution

INT, STR = schema_of(int), schema_of(str)


@pytest.fixture
def begin():
    made: list[Execution] = []

    def begin(workflow: Any, accepts: dict[str, Raw] | None = None, log: tuple[events.Event, ...] = ()) -> Execution:
        ids = dict.fromkeys(("tree_id", "entity_id", "execution_id", "run_id"), "r")
        fields: Any = {"seq": 1, "at": 1, "name": workflow.name, "queue": "default", "python": "3.11", **ids}
        started = events.WorkflowStarted(**fields, input=Raw(b"[]"))
        made.append(Execution(workflow, log or (started,), Settings(signal_schemas=accepts or {})))
        return made[-1]

    yield begin
    for execution in made:
        execution.close()


def signal(name: str, value: bytes) -> Entry:
    return Entry(None, events.SignalReceived(at=1, name=name, id=f"{name}{value!r}", value=Raw(value)))


@pytest.fixture
def steps():
    registry = Registry()

    @registry.workflow
    async def steps(ctx: Context) -> None:
        await ctx.listen("a", type=int)
        await ctx.listen("a", "b", type=int)
        await ctx.listen("a", type=str)
        await ctx.listen("b")
        await ctx.listen("c", type=bool)

    return steps


def test_schemas_are_reported_only_when_they_change(begin, steps) -> None:
    execution = begin(steps)
    said = [execution.advance([], 1).signal_schemas]
    for entry in (signal("x", b"1"), signal("a", b"1"), signal("b", b"1"), signal("a", b'"s"'), signal("b", b"[]")):
        said.append(execution.advance([entry], 1).signal_schemas)
    ended = execution.advance([signal("c", b"true")], 1)

    assert said == [
        {"a": INT},
        None,
        {"a": INT, "b": INT},
        {"a": STR, "b": INT},
        {"a": STR},
        {"a": STR, "c": schema_of(bool)},
    ]
    assert ended.status.terminal
    assert ended.signal_schemas is None


def test_a_reloaded_run_reports_no_schemas(begin, steps) -> None:
    first = begin(steps)
    log = [first.started]
    for entries in ([], [signal("a", b"1")], [signal("b", b"1")]):
        outcome = first.advance(entries, 1)
        log += outcome.events
    known = outcome.signal_schemas

    assert known == {"a": STR, "b": INT}
    assert begin(steps, known, tuple(log)).advance([], 1).signal_schemas is None
    assert begin(steps, {}, tuple(log)).advance([], 1).signal_schemas == known
    assert begin(steps, {**known, "forgotten": INT}, tuple(log)).advance([], 1).signal_schemas is None


def test_a_workflow_without_types_reports_no_schemas(begin) -> None:
    registry = Registry()

    @registry.workflow
    async def plain(ctx: Context) -> None:
        await ctx.listen("a")
        await ctx.listen_many("a", limit=3)

    execution = begin(plain)

    assert execution.advance([], 1).signal_schemas is None
    assert execution.advance([signal("a", b"1")], 1).signal_schemas is None


def test_handlers_report_the_schema_of_their_first_parameter(begin) -> None:
    registry = Registry()

    @registry.workflow
    async def handling(ctx: Context) -> None:
        @ctx.on_signal("one")
        def one(value: int) -> None: ...

        @ctx.on_signal("many")
        def many(*values: str) -> None: ...

        @ctx.on_signal("none")
        def none() -> None: ...

        await ctx.listen("end")

    assert begin(handling).advance([], 1).signal_schemas == {"one": INT, "many": STR}
