"""The vectors of sequence matching that are about child workflows and promises, end to end.

Row 30, the *kind* of a child, cannot apply: a child has one name here, that of its workflow (the id that a caller may give
it is not compared, the recorded one stays), so a child of another workflow is row 29. Row 31, a child whose kind was not
recorded, is for the same reason row 28.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.errors import (
    AlreadyExists,
    ChildWorkflowCancelled,
    ChildWorkflowFailed,
    DeterminismViolation,
    PromiseRejected,
    PromiseTimeout,
)
from resurgam.testing import Simulation, replay
from vectors.event_notation import answer_of, history, registry_of, told, workflow


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Divergences are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A vector. *gives*: the result of the replay, None while the code waits; *ends*: what a run from there comes to."""

    number: str
    log: str
    code: Callable[..., Any]
    gives: Any = None
    ends: Any = None
    fails: type[BaseException] | None = None
    violation: str = ""
    new: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()


CHILDREN = ("process-order-1", "original-kind", "changed-kind", "c", "c1", "c2", "c3", "rec")
SETTLED = {"approval": "yes", "payment-confirmation": "paid", "p": "p"}


def world_of() -> Registry:
    registry = registry_of()
    for name in CHILDREN:
        registry.workflow(name=name)(_child)
    return registry


async def _child(ctx: Context) -> str:
    return f"{ctx.info.entity_id != ''}"


def children(*names: str) -> Any:
    async def code(ctx: Context) -> list[Any]:
        return [await ctx.workflow(name) for name in names]

    return code


def child_of(workflow: str, given: str) -> Any:
    async def code(ctx: Context) -> Any:
        return await ctx.workflow(workflow, id=given)

    return code


def promises(*names: str) -> Any:
    async def code(ctx: Context) -> list[Any]:
        return [await ctx.promise(name) for name in names]

    return code


async def all_at_once(ctx: Context) -> list[Any]:
    return list(
        await asyncio.gather(ctx.activity("u"), ctx.activity("o"), ctx.workflow("rec"), ctx.sleep(5)),
    )


async def two_promises_of_a_name(ctx: Context) -> None:
    ctx.promise("p")
    ctx.promise("p")


async def two_tasks_around_a_child(ctx: Context) -> list[Any]:
    first, second = ctx.activity("A"), ctx.activity("B")
    return [await first, await ctx.workflow("c"), await second]


async def one_task(ctx: Context) -> str:
    return await ctx.activity("A")


async def a_child_where_a_task_was(ctx: Context) -> Any:
    return await ctx.workflow("c")


