"""The queue of a workflow: given by the call, else by its definition, else by its parent, else "default"."""

import pytest

from resurgam import Context, Registry, RetryPolicy, workflow
from resurgam.testing import Environment

registry = Registry()


@registry.workflow
async def plain(ctx: Context) -> str:
    return ctx.info.queue


@registry.workflow(queue="own")
async def placed(ctx: Context) -> str:
    return ctx.info.queue


@registry.workflow(retry=RetryPolicy(max_attempts=2))
async def family(ctx: Context, generation: int = 1) -> list[str]:
    if generation == 1:
        ctx.continue_as_new(2)
    if ctx.info.attempt == 1:
        raise ConnectionError("down")
    detached = ctx.workflow(plain, id="detached", detach=True)
    deferred = ctx.workflow(plain, id="deferred", deferred=True)
    await detached
    await deferred.started
    return [
        await ctx.workflow(plain),
        await ctx.workflow("plain"),
        await ctx.workflow(workflow.ref("plain", returns=str)),
        await ctx.workflow(grandparent),
        await ctx.workflow(placed),
        await ctx.workflow("placed"),
        await ctx.workflow(placed.options(queue="named")),
        await ctx.workflow(workflow.ref("plain", returns=str, queue="own")),
        await ctx.workflow(plain, queue="named"),
        await deferred,
    ]


@registry.workflow
async def grandparent(ctx: Context) -> str:
    return await ctx.workflow(plain)


@pytest.fixture
async def env():
    async with Environment(registry=registry, queues=["default", "eu", "own", "named"]) as env:
        yield env


async def test_a_child_runs_on_the_queue_of_its_parent_unless_one_is_named(env):
    handle = await env.start(family, queue="eu")
    await env.advance(5)
    await env.handle("deferred").begin()
    assert await env.finish(handle.result()) == [*["eu"] * 4, "own", "own", "named", "own", "named", "eu"]
    assert await env.handle("detached", workflow=plain).result() == "eu"


async def test_a_deployment_with_one_named_queue_runs_whole_families():
    async with Environment(registry=registry, queues=["eu"]) as env:
        assert await env.finish((await env.start(grandparent, queue="eu")).result()) == "eu"


async def test_a_workflow_without_a_parent_runs_on_the_queue_of_its_definition_or_on_default(env):
    starts = [(plain, None), ("plain", None), (placed, None), ("placed", None), (placed, "named")]
    queues = [await env.engine.execute(meant, queue=queue) for meant, queue in starts]
    assert queues == ["default", "default", "own", "own", "named"]
