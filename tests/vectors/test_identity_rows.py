"""Where the documents of the original contradict each other: one test for each row, saying what holds here.

========================  ============================================================================================
question                  here
========================  ============================================================================================
CAN: entity               the same
CAN: RunID                new; the tree is the same
CAN: execution id         new
CAN: parent-child         no child of the one before; a parent waits for the last
CAN: history              empty; the old one stays with the old execution
CAN: retry policy         the same policy, attempts from 1
CAN: versions             a new history has the newest version
child: RunID              new; the tree is the same
cross-queue child         as any child, in its own queue
independent start         a root has no parent; a detached child has its own tree, and knows who began it
activity entity           one for each place of a run: kept by retries, another in the next generation
side effect scope         the execution: not run again on replay, run again by a retry
step name                 places, not names: two steps of one name are two
signals                   to the entity, whichever execution is the current one
saga                      a step, its doing and its undoing have entities of their own
sleep                     a durable timer
========================  ============================================================================================

And the contradiction that matters: a continuation finds nothing of the steps before it, a retry all of them, and the
two are told apart by two numbers.
"""

import pytest

from resurgam import Context, Registry, activity
from resurgam.core.identity import entity_of, execution_of
from resurgam.errors import ChildWorkflowFailed
from vectors.environments import EVERYWHERE, TWICE, Life, executions, ids, run


@pytest.fixture(params=EVERYWHERE)
def life(request):
    return Life(*request.param)


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


# Continue-as-new.


async def test_a_continuation_keeps_its_entity(life):
    async with life.world(generations()) as env:
        seen = await run(env, "grow", [], id="me")
    assert [one["entity_id"] for one in seen] == ["me"] * 3


async def test_a_continuation_has_a_run_of_its_own_in_the_same_tree(life):
    async with life.world(generations()) as env:
        seen = await run(env, "grow", [])
    assert len({one["run_id"] for one in seen}) == 3
    assert {one["tree_id"] for one in seen} == {seen[0]["run_id"]}


async def test_a_continuation_has_an_execution_of_its_own(life):
    async with life.world(generations()) as env:
        seen = await run(env, "grow", [], id="me")
        known = [one.instance.execution_id for one in await executions(env, "me")]
    assert [one["execution_id"] for one in seen] == known
    assert len(set(known)) == 3


async def test_a_continuation_is_no_child_of_the_one_before_and_a_parent_waits_for_the_last(life):
    registry = generations()

    @registry.workflow
    async def parent(ctx: Context) -> int:
        return len(await ctx.workflow("grow", [], id="child"))

    async with life.world(registry) as env:
        assert await run(env, "grow", [], id="root")
        assert [one.instance.parent for one in await executions(env, "root")] == [None] * 3
        assert await run(env, parent, id="parent") == 3
        parents = [one.instance.parent for one in await executions(env, "child")]
        assert {one.entity_id for one in parents} == {"parent"}
        assert len({one.key for one in parents}) == 1


async def test_a_continuation_begins_with_an_empty_history(life):
    async with life.world(generations()) as env:
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
    assert last.log[0].carried == ()


async def test_a_continuation_has_all_its_attempts(life):
    async with life.world(generations(retry=TWICE)) as env:
        await run(env, "grow", [], id="me")
        found = [(one.instance.generation, one.instance.attempt) for one in await executions(env, "me")]
    assert found == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]


async def test_a_continuation_has_the_newest_version(life):
    """And a generation that was under way when the code changed keeps the one it had."""
    old, new = Registry(), Registry()

    @old.workflow(name="work")
    async def before(ctx: Context, seen: list[int]) -> list[int]:
        await ctx.sleep(60)
        return seen

    @new.workflow(name="work")
    async def after(ctx: Context, seen: list[int]) -> list[int]:
        seen = [*seen, await ctx.check_version(2)]
        await ctx.sleep(60)
        if len(seen) < 2:
            ctx.continue_as_new(seen)
        return seen

    async with life.world(old) as first:
        handle = await first.start("work", [], id="me")
        exported = await first.engine.export("me")
        clock = first.clock
    async with life.world(new, clock=clock) as second:
        await second.engine.import_(exported)
        assert await second.finish(second.engine.handle("me").result()) == [1, 2]
    assert handle.entity_id == "me"


# Children, and what is none.


def family(*, queue=None, **options):
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> dict:
        return {**ids(ctx.info), "queue": ctx.info.queue}

    @registry.workflow
    async def parent(ctx: Context) -> list[dict | None]:
        return [ids(ctx.info), await ctx.workflow(child, id="child", queue=queue, **options)]

    return registry


async def test_a_child_has_a_run_of_its_own_in_the_same_tree(life):
    async with life.world(family()) as env:
        parent, child = await run(env, "parent")
    assert child["entity_id"] == "child"
    assert child["run_id"] != parent["run_id"]
    assert child["execution_id"] != parent["execution_id"]
    assert child["tree_id"] == parent["tree_id"] == parent["run_id"]


