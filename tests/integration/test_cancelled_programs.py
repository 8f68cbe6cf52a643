"""A program that cancels every task of its loop, as `asyncio.run` does when it ends, fails no activity by that."""

import asyncio

import pytest

from resurgam import Context, Engine, Registry, RetryPolicy, errors


@pytest.mark.parametrize("parallel", [1, 10])
def test_what_runs_when_every_task_is_cancelled_is_delivered_again(tmp_path, parallel):
    registry, began = Registry(), []
    may_end = False

    @registry.activity(retry=RetryPolicy(max_attempts=1))
    async def work(number: int) -> int:
        began.append(number)
        if not may_end:
            await asyncio.Event().wait()
        return number

    @registry.workflow
    async def many(ctx: Context) -> int:
        return sum(await asyncio.gather(*(ctx.activity(work, number) for number in range(parallel))))

    url = f"sqlite:///{tmp_path}/cancelled.db"
    left = []

    async def leaves() -> None:
        engine = Engine(url, registry=registry)
        left.append(engine)
        await engine.__aenter__()
        await engine.start(many, id="x")
        while len(began) < parallel:
            await asyncio.sleep(0)

    async def comes_back() -> int:
        store = left[0]._worker._store
        store._owner.close()  # as if its process had gone
        async with Engine(url, registry=registry) as engine:
            return await engine.handle("x").result(timeout=30)

    asyncio.run(leaves())
    may_end = True
    assert asyncio.run(comes_back()) == sum(range(parallel))


async def test_an_operation_that_cancels_itself_has_failed():
    """And its workflow is not held for ever."""
    registry = Registry()

    async def cancels_itself() -> None:
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    @registry.workflow
    async def copes(ctx: Context) -> str:
        try:
            await ctx.run(cancels_itself)
        except errors.OperationFailed as failed:
            return str(failed)
        return "not reached"

    async with Engine(registry=registry) as engine:
        assert "cancelled" in (await engine.execute(copes)).lower()
