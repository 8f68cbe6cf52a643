"""Every id, wherever it is shown, is the same thing under the same name."""

from typing import Any

from resurgam import activity
from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.identity import entity_of, execution_of
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.info import activity_info
from resurgam.runtime.registry import Registry
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import raises
from support.engines import TWICE, Engines, executions, ids, of_kind, run

IDS = ("entity_id", "execution_id", "run_id", "tree_id", "generation", "attempt", "name", "queue")


async def test_an_execution_says_who_it_is(engines: Engines) -> None:
    """Its own code, its history, its description, the list, and its handle agree."""
    registry = Registry()

    @registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=1, jitter=0))
    async def work(ctx: Context, seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if ctx.info.attempt == 1:
            raise LookupError("once in each generation")
        seen = [*seen, {name: getattr(ctx.info, name) for name in IDS}]
        await ctx.sleep(60)
        if ctx.info.generation == 1:
            ctx.continue_as_new(seen)
        return seen

    async with engines.open(registry) as env:
        handle = await env.start(work, [], id="me", tags={"colour": "red"})
        for expected in ((1, 2), (2, 2)):
            await env.advance(2)
            found, [started] = await handle.describe(), of_kind(await handle.history(), events.WorkflowStarted)
            [listed] = (await env.engine.list(status="running")).instances
            shown = [{name: getattr(one, name) for name in IDS} for one in (found, started, listed)]
            assert shown[0] == shown[1] == shown[2]
            assert (found.generation, found.attempt) == expected
            assert (handle.entity_id, handle.execution_id) == ("me", found.execution_id)
            assert found.tags == listed.tags == {"colour": "red"}
            last = shown[0]
            await env.advance(60)
        assert (await env.finish(handle.result()))[-1] == last


async def test_a_child_says_whose_it_is(engines: Engines) -> None:
    """Its code, its description and the list name the call: entity, run, execution and place."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> list[str]:
        parent = ctx.info.parent
        assert parent is not None
        return [parent.entity_id, parent.run_id, parent.execution_id, str(parent.location)]

    @registry.workflow
    async def parent(ctx: Context) -> list[list[str]]:
        await ctx.sleep(1)
        told = await ctx.workflow(child, id="child")
        return [told, [ctx.info.entity_id, ctx.info.run_id, ctx.info.execution_id, "{2}"]]

    async with engines.open(registry) as env:
        told, expected = await run(env, parent)
        found = (await env.engine.handle("child").describe()).parent
        assert found is not None
        assert told == expected == [found.entity_id, found.run_id, found.execution_id, str(found.location)]
        [listed] = (await env.engine.list(parent=found.entity_id)).instances
        assert listed.entity_id == "child"


async def test_what_a_workflow_asks_for_is_known_by_run_and_place(engines: Engines) -> None:
    """Activities, children without an id, signals and promises; each attempt of an activity by its number."""
    registry = Registry()

    @registry.activity(retry=RetryPolicy(max_attempts=2, initial_interval=1, jitter=0))
    async def act() -> list[Any]:
        info = activity_info()
        if info.attempt == 1:
            raise LookupError("once")
        return [info.entity_id, info.execution_id, info.idempotency_key, info.workflow_id, info.attempt, info.queue]

    @registry.workflow
    async def child(_ctx: Context) -> None:
        return None

    @registry.workflow
    async def work(ctx: Context) -> list[Any]:
        below = ctx.workflow(child)
        promises = [ctx.promise("one"), ctx.promise("two")]
        return [await ctx.activity(act), below.entity_id, [promise.promise_id for promise in promises]]

    async with engines.open(registry) as env:
        one, two = await env.start(work, id="one"), await env.start(work, id="two")
        seen = []
        for handle in (one, two):
            told, entity_id, promises = await env.finish(handle.result())
            scheduled = of_kind(await handle.history(), events.ActivityScheduled)
            entity = entity_of(handle.run_id, scheduled[0].location)
            assert told == [entity, execution_of(entity, 2), entity, handle.entity_id, 2, "default"]
            seen += [entity, entity_id, *promises]
            assert not any(handle.run_id in promise for promise in promises)  # they cannot be guessed
        assert len(set(seen)) == len(seen)


async def test_an_id_that_is_used_again_is_another_tree(engines: Engines) -> None:
    """Nothing of the new one is that of the old one but the name that it was given."""
    registry = Registry()
    keys: list[str] = []

    @registry.activity
    async def act() -> None:
        keys.append(activity_info().idempotency_key)

    @registry.workflow
    async def work(ctx: Context) -> list[str]:
        await ctx.activity(act)
        return [ctx.info.run_id, ctx.info.execution_id, ctx.info.tree_id]

    async with engines.open(registry) as env:
        first, second = [await env.finish((await env.start(work, id="me")).result()) for _ in range(2)]
        assert set(first).isdisjoint(second)
        assert len(set(keys)) == 2
        assert await env.finish(env.engine.handle("me", first[0]).result()) == first
        assert await env.finish(env.engine.handle("me").result()) == second


async def test_ids_that_are_none_are_refused(engines: Engines) -> None:
    """One clear error, and nothing is begun."""
    registry = Registry()

    @registry.workflow
    async def work(_ctx: Context) -> None:
        return None

    async with engines.open(registry) as env:
        bad: Any
        for bad in ("", 5, b"x"):
            for option in ("id", "queue"):
                with raises(ValueError, option):
                    await env.start(work, **{option: bad})
            with raises(errors.NotFound):
                await env.engine.handle(bad).describe()
        for bad in ({"a": 1}, {1: "a"}, "colour", ["a"]):
            with raises(TypeError, "tag"):
                await env.start(work, tags=bad)
        assert (await env.engine.list()).instances == ()
        with raises(errors.NotFound, "no such run"):
            await env.engine.handle("me", "no such run").describe()


async def test_a_workflow_is_found_by_its_name_wherever_its_function_is_defined(engines: Engines):
    before, after = Registry(), Registry()

    @before.workflow(name="billing")
    async def old_place(ctx: Context) -> str:
        await ctx.sleep(60)
        return "old"

    @after.workflow(name="billing")
    async def moved_and_renamed(ctx: Context) -> str:
        await ctx.sleep(60)
        return "new"

    clock = ManualClock()
    async with engines.open(before, clock=clock) as env:
        handle = await env.start("billing", id="me")
        await handle.pause()
        exported = await env.engine.export("me")
    async with engines.open(after, clock=clock) as env:
        await env.engine.import_(exported)
        handle = env.engine.handle("me")
        assert (await handle.describe()).status is Status.PAUSED
        await handle.resume()
        assert await env.finish(handle.result()) == "new"


def family(*, queue=None, **options):
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> dict:
        return {**ids(ctx.info), "queue": ctx.info.queue}

    @registry.workflow
    async def parent(ctx: Context) -> list[dict | None]:
        return [ids(ctx.info), await ctx.workflow(child, id="child", queue=queue, **options)]

    return registry


async def test_a_child_has_a_run_of_its_own_in_the_same_tree(engines: Engines):
    async with engines.open(family()) as env:
        parent, child = await run(env, "parent")
    assert child["entity_id"] == "child"
    assert child["run_id"] != parent["run_id"]
    assert child["execution_id"] != parent["execution_id"]
    assert child["tree_id"] == parent["tree_id"] == parent["run_id"]


async def test_a_child_on_another_queue_is_a_child_as_any_other(engines: Engines):
    async with engines.open(family(queue="far"), queues=["default", "far"]) as env:
        parent, child = await run(env, "parent", id="parent")
        found = await env.engine.handle("child").describe()
    assert child["queue"] == "far"
    assert child["tree_id"] == parent["tree_id"]
    assert (found.queue, found.parent.entity_id, str(found.parent.location)) == ("far", "parent", "{1}")


async def test_an_independent_start_has_no_parent_and_a_detached_child_has_its_own_tree(engines: Engines):
    async with engines.open(family(detach=True)) as env:
        handle = await env.start("parent", id="parent")
        parent, nothing = await env.finish(handle.result())
        child = await env.engine.handle("child").describe()
        assert nothing is None
        assert (await handle.describe()).parent is None
    assert child.tree_id == child.run_id != parent["tree_id"]
    assert child.parent.entity_id == "parent"


async def test_an_activity_is_one_entity_for_each_place_of_a_run(engines: Engines):
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

    async with engines.open(registry) as env:
        await run(env, work, id="me")
        runs = list(dict.fromkeys(one.instance.run_id for one in await executions(env, "me")))
    first, second = (f"{run_id}/1" for run_id in runs)
    # Twice in the first attempt of the workflow, once in the second, once in the next generation.
    assert [entity for entity, _ in seen] == [first, first, first, second]
    assert seen[0][1] == execution_of(first, 1)


async def test_a_side_effect_belongs_to_the_execution(engines: Engines):
    """Replay uses what is recorded; a retry, which is another execution, runs it again."""
    registry = Registry()
    ran = []

    def count() -> int:
        ran.append(1)
        return len(ran)

    @registry.workflow(retry=TWICE)
    async def work(ctx: Context) -> int:
        number = await ctx.run(count)
        await ctx.sleep(1)
        await ctx.sleep(1)
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return number

    async with engines.open(registry) as env:
        assert await run(env, work) == 2
    assert len(ran) == 2


async def test_steps_are_known_by_their_place_and_not_by_a_name(engines: Engines):
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

    async with engines.open(registry) as env:
        assert await run(env, work) == [1, 2]
    assert ran == ["same", "same"]


async def test_signals_go_to_the_entity(engines: Engines):
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

    async with engines.open(registry) as env:
        handle = await env.start(work, [], id="me")
        for word in ("first", "second"):
            await env.engine.handle("me").signal("word", word)
            await env.advance(11)
        # The first attempt has taken the first and failed: the second took it again.
        assert await env.finish(handle.result()) == ["first", "second"]


async def test_a_step_of_a_saga_its_doing_and_its_undoing_are_entities(engines: Engines):
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

    async with engines.open(registry) as env:
        handle = await env.start(trip)
        history = await handle.history()
    [step] = of_kind(history, events.SagaStepRegistered)
    assert step.location is not None
    below = entity_of(handle.run_id, step.location)
    assert seen["do"].startswith(f"{below}/1/")
    assert seen["undo"].startswith(f"{below}/2/")