async def test_a_child_on_another_queue_is_a_child_as_any_other(life):
    async with life.world(family(queue="far"), queues=["default", "far"]) as env:
        parent, child = await run(env, "parent", id="parent")
        found = await env.engine.handle("child").describe()
    assert child["queue"] == "far"
    assert child["tree_id"] == parent["tree_id"]
    assert (found.queue, found.parent.entity_id, str(found.parent.location)) == ("far", "parent", "{1}")


async def test_an_independent_start_has_no_parent_and_a_detached_child_has_its_own_tree(life):
    async with life.world(family(detach=True)) as env:
        handle = await env.start("parent", id="parent")
        parent, nothing = await env.finish(handle.result())
        child = await env.engine.handle("child").describe()
        assert nothing is None
        assert (await handle.describe()).parent is None
    assert child.tree_id == child.run_id != parent["tree_id"]
    assert child.parent.entity_id == "parent"


# What a workflow asks for.


async def test_an_activity_is_one_entity_for_each_place_of_a_run(life):
    """Kept by its own attempts and by those of its workflow; another one in the next generation."""
    registry = Registry()
    seen = []

    @registry.activity(retry=TWICE)
    async def act() -> None:
        info = activity.info()
        seen.append((info.entity_id, info.execution_id))
        if len(seen) < 3:
            raise LookupError("not yet")

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context) -> None:
        await ctx.activity(act)
        if ctx.info.generation == 1:
            ctx.continue_as_new()

    async with life.world(registry) as env:
        await run(env, work, id="me")
        runs = list(dict.fromkeys(one.instance.run_id for one in await executions(env, "me")))
    first, second = (f"{run_id}/1" for run_id in runs)
    # Twice in the first attempt of the workflow, once in the second, once in the next generation.
    assert [entity for entity, _ in seen] == [first, first, first, second]
    assert seen[0][1] == execution_of(first, 1)


async def test_a_side_effect_belongs_to_the_execution(life):
    """Replay uses what is recorded; a retry, which is another execution, runs it again."""
    registry = Registry()
    ran = []

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context) -> int:
        number = await ctx.run(lambda: ran.append(1) or len(ran), name="count")
        await ctx.sleep(1)
        await ctx.sleep(1)
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return number

    async with life.world(registry) as env:
        assert await run(env, work) == 2
    assert len(ran) == 2


async def test_steps_are_known_by_their_place_and_not_by_a_name(life):
    """Two calls of one name, with one input, are two steps; nothing is returned from the first to the second."""
    registry = Registry()
    ran = []

    @registry.activity
    async def act(what: str) -> int:
        ran.append(what)
        return len(ran)

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context) -> list[int]:
        got = [await ctx.activity(act, "same"), await ctx.activity(act, "same")]
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return got

    async with life.world(registry) as env:
        assert await run(env, work) == [1, 2]
    assert ran == ["same", "same"]


async def test_signals_go_to_the_entity(life):
    """Whichever execution is the current one: first, retried, continued."""
    registry = Registry()

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context, got: list[str]) -> list[str]:
        got.append(await ctx.listen("word", type=str))
        if (ctx.info.generation, ctx.info.attempt) == (1, 1):
            raise LookupError("once")
        if ctx.info.generation < 2:
            ctx.continue_as_new(got)
        return got

    async with life.world(registry) as env:
        handle = await env.start(work, [], id="me")
        for word in ("first", "second"):
            await env.engine.handle("me").signal("word", word)
            await env.advance(11)
        # The first attempt has taken the first and failed: the second took it again.
        assert await env.finish(handle.result()) == ["first", "second"]


async def test_a_step_of_a_saga_its_doing_and_its_undoing_are_entities(life):
    registry = Registry()
    seen = {}

    @registry.activity
    async def book() -> str:
        seen["do"] = activity.info().entity_id
        return "booked"

    @registry.activity
    async def unbook(_: str) -> None:
        seen["undo"] = activity.info().entity_id

    @registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(book, undo=unbook)
            raise LookupError("no car")

    async with life.world(registry) as env:
        handle = await env.start(trip)
        history = await handle.history()
    [step] = [entry for entry in history if entry.type == "saga_step_registered"]
    below = entity_of(handle.run_id, step.location)
    assert seen["do"].startswith(f"{below}/1/")
    assert seen["undo"].startswith(f"{below}/2/")


async def test_sleep_is_a_durable_timer(life):
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context) -> str:
        await ctx.sleep(30 * 86400)
        return "a month later"

    async with life.world(registry) as env:
        assert await run(env, work) == "a month later"


# The contradiction that matters.


async def test_a_continuation_finds_nothing_of_what_was_done_before_and_a_retry_all_of_it(life):
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

    async with life.world(registry) as env:
        assert await run(env, work, []) == [[1, 2, 1], [2, 2, 2], [3, 2, 3]]
    assert len(ran) == 3


async def test_a_failed_child_is_an_error_of_the_parent_and_nothing_else(life):
    """The tree has no status of its own that could say otherwise than its members."""
    registry = Registry()

    @registry.workflow
    async def child(_ctx: Context) -> None:
        raise LookupError("no")

    @registry.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.workflow(child, id="child")
        except ChildWorkflowFailed:
            return "went on"
        return ""

    async with life.world(registry) as env:
        assert await run(env, parent) == "went on"
        assert str((await env.engine.handle("child").describe()).status) == "failed"
