"""Programs that talk to workflows which run: with real code behind every verb, in virtual time."""

import asyncio

import pytest

from resurgam import Context, Engine, Registry, RetryPolicy, Status, errors
from resurgam.client.tree import read_tree
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment, ManualClock
from support.limits import HANGS

registry = Registry()
tries: list[int] = []


@registry.workflow
async def basket(ctx: Context, items: list[str]) -> list[str]:
    """Answer queries and updates until the check-out."""

    @ctx.on_query("count")
    def count(least: int = 0) -> int:
        return max(least, len(items))

    def not_full(item: str) -> None:
        if len(items) >= 3:
            raise ValueError("the basket is full")

    @ctx.on_update("add", validator=not_full)
    async def add(item: str) -> int:
        await ctx.sleep(1)
        items.append(item)
        return len(items)

    @ctx.on_update("drop")
    def drop() -> None:
        raise KeyError("nothing dropped")

    await ctx.listen("check out")
    return items


@registry.workflow
async def paid(ctx: Context) -> str:
    promise = ctx.promise("pay", type=str)
    ctx.set("promise", promise.promise_id)
    try:
        return await promise
    except errors.PromiseRejected as error:
        return f"refused: {error.cause}"


@registry.workflow(retry=RetryPolicy(max_attempts=3, initial_interval=60, jitter=0))
async def stubborn(ctx: Context, number: int) -> int:
    attempt = ctx.info.attempt
    if attempt < 3:
        raise ValueError(f"attempt {attempt}")
    if number < 2:
        ctx.continue_as_new(number + 1)
    return number


@registry.workflow
async def child(ctx: Context) -> str:
    await ctx.sleep(10)
    return "done"


@registry.workflow
async def parent(ctx: Context) -> str:
    return await ctx.workflow(child, id="c-1")


@registry.workflow
async def deferring(ctx: Context) -> str:
    return await ctx.workflow(child, id="c-1", deferred=True)


@registry.workflow
async def broken(ctx: Context) -> str:
    tries.append(1)
    if len(tries) < 2:
        raise ValueError("not yet")
    return "at last"


@registry.workflow
async def town_crier(ctx: Context) -> None:
    for hour in range(3):
        ctx.publish("hours", {"hour": hour})
        await ctx.sleep(3600)


async def test_queries_are_answered_here_and_by_a_worker_in_whatever_state_the_run_is():
    clock = ManualClock()
    store = MemoryStore(clock)
    async with (
        Environment(store=store, clock=clock, registry=registry) as env,
        Engine(store, worker=False, clock=clock, registry=Registry()) as client,
    ):
        handle = await env.start(basket, ["a", "b"], id="b-1")
        far = client.handle("b-1")

        async def both(*args: int) -> list[int]:
            return [await handle.query("count", *args), await env.finish(far.query("count", *args))]

        assert await both() == [2, 2]
        assert await both(5) == [5, 5]
        await handle.pause()
        assert await both() == [2, 2]
        await handle.resume()
        await handle.signal("check out")
        await env.finish(handle.result())
        before = await handle.history()
        assert await both() == [2, 2]
        assert await handle.history() == before
        with pytest.raises(errors.NotFound, match="'size'"):
            await handle.query("size")
        with pytest.raises(errors.NotFound, match="'size'"):
            await env.finish(far.query("size"))


async def test_a_run_that_has_not_begun_answers_nothing_yet():
    async with Environment(registry=registry) as env:
        handle = await env.start(basket, [], delay=60)
        with pytest.raises(errors.NotFound, match="'count'"):
            await handle.query("count")
        assert (await handle.describe()).status is Status.SCHEDULED
        assert len(await handle.history()) == 1


async def test_updates_are_done_once_refused_or_lost_with_their_run():
    async with Environment(registry=registry) as env:
        handle = await env.start(basket, ["a"], id="b-1")

        assert await env.finish(handle.update("add", "b", id="u-1")) == 2
        assert await env.finish(handle.update("add", "b", id="u-1")) == 2
        assert await env.finish(handle.update("add", "c")) == 3
        with pytest.raises(errors.UpdateRejected, match="update 'add' was rejected: ValueError: the basket is full"):
            await env.finish(handle.update("add", "d"))
        with pytest.raises(errors.UpdateRejected) as found:
            await env.finish(handle.update("drop"))
        assert isinstance(found.value.cause, KeyError)
        await handle.signal("check out")
        assert await env.finish(handle.result()) == ["a", "b", "c"]
        assert await handle.update("add", "b", id="u-1") == 2
        with pytest.raises(errors.NotFound, match=r"is closed \(completed\)"):
            await handle.update("add", "e")