_THREE = "child c1 | begun 0 | done 0 1 | child c2 | begun 1 | done 1 2 | child c3 | begun 2 | done 2 3"
_ALL = 'task u | task o | child rec | timer 5 | begun 2 | done 0 "u" | done 1 "o" | done 2 3 | fired 3'
ROWS = [
    Row(number="15", log=_ALL, code=all_at_once, gives=["u", "o", 3, None], ends=["u", "o", 3, None]),
    Row(number="28", log="child process-order-1 | begun 0 | done 0 7", code=children("process-order-1"), gives=[7]),
    Row(number="28, initiated", log="child process-order-1", code=children("process-order-1"), ends=["True"]),
    Row(number="28, begun", log="child process-order-1 | begun 0", code=children("process-order-1"), ends=["True"]),
    Row(number="28, failed", log="child c | begun 0 | failed 0 no", code=children("c"), fails=ChildWorkflowFailed),
    Row(
        number="29",
        log="child c original-child",
        code=child_of("c", "renamed-child"),
        violation="Child workflow name mismatch at ChildWorkflow(0): expected 'renamed-child', got 'original-child'",
    ),
    Row(
        number="30",
        log="child original-kind c",
        code=child_of("changed-kind", "c"),
        violation="Child workflow kind mismatch at ChildWorkflow(0): expected 'changed-kind', got 'original-kind'",
    ),
    Row(
        number="30, the second of two",
        log="child c1 | begun 0 | done 0 1 | child c2",
        code=children("c1", "c3"),
        violation="Child workflow kind mismatch at ChildWorkflow(1): expected 'c3', got 'c2'",
    ),
    Row(number="32", log=_THREE, code=children("c1", "c2", "c3"), gives=[1, 2, 3]),
    Row(
        number="32, one more",
        log=_THREE,
        code=children("c1", "c2", "c3", "c"),
        new=("ChildWorkflow(3) c",),
        ends=[1, 2, 3, "True"],
    ),
    Row(
        number="32, one less",
        log=_THREE,
        code=children("c1", "c2"),
        gives=[1, 2],
        orphans=("ChildWorkflow(2) c3",),
    ),
    Row(number="44, resolved", log="promise approval | resolved 0 4", code=promises("approval"), gives=[4]),
    Row(
        number="44, rejected", log="promise approval | rejected 0 no", code=promises("approval"), fails=PromiseRejected
    ),
    Row(number="44, timed out", log="promise approval | expired 0", code=promises("approval"), fails=PromiseTimeout),
    Row(number="44, open", log="promise approval", code=promises("approval"), ends=["yes"]),
    Row(
        number="45",
        log="promise approval-promise",
        code=promises("payment-confirmation"),
        violation="Promise name mismatch at Promise(0): expected 'payment-confirmation', got 'approval-promise'",
    ),
    Row(number="46", log="promise p", code=two_promises_of_a_name, fails=AlreadyExists),
    Row(
        number="46, one after the other", log="promise p | resolved 0 1", code=promises("p", "p"), new=("Promise(1) p",)
    ),
    Row(
        number="58",
        log='task A | task B | done 0 "A" | child c | begun 2 | done 2 3 | done 1 "B"',
        code=two_tasks_around_a_child,
        gives=["A", 3, "B"],
    ),
    Row(
        number="63",
        log='task A | done 0 "A" | timer 5 | fired 1 | child c | begun 2 | done 2 1 | set k 1',
        code=one_task,
        gives="A",
        orphans=("Timer(0)", "ChildWorkflow(0) c", "State(0) k"),
    ),
    Row(
        number="§2.9, a task becomes a child",
        log='task A | done 0 "A"',
        code=a_child_where_a_task_was,
        new=("ChildWorkflow(0) c",),
        orphans=("Task(0) A",),
        ends="True",
    ),
]
each_row = pytest.mark.parametrize("row", ROWS, ids=[row.number for row in ROWS])


@each_row
async def test_replay(row):
    report = await replay(workflow(row.code), history(row.log))

    assert told(report.new) == list(row.new if not row.violation else ())
    if row.violation:
        assert isinstance(report.diverged, DeterminismViolation)
        assert str(report.diverged).startswith(row.violation)
        return
    assert report.diverged is None
    assert told(report.orphans) == list(row.orphans)
    assert report.finished == (row.gives is not None or row.fails is not None)
    assert report.result == row.gives
    assert (None if report.error is None else type(report.error)) is row.fails


@each_row
async def test_an_execution_that_goes_on_from_there(row):
    log, registry = history(row.log), world_of()
    world = Simulation(workflow(row.code), log=log, registry=registry, promises=SETTLED)

    whole = await world.run()

    assert whole[: len(log)] == log
    if row.violation:
        failed = whole[len(log)]
        assert isinstance(failed, events.WorkflowFailed)
        assert failed.failure.type == "DETERMINISM_VIOLATION"
        assert failed.failure.message.startswith(row.violation)
    elif row.fails is not None:
        assert world.status is Status.FAILED
    else:
        assert world.status is Status.COMPLETED
        expected = row.ends if row.gives is None else row.gives
        assert expected is None or answer_of(whole) == expected
        again = await replay(workflow(row.code), whole)
        assert (again.diverged, again.new) == (None, ())


async def test_a_child_that_was_cancelled_raises_so(caplog):
    """The parent that waits for it gets the cancellation."""
    log = history("child c | begun 0")
    call = log[1]
    log.append(events.ChildCancelled(seq=len(log) + 1, at=log[-1].at, ref=call.seq, child=str(call.location)))

    report = await replay(workflow(children("c")), log)

    assert type(report.error) is ChildWorkflowCancelled
