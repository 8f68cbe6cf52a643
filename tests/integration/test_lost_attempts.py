"""An attempt that is lost by an error of the worker itself, not of its own code, is delivered again."""

import asyncio

import pytest

from resurgam import Context, Registry
from resurgam.runtime.definitions.info import heartbeat
from resurgam.testing import Environment

PARALLEL = 10
"""More than the lease on an instance covers: the others have leases of their own."""


def lose_next(env, monkeypatch):
    """Have the worker lose the next attempt that ends."""
    runner = env.engine._worker._slots._runner
    encode = runner._encode

    def fail_once(*args):
        monkeypatch.setattr(runner, "_encode", encode)
        raise GeneratorExit("lost")

    monkeypatch.setattr(runner, "_encode", fail_once)


@pytest.mark.parametrize("parallel", [1, PARALLEL])
@pytest.mark.parametrize("reports", [False, True], ids=["silent", "with heartbeats"])
async def test_an_attempt_that_the_worker_loses_is_delivered_again(monkeypatch, parallel, reports):
    registry, may_end, began = Registry(), asyncio.Event(), []

    @registry.activity
    async def work(number: int) -> int:
        began.append(number)
        if reports:
            heartbeat(number)
        await may_end.wait()
        return number

    @registry.workflow
    async def many(ctx: Context) -> list[int]:
        return await asyncio.gather(*(ctx.activity(work, number) for number in reversed(range(parallel))))

    async with Environment(store="sqlite://", registry=registry, lease=10) as env:
        handle = await env.start(many)
        await env.advance(8)  # leases are renewed
        lose_next(env, monkeypatch)
        may_end.set()
        assert await env.finish(handle.result(), limit=3600) == list(reversed(range(parallel)))
    assert len(began) == parallel + 1
