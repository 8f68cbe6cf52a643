"""A step that sets another deadline is one commit, as any other."""

import asyncio

from resurgam import Context, Registry
from resurgam.testing import Environment

STEPS = 4


async def test_a_step_that_changes_the_deadline_commits_once(monkeypatch):
    registry = Registry()
    gates = [asyncio.Event() for _ in range(STEPS)]

    @registry.activity
    async def pass_gate(number: int) -> None:
        await gates[number].wait()

    @registry.workflow
    async def hurries(ctx: Context) -> None:
        for number in range(STEPS):
            await ctx.race(ctx.activity(pass_gate, number), ctx.sleep(1000 + number))

    async with Environment(store="sqlite://", registry=registry) as env:
        store, commits = env.engine.store, []
        submit = store.submit

        def count(part, done):
            commits.append(part.outcome.events)
            submit(part, done)

        monkeypatch.setattr(store, "submit", count)
        handle = await env.start(hurries)
        for gate in gates:
            gate.set()
            await env.settle()
        await env.finish(handle.result())

    assert all(commits)
    assert len(commits) == STEPS  # the first comes with the start
