"""A worker without the packages of expressions fails no flow that needs them: another worker may have them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import pytest

from resurgam.flows import FlowStep, Input, ScriptStep, StepDecorator
from resurgam.flows.expressions import compiled
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.testing.clock import ManualClock
from support.engines import Engines, types_of

PACKAGES = {"cel_expr_python": "resurgam.flows.languages.cel", "lupa.lua54": "resurgam.flows.languages.lua"}


@contextmanager
def _without_packages() -> Iterator[None]:
    """Let no expression be compiled, as if the extra were not installed."""
    with pytest.MonkeyPatch.context() as patch:
        for package, module in PACKAGES.items():
            patch.setitem(sys.modules, package, None)
            patch.delitem(sys.modules, module, raising=False)
        compiled.cache_clear()
        yield
    compiled.cache_clear()


def _bank() -> Registry:
    registry = Registry()
    step = StepDecorator(registry)

    @step
    async def paid(amount: int) -> int:
        return amount

    @step
    async def receipt(paid: Annotated[int, Input(match="value > 0")]) -> str:
        return f"paid {paid}"

    @registry.workflow
    async def counter(ctx: Context) -> str:
        found = await ctx.flow(["receipt"], {"paid": 5})
        return str(found["receipt"])

    return registry


def _plain() -> Registry:
    """Return the same functions, which are no steps here: this program defines none."""
    registry = Registry()

    @registry.activity
    async def paid(amount: int) -> int:
        return amount

    @registry.workflow
    async def counter(ctx: Context) -> str:
        found = await ctx.flow(["receipt"], {"paid": 5})
        return str(found["receipt"])

    return registry


@pytest.mark.parametrize("goal", ["receipt", "office"])
async def test_a_flow_waits_for_a_worker_with_the_language_of_its_expressions(engines: Engines, goal: str) -> None:
    clock = ManualClock()
    async with engines.open_store(clock) as store:
        async with engines.serve(store, clock, _bank()) as env:
            office = FlowStep("office", ["receipt"], inputs=["paid"], outputs={"receipt": str})
            await env.engine.register_step(office)
        with _without_packages():
            async with engines.serve(store, clock, _plain()) as env:
                flow = await env.engine.start_flow([goal], {"amount": 5}, id="f")
                await env.settle()
                found = await flow.describe()
                assert (found.status, "pip install 'resurgam[flows]'" in str(found)) == ("diverged", True)
        async with engines.serve(store, clock, _bank()) as env:
            flow = env.engine.handle("f")
            assert await env.finish(flow.result()) == {"receipt": "paid 5"}
            assert (await types_of(flow)).count("work_succeeded") == 2


async def test_a_flow_of_a_workflow_is_planned_by_a_worker_with_the_language(engines: Engines) -> None:
    clock = ManualClock()
    async with engines.open_store(clock) as store:
        async with engines.serve(store, clock, _bank()) as env:
            await env.engine.steps()
        with _without_packages():
            async with engines.serve(store, clock, _plain()) as env:
                workflow = await env.engine.start("counter", id="w")
                await env.settle()
                [child] = (await env.engine.list(parent="w")).instances
                assert child.status == "diverged"
        async with engines.serve(store, clock, _bank()) as env:
            assert await env.finish(env.engine.handle(workflow.entity_id).result()) == "paid 5"


async def test_a_script_is_tried_again_where_its_language_is(engines: Engines) -> None:
    clock = ManualClock()
    async with engines.open_store(clock) as store:
        async with engines.serve(store, clock, Registry()) as env:
            await env.engine.register_step(ScriptStep("tax", "return {tax = 19}", outputs={"tax": int}))
        with _without_packages():
            async with engines.serve(store, clock, Registry()) as env:
                await env.engine.start_flow(["tax"], id="f")
                await env.settle()
        async with engines.serve(store, clock, Registry()) as env:
            flow = env.engine.handle("f")
            assert await env.finish(flow.result()) == {"tax": 19}
            assert "retry_scheduled" in await types_of(flow)
