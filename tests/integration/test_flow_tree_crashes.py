"""The engine dies at every write while workflows await flows and flows run workflows: the outcome is always the same."""

import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from resurgam import Context, Engine, NonRetryable, Registry
from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.state import InstanceState
from resurgam.errors import ChildWorkflowFailed
from resurgam.flows import model as m
from resurgam.flows.state import FlowState
from resurgam.store.records import Copy
from support.faults import Death, World, did, in_file, in_memory
from support.oracle import Names

registry = Registry()


# Functions with @step are registered while an engine opens, and the engines of these tests die only later.
@registry.activity
async def price(order: Any) -> Any:
    did()
    return 7


@registry.activity
async def pack(item: Any) -> Any:
    did()
    if item == "bomb":
        raise NonRetryable("not packed")
    return f"packed {item}"


@registry.activity
async def book(amount: int) -> str:
    did()
    return f"receipt {amount}"


@registry.workflow
async def charge(ctx: Context, price: int) -> dict[str, str]:
    await ctx.sleep(60)
    return {"receipt": await ctx.activity(book, price)}


@registry.workflow
async def listener(ctx: Context, order: Any) -> dict[str, Any]:
    return {"heard": await ctx.listen("go")}


@registry.workflow
async def sell(ctx: Context, order: str, items: list[str]) -> Any:
    try:
        return await ctx.flow(["deliver", "charge"], {"order": order, "items": items}, id="flow")
    except ChildWorkflowFailed as failed:
        return str(failed.cause)


@registry.workflow
async def hear(ctx: Context) -> Any:
    return await ctx.flow(["hear"], {"order": 1}, id="flow")


REQUIRED = m.Required(type="any")
EACH = m.Required(type="any", required=m.RequiredConfig(for_each=True, mapping=m.Mapping(name="item")))


def defined(kind: m.StepType, step_id: str, inputs: dict[str, m.Attribute], output: str, **config: Any) -> m.Step:
    attributes = {**inputs, output: m.Output(type="any")}
    return m.Step(id=step_id, name=step_id, type=kind, attributes=attributes, **config)


def function(name: str, argument: str) -> m.Step:
    config = m.PythonConfig(activity=name, parameters=(argument,), fields=False)
    return defined("python", name, {argument: REQUIRED}, name, python=config)


STEPS = [
    function("price", "order"),
    function("pack", "item"),
    defined("workflow", "charge", {"price": REQUIRED}, "receipt", workflow=m.WorkflowConfig(workflow="charge")),
    defined("workflow", "hear", {"order": REQUIRED}, "heard", workflow=m.WorkflowConfig(workflow="listener")),
    defined(
        *("flow", "deliver", {"items": EACH}, "pack"),
        flow=m.FlowConfig(goals=("pack",)),
        work_config=m.WorkConfig(parallelism=2),
    ),
]


async def register(world: World) -> None:
    for one in STEPS:
        await world.act(_registering(one))


def _registering(one: m.Step) -> Callable[[Engine], Awaitable[bool]]:
    return lambda engine: engine.register_step(one)


async def sold(world: World) -> None:
    await register(world)
    await world.start(sell, "o-1", ["a", "b", "c"], id="root")


async def not_sold(world: World) -> None:
    """One of the flows in the flow fails, so the others are cancelled."""
    await register(world)
    await world.start(sell, "o-1", ["a", "bomb", "c"], id="root")


async def cancelled(world: World) -> None:
    await register(world)
    await world.start(hear, id="root")
    await world.cancel("root")


async def terminated(world: World) -> None:
    await register(world)
    await world.start(hear, id="root")
    await world.tell("flow", "terminate", "enough")


STORIES = [sold, not_sold, cancelled, terminated]


async def outcome(world: World) -> dict[str, Any]:
    """Return what has become of every workflow and flow, and check that each log is whole."""
    copies = [copy for copy in await world.copies() if copy.instance.kind != fe.CATALOG]
    names = Names(copies)
    fates = {names.replace(copy.instance.execution_id): _fate(copy, names) for copy in copies}
    if any("not packed" in text for _, text in fates.values()):
        # Which of the other flows have begun by then, and how far they came, is a matter of time.
        return {name: fates[name] for name in ("<root 1>", "<flow 1>")}
    return fates


def _fate(copy: Copy, names: Names) -> Any:
    assert not copy.activities
    assert not copy.inbox
    if copy.instance.kind == fe.FLOW:
        assert FlowState(copy.log).deactivated
        answered = Counter(entry.ref for entry in copy.log if isinstance(entry, fe.WorkSucceeded | fe.WorkFailed))
        assert max(answered.values(), default=0) <= 1
    else:
        assert InstanceState(copy.log).deactivated
    ends = [entry for entry in copy.log if isinstance(entry, ENDS)]
    assert len(ends) == 1
    return str(copy.instance.status), names.replace(_text(ends[0]))


ENDS = (
    *(events.WorkflowCompleted, events.WorkflowFailed, events.WorkflowCancelled, events.WorkflowTerminated),
    *(fe.FlowCompleted, fe.FlowFailed, fe.FlowCancelled),
)


def _text(end: events.Event) -> str:
    failure = getattr(end, "failure", None)
    return f"{end.type} {bytes(getattr(end, 'result', b'')).decode()} {'' if failure is None else failure.message}"


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


async def _run(
    story: Callable[[World], Awaitable[None]], deaths: list[Death], folder: Path | None
) -> tuple[World, Any]:
    options: dict[str, Any] = {"registry": registry, "places": (("default",),), "deaths": deaths, "victim": 0}
    opened = in_memory(**options) if folder is None else in_file(folder / f"{story.__name__}-{deaths}.db", **options)
    async with opened as world:
        try:
            await story(world)
            await world.finish()
            return world, await outcome(world)
        except BaseException as error:
            error.add_note(f"{story.__name__}, dead {', '.join(world.died)}")
            raise


@pytest.mark.parametrize("story", STORIES)
async def test_a_tree_of_workflows_and_flows_ends_the_same_wherever_its_engine_dies(story: Any) -> None:
    """At every write, applied or not."""
    _, expected = await _run(story, [], None)
    for write in itertools.count(1):
        deaths = []
        for applied in (True, False):
            world, found = await _run(story, [Death(write, applied)], None)
            assert found == expected, world.died
            deaths += world.died
        if not deaths:
            break
    assert write > 20


@pytest.mark.parametrize("story", STORIES)
async def test_in_a_file_too(story: Any, tmp_path: Path) -> None:
    _, expected = await _run(story, [], tmp_path)
    for write in (5, 16, 27):
        _, found = await _run(story, [Death(write, applied=bool(write % 2))], tmp_path)
        assert found == expected


async def test_what_the_undisturbed_trees_come_to() -> None:
    _, found = await _run(sold, [], None)
    packed = ",".join(f'{{"item":"{one}","pack":"packed {one}"}}' for one in "abc")
    result = f'{{"pack":[{packed}],"receipt":"receipt 7"}}'
    assert found["<root 1>"] == ("completed", f"workflow_completed {result} ")
    assert len(found) == 6
    _, found = await _run(not_sold, [], None)
    assert "not packed" in found["<root 1>"][1]
    _, found = await _run(cancelled, [], None)
    assert [status for status, _ in found.values()] == ["cancelled"] * 3
    _, found = await _run(terminated, [], None)
    assert sorted(status for status, _ in found.values()) == ["cancelled", "failed", "terminated"]
