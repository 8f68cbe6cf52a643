"""The cost of each context verb on SQLite, counted in commits, so that it is the same on any machine."""

import pytest

from resurgam import Context, Engine, Registry
from resurgam.bench.figures import counting
from support.budget import within

registry = Registry()


@registry.activity
async def touch(number: int) -> int:
    return number


@registry.workflow
async def child(ctx: Context) -> None: ...


@registry.workflow
async def children(ctx: Context, count: int) -> None:
    for _ in range(count):
        await ctx.workflow(child)


@registry.workflow
async def saga(ctx: Context, count: int) -> None:
    async with ctx.saga() as steps:
        for number in range(count):
            await steps.step(touch, number, undo=touch)


@registry.workflow
async def states(ctx: Context, count: int) -> None:
    for number in range(count):
        ctx.set("number", number)
        await ctx.publish("topic", number)
        await ctx.activity(touch, number)


@registry.workflow
async def generations(ctx: Context, count: int) -> None:
    if count > 0:
        ctx.continue_as_new(count - 1)


@pytest.mark.parametrize(
    ("what", "workflow"),
    [
        ("commits per child", children),
        ("commits per step of a saga", saga),
        ("commits per step with state and message", states),
        ("commits per generation", generations),
    ],
)
async def test_commits(what, workflow, tmp_path):
    # A long lease: the commits of a renewal would be counted too.
    async with Engine(f"sqlite:///{tmp_path}/budget.db", registry=registry, lease=3600) as engine:
        await engine.execute(workflow, 5)
        counts = []
        for length in (60, 20):
            with counting(engine.store) as count:
                await engine.execute(workflow, length)
            counts.append(count.commits)
        within(what, (counts[0] - counts[1]) / 40)