async def test_the_same_update_sent_twice_at_once_is_done_once():
    async with Environment(registry=registry) as env:
        handle = await env.start(basket, ["a"], id="b-1")
        both = asyncio.gather(handle.update("add", "b", id="u-1"), handle.update("add", "b", id="u-1"))

        assert await env.finish(both) == [2, 2]
        assert await handle.query("count") == 2


@pytest.mark.parametrize("by", ["id", "name"])
@pytest.mark.parametrize("accept", [True, False])
async def test_promises_are_settled_while_their_workflow_runs(by, accept):
    async with Environment(registry=registry) as env:
        handle = await env.start(paid, id="p-1")
        name = await handle.state("promise") if by == "id" else "pay"
        doors = {"id": (env.engine.resolve, env.engine.reject), "name": (handle.resolve, handle.reject)}
        resolve, reject = doors[by]

        assert await (resolve(name, "cash") if accept else reject(name, ValueError("no cash")))
        assert await env.finish(handle.result()) == ("cash" if accept else "refused: no cash")


async def test_a_result_comes_through_retries_and_continuations():
    async with Environment(registry=registry) as env:
        handle = await env.start(stubborn, 1, id="s-1")
        first = handle.run_id
        pinned = env.handle("s-1", first)

        assert (await handle.describe()).status is Status.RUNNING
        assert await env.finish(handle.result()) == 2
        found = await handle.describe()
        assert (found.generation, found.attempt) == (2, 3)
        with pytest.raises(errors.NotFound, match=f"continued as new, in run '{found.run_id}'"):
            await pinned.result()


async def test_a_failed_workflow_is_tried_again_by_hand():
    tries.clear()
    async with Environment(registry=registry) as env:
        handle = await env.start(broken, id="f-1")
        with pytest.raises(errors.WorkflowFailed, match="not yet"):
            await env.finish(handle.result())
        await handle.retry()

        assert await env.finish(handle.result()) == "at last"


async def test_a_tree_is_halted_and_goes_on():
    async with Environment(registry=registry) as env:
        handle = await env.start(parent, id="p-1")
        assert any("child workflow 'child' (c-1)" in what for what in (await handle.describe()).waiting_for)
        await handle.pause(tree=True)
        await env.advance(3600)
        assert [(await env.handle(one).describe()).status for one in ("p-1", "c-1")] == [Status.PAUSED] * 2
        await handle.resume()

        assert await env.finish(handle.result()) == "done"


async def test_a_deferred_child_is_begun_from_outside():
    async with Environment(registry=registry) as env:
        handle = await env.start(deferring, id="p-1")
        await env.advance(3600)
        assert (await env.handle("c-1").describe()).status is Status.SCHEDULED
        assert any("deferred until handle.begin()" in what for what in (await handle.describe()).waiting_for)
        await env.handle("c-1").begin()

        assert await env.finish(handle.result()) == "done"


async def test_a_delayed_start_begins_by_itself():
    async with Environment(registry=registry) as env:
        handle = await env.start(child, delay=3600)
        began = env.now()

        assert await env.finish(handle.result()) == "done"
        assert (env.now() - began).total_seconds() == 3610


async def test_the_drawn_ids_are_those_that_activities_are_given():
    own, given = Registry(), []

    @own.activity
    async def book(place: str) -> str:
        given.append((own.activity.info().entity_id, own.activity.info().execution_id))
        return place

    @own.activity
    async def unbook(place: str) -> None:
        given.append((own.activity.info().entity_id, own.activity.info().execution_id))

    @own.workflow(retry=RetryPolicy(max_attempts=2))
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await saga.step(book, "hotel", undo=unbook)
            raise ValueError("the flight is full")

    async with Environment(registry=own) as env:
        handle = await env.start(trip, id="t-1")
        with pytest.raises(errors.WorkflowFailed, match="the flight is full"):
            await env.finish(handle.result())
        instance = await env.engine.store.inspector.get("t-1")
        assert instance is not None
        [run] = (await read_tree(env.engine.store, instance)).runs

    [saga] = run.steps
    [only] = saga.steps
    steps = [*only.transaction, *only.compensation]
    assert saga.status == "compensated"
    assert {(step.entity_id, one.execution_id) for step in steps for one in step.executions} == set(given)
    assert len(set(given)) == 4


async def test_what_is_published_is_heard_by_those_who_listen():
    async with Environment(registry=registry) as env:
        heard = env.engine.subscribe("hours")

        async def hear() -> list[object]:
            return [await anext(heard) for _ in range(3)]

        hearing = asyncio.ensure_future(hear())
        await env.start(town_crier)
        await env.advance(7200)

        assert await asyncio.wait_for(hearing, HANGS) == [{"hour": hour} for hour in range(3)]
