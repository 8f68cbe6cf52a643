"""Tags that a workflow changes while it runs: lists find it by those that it has."""

import pytest

from resurgam.core import event as events
from resurgam.engine import Engine
from resurgam.flows.steps import StepDecorator
from resurgam.runtime.context.context import Context
from resurgam.runtime.context.durable_loop import Break, Continue
from resurgam.runtime.registry import Registry
from support.engines import TWICE, Engines


def shop() -> Registry:
    """Return the code of an order that is tagged by how far it is."""
    registry = Registry()

    @registry.activity
    async def charge(cents: int) -> int:
        return cents

    @registry.workflow
    async def parcel(ctx: Context) -> None:
        await ctx.listen("sent")

    @registry.workflow
    async def order(ctx: Context, cents: int) -> None:
        ctx.tag(stage="new")
        await ctx.activity(charge, cents)
        child = ctx.workflow(parcel, id="first")
        ctx.tag(stage="paid", shop=None)
        await ctx.workflow(parcel, id="second")
        await child

    @registry.workflow
    async def counted(ctx: Context, last: int) -> str:
        ctx.tag(kind="loop", gone="yes")

        async def body(ctx: Context, number: int) -> Continue[int] | Break[str]:
            ctx.tag(number=str(number), gone=None)
            await ctx.sleep(1)
            return Break("done") if number == last else Continue(number + 1)

        await ctx.loop(body, 1, forget_every=2)
        await ctx.listen("go on")
        await ctx.workflow(parcel, id="after")
        return "done"

    @registry.workflow
    async def generations(ctx: Context, left: int) -> None:
        ctx.tag(left=str(left))
        await ctx.sleep(1)
        if left:
            ctx.continue_as_new(left - 1)
        await ctx.listen("end")

    @registry.workflow(retry=TWICE)
    async def unlucky(ctx: Context) -> None:
        if ctx.info.attempt == 1:
            ctx.tag(seen="once")
            raise ValueError("no")
        await ctx.listen("end")

    @StepDecorator(registry)
    def ship(order_id: str) -> str:
        return f"{order_id} is on its way"

    @registry.workflow
    async def flowing(ctx: Context) -> dict[str, str]:
        ctx.tag(stage="flow")
        return await ctx.flow([ship], {"order_id": "o-1"}, id="a flow")

    return registry


async def found(engine: Engine, **tags: str) -> list[str]:
    """Return the ids of the executions with these tags, sorted."""
    return sorted(one.entity_id for one in (await engine.list(tags=tags)).instances)


async def test_a_run_is_listed_by_the_tags_that_it_has(engines: Engines) -> None:
    """Each change is in the history at a place of its own; tags that were not named stay."""
    async with engines.open(shop()) as env:
        handle = await env.start("order", 100, id="o-1", tags={"shop": "berlin", "customer": "c-1"})
        await env.settle()
        assert (await handle.describe()).tags == {"customer": "c-1", "stage": "paid"}
        assert await found(env.engine, stage="paid", customer="c-1") == ["o-1", "second"]
        assert await found(env.engine, stage="new") == ["first"]
        changes = [entry for entry in await handle.history() if isinstance(entry, events.TagsSet)]
        assert [(str(entry.location), entry.command, entry.tags) for entry in changes] == [
            ("{1}", "Tags(0)", {"stage": "new"}),
            ("{4}", "Tags(1)", {"shop": None, "stage": "paid"}),
        ]


async def test_children_inherit_the_tags_present_when_they_start(engines: Engines) -> None:
    """Later changes of the parent do not reach them."""
    async with engines.open(shop()) as env:
        await env.start("order", 100, id="o-1", tags={"shop": "berlin"})
        await env.settle()
        tags = {one.entity_id: one.tags for one in (await env.engine.list()).instances}
        assert tags == {
            "o-1": {"stage": "paid"},
            "first": {"shop": "berlin", "stage": "new"},
            "second": {"stage": "paid"},
        }


async def test_flows_inherit_tags_too(engines: Engines) -> None:
    """A flow that a workflow runs has those of the workflow."""
    async with engines.open(shop()) as env:
        handle = await env.start("flowing", id="w", tags={"shop": "berlin"})
        await env.finish(handle.result())
        assert await found(env.engine, shop="berlin", stage="flow") == ["a flow", "w"]


async def test_tags_outlive_the_entries_that_set_them(engines: Engines) -> None:
    """A loop forgets its finished iterations, and its checkpoints keep the tags."""
    async with engines.open(shop()) as env:
        handle = await env.start("counted", 5, id="w", tags={"shop": "berlin"})
        await env.advance(10)
        assert not [entry for entry in await handle.history() if getattr(entry, "tags", {}) == {"number": "4"}]
        await handle.signal("go on")
        await env.settle()
        expected = {"shop": "berlin", "kind": "loop", "number": "5"}
        assert (await handle.describe()).tags == expected
        assert (await env.engine.handle("after").describe()).tags == expected


async def test_the_next_generation_and_the_next_attempt_begin_with_the_tags_of_the_last(engines: Engines) -> None:
    """Each execution is listed by the tags that it had in the end."""
    async with engines.open(shop()) as env:
        await env.start("generations", 2, id="g", tags={"shop": "berlin"})
        await env.start("unlucky", id="u", tags={"shop": "paris"})
        await env.advance(20)
        assert await found(env.engine, left="0", shop="berlin") == ["g"]
        assert await found(env.engine, shop="berlin") == ["g", "g", "g"]
        [newest] = (await env.engine.list(tags={"seen": "once"}, status="running")).instances
        assert (newest.entity_id, newest.attempt, newest.tags) == ("u", 2, {"shop": "paris", "seen": "once"})


async def test_tags_are_strings(engines: Engines) -> None:
    """A mistake is an error of the code, at the call."""
    registry, wrong = Registry(), list[str]()

    @registry.workflow
    async def mistaken(ctx: Context) -> None:
        for tags in ({}, {"n": 1}):
            try:
                ctx.tag(**tags)  # type: ignore[arg-type]
            except (TypeError, ValueError) as error:
                wrong.append(str(error))

    async with engines.open(registry) as env:
        handle = await env.start("mistaken")
        await env.finish(handle.result())
        assert wrong[:2] == [
            'ctx.tag needs at least one tag, such as ctx.tag(stage="paid")',
            "ctx.tag: the value of a tag must be a string, or None to remove it, got n=1",
        ]
        assert (await handle.describe()).tags == {}


@pytest.mark.engines("memory-cached", "sqlite-replayed")
async def test_a_tag_can_be_inserted_and_removed_while_runs_are_open(engines: Engines) -> None:
    """By a version, and by a note of what was removed."""
    before, after = Registry(), Registry()

    @before.workflow(name="w")
    async def first(ctx: Context) -> None:
        ctx.tag(old="yes")
        await ctx.listen("go")

    @after.workflow(name="w")
    async def second(ctx: Context) -> None:
        await ctx.removed.tag()
        ctx.v(2).tag(new="yes")
        await ctx.listen("go")

    async with engines.client(before) as (store, clock, client):
        handle = await client.start("w", id="w")
        async with engines.serve(store, clock, before) as env:
            await env.settle()
        async with engines.serve(store, clock, after) as env:
            await handle.signal("go")
            await env.finish(env.engine.handle("w").result())
            assert (await handle.describe()).tags == {"old": "yes", "new": "yes"}
