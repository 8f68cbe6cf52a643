"""How the tree of a workflow is printed that has flows below it."""

from typing import Any

from resurgam import Context, Registry
from resurgam.cli import tree as cli_tree
from resurgam.flows import FlowStep, WorkflowStep
from resurgam.flows.steps import StepDecorator
from resurgam.testing import Environment

registry = Registry()
step = StepDecorator(registry)


@step
async def price(order: Any) -> Any:
    return 7


@registry.workflow
async def charge(ctx: Context, price: Any) -> Any:
    return f"receipt {price}"


@registry.workflow
async def sell(ctx: Context) -> Any:
    return await ctx.flow(["deal"], {"order": 1}, id="flow")


async def test_steps_work_items_and_children_are_shown(capsys: Any) -> None:
    async with Environment(registry=registry) as env:
        await env.finish(env.engine.register_step(WorkflowStep(charge)))
        await env.finish(
            env.engine.register_step(FlowStep("deal", goals=["charge"], inputs=["order"], outputs=["charge"]))
        )
        handle = await env.start(sell, id="sale")
        await env.finish(handle.result())
        cli_tree.show(await handle.tree(), ids=False, as_json=False)
        lines = capsys.readouterr().out.splitlines()
        text = [line.lstrip("│├└─ ") for line in lines]
        assert "Sub-flow deal at {1}" in text
        assert "Step deal: completed" in text
        assert "Sub-flow charge at {1}" in text
        assert "Step charge: completed" in text
        assert "Step price: completed" in text
        assert any(line.startswith("WorkItem price at {1} on queue default: succeeded") for line in text)
        assert any(line.startswith("Sub-workflow charge at {2}") for line in text)
        assert "FlowEntityID: flow" in text
