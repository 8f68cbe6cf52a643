"""Generations: what a continuation shares with the run before it, and what is its own."""

import pytest

from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.errors import WorkflowFailed
from support.engines import TWICE, Engines, executions, ids, of_kind, run


async def test_each_generation_has_its_own_status(engines: Engines):
    """Running while it runs; continued is not completed; a continuation that fails has failed."""
    registry = Registry()
    seen = []

    async with engines.open(registry) as env:

        @env.engine._registry.activity
        async def look(entity_id: str) -> None:
            seen.append((await env.engine.handle(entity_id).describe()).status)

        @env.engine._registry.workflow
        async def work(ctx: Context, number: int) -> None:
            await ctx.activity(look, ctx.info.entity_id)
            if number == 1:
                ctx.continue_as_new(2)
            raise LookupError("the continuation fails")

        handle = await env.start(work, 1, id="me", delay=10)
        assert (await handle.describe()).status is Status.SCHEDULED
        with pytest.raises(WorkflowFailed, match="the continuation fails"):
            await env.finish(handle.result())
        assert [one.instance.status for one in await executions(env, "me")] == [Status.CONTINUED, Status.FAILED]
    assert seen == [Status.RUNNING, Status.RUNNING]


def generations(*, retry=None, upto=3):
    """Return a workflow that continues as new until it has so many generations, and tells who it was in each."""
    registry = Registry()

    @registry.workflow(**({} if retry is None else {"retry": retry}))
    async def grow(ctx: Context, seen: list[dict]) -> list[dict]:
        await ctx.sleep(1)
        seen = [*seen, ids(ctx.info)]
        if retry is not None and ctx.info.attempt == 1:
            raise LookupError("once in each generation")
        if ctx.info.generation < upto:
            ctx.continue_as_new(seen)
        return seen

    return registry


async def test_a_continuation_keeps_its_entity(engines: Engines):
    async with engines.open(generations()) as env:
        seen = await run(env, "grow", [], id="me")
    assert [one["entity_id"] for one in seen] == ["me"] * 3


async def test_a_continuation_has_a_run_of_its_own_in_the_same_tree(engines: Engines):
    async with engines.open(generations()) as env:
        seen = await run(env, "grow", [])
    assert len({one["run_id"] for one in seen}) == 3
    assert {one["tree_id"] for one in seen} == {seen[0]["run_id"]}


async def test_a_continuation_has_an_execution_of_its_own(engines: Engines):
    async with engines.open(generations()) as env:
        seen = await run(env, "grow", [], id="me")
        known = [one.instance.execution_id for one in await executions(env, "me")]
    assert [one["execution_id"] for one in seen] == known
    assert len(set(known)) == 3


async def test_a_continuation_is_no_child_of_the_one_before_and_a_parent_waits_for_the_last(engines: Engines):
    registry = generations()

    @registry.workflow
    async def parent(ctx: Context) -> int:
        return len(await ctx.workflow("grow", [], id="child"))

    async with engines.open(registry) as env:
        assert await run(env, "grow", [], id="root")
        assert [one.instance.parent for one in await executions(env, "root")] == [None] * 3
        assert await run(env, parent, id="parent") == 3
        parents = [one.instance.parent for one in await executions(env, "child")]
        assert {one.entity_id for one in parents} == {"parent"}
        assert len({one.key for one in parents}) == 1


async def test_a_continuation_begins_with_an_empty_history(engines: Engines):
    async with engines.open(generations()) as env:
        await run(env, "grow", [], id="me")
        first, *_, last = await executions(env, "me")
    assert [entry.type for entry in first.log] == [
        "workflow_started",
        "timer_started",
        "timer_fired",
        "workflow_continued",
        "workflow_deactivated",
    ]
    assert [entry.seq for entry in last.log] == [1, 2, 3, 4, 5]
    [started] = of_kind(last.log, events.WorkflowStarted)
    assert started.carried == ()


async def test_a_continuation_has_all_its_attempts(engines: Engines):
    async with engines.open(generations(retry=TWICE)) as env:
        await run(env, "grow", [], id="me")
        found = [(one.instance.generation, one.instance.attempt) for one in await executions(env, "me")]
    assert found == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]


async def test_a_continuation_starts_anew_and_a_retry_carries_over(engines: Engines):
    registry = Registry()
    ran = []

    @registry.activity
    async def act() -> int:
        ran.append(1)
        return len(ran)

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context, seen: list) -> list:
        got = await ctx.activity(act)
        if ctx.info.attempt == 1:
            raise LookupError("once in each generation")
        seen = [*seen, [ctx.info.generation, ctx.info.attempt, got]]
        if ctx.info.generation < 3:
            ctx.continue_as_new(seen)
        return seen

    async with engines.open(registry) as env:
        assert await run(env, work, []) == [[1, 2, 1], [2, 2, 2], [3, 2, 3]]
    assert len(ran) == 3
