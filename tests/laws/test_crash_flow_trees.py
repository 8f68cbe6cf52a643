"""Kill trees of workflows and flows after every event of any of them: each ends as it does undisturbed."""

import asyncio
import random
from typing import Any

import pytest

from resurgam import Context, NonRetryable, Registry
from resurgam.core import event as events
from resurgam.errors import ChildWorkflowFailed
from resurgam.flows import WorkflowStep
from resurgam.flows import model as m
from resurgam.flows.steps import StepDecorator
from resurgam.testing import crash_everywhere
from resurgam.testing.crash import outcome
from resurgam.testing.loading import catalog_of
from resurgam.testing.simulation import Simulation

registry = Registry()
step = StepDecorator(registry)


@step
async def price(order: Any) -> Any:
    return 7


@step
async def pack(item: Any) -> Any:
    if item == "bomb":
        raise NonRetryable("not packed")
    return f"packed {item}"


@registry.activity
async def book(amount: Any) -> str:
    return f"receipt {amount}"


@registry.workflow
async def charge(ctx: Context, price: Any) -> Any:
    await ctx.sleep(60)
    return await ctx.activity(book, price)


@registry.workflow
async def listener(ctx: Context, order: Any) -> Any:
    return await ctx.listen("go")


@registry.workflow
async def sell(ctx: Context, items: list[str]) -> Any:
    try:
        return await ctx.flow(["deliver", "charge"], {"order": "o-1", "items": items})
    except ChildWorkflowFailed as failed:
        return str(failed.cause)


@registry.workflow
async def impatient(ctx: Context) -> str:
    try:
        async with asyncio.timeout(60):
            await ctx.flow(["listener"], {"order": 1})
    except TimeoutError:
        return "too late"
    return ""


@registry.workflow
async def nested(ctx: Context) -> Any:
    return await ctx.flow(["shop"], {"order": "o-1"})


EACH = m.Required(type="any", required=m.RequiredConfig(for_each=True, mapping=m.Mapping(name="item")))


def child_step(step_id: str, inputs: dict[str, m.Attribute], output: str, goals: tuple[str, ...]) -> m.Step:
    return m.Step(
        id=step_id,
        name=step_id,
        type="flow",
        attributes={**inputs, output: m.Output(type="any")},
        flow=m.FlowConfig(goals=goals),
        work_config=m.WorkConfig(parallelism=2),
    )


STEPS = [
    WorkflowStep(charge),
    WorkflowStep(listener),
    child_step("deliver", {"items": EACH}, "pack", ("pack",)),
    child_step("shop", {"order": m.Required(type="any")}, "charge", ("charge",)),
]


async def swept(workflow: Any, *args: Any) -> Any:
    return await crash_everywhere(workflow, *args, registry=registry, steps=STEPS)


def result(crashes: Any) -> Any:
    [ended] = [entry for entry in crashes.history if isinstance(entry, events.WorkflowCompleted)]
    return bytes(ended.result).decode()


async def test_a_workflow_of_a_flow_of_flows_and_a_workflow() -> None:
    crashes = await swept(sell, ["a", "b", "c"])
    packed = ",".join(f'{{"item":"{one}","pack":"packed {one}"}}' for one in "abc")
    assert result(crashes) == f'{{"charge":"receipt 7","pack":[{packed}]}}'
    assert len(crashes.histories) == 6
    assert crashes.points > 20


async def test_a_workflow_of_a_flow_of_a_flow_of_a_workflow() -> None:
    crashes = await swept(nested)
    assert result(crashes) == '{"charge":"receipt 7"}'
    assert len(crashes.histories) == 4


async def test_a_flow_that_fails_and_cancels_the_others() -> None:
    crashes = await swept(sell, ["bomb"])
    assert "not packed" in result(crashes)


async def test_a_flow_that_is_cancelled_by_a_timeout() -> None:
    crashes = await swept(impatient)
    assert result(crashes) == '"too late"'
    ends = [log[-2].type for log in crashes.histories.values()]
    assert sorted(ends) == ["work_cancelled", "workflow_cancelled", "workflow_completed"]


async def test_a_flow_that_cannot_be_planned() -> None:
    @registry.workflow(name="hopeless")
    async def hopeless(ctx: Context) -> str:
        try:
            await ctx.flow(["charge"])
        except ChildWorkflowFailed as failed:
            return type(failed.cause).__name__
        return ""

    assert result(await swept(hopeless)) == '"DefinitionError"'


@pytest.mark.parametrize(("workflow", "args"), [(sell, (["a", "b", "c"],)), (sell, (["a", "bomb"],)), (nested, ())])
async def test_the_order_in_which_things_happen_decides_nothing(workflow: Any, args: tuple[Any, ...]) -> None:
    """In whatever order results arrive and children go on: one outcome."""
    outcomes = set()
    for seed in range(30):
        catalog = catalog_of(registry, STEPS)
        world = Simulation(workflow, *args, registry=registry, catalog=catalog, chooser=random.Random(seed))
        outcomes.add(outcome(await world.run()))
    assert len(outcomes) == 1
