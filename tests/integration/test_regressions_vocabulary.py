"""What went wrong once with children, handlers and sagas, in virtual time, hot and cold."""

import asyncio

import pytest

from resurgam import Break, Context, Continue, Registry, RetryPolicy, errors
from resurgam.testing import Environment

STORES = [("memory://", 1000), ("memory://", 0), ("sqlite://", 1000), ("sqlite://", 0)]
pytestmark = pytest.mark.parametrize(("store", "cache"), STORES)


@pytest.fixture
def registry():
    return Registry()


def world(registry, store, cache):
    return Environment(registry=registry, store=store, cache_size=cache)


def family(registry, attempts):
    """A parent that does on its n-th attempt what *attempts* say, and its child, which listens."""
    tries = []

    @registry.workflow
    async def child(ctx: Context) -> str:
        return await ctx.listen("go", type=str)

    @registry.workflow(retry=RetryPolicy(max_attempts=3, initial_interval=10, jitter=0))
    async def parent(ctx: Context) -> str:
        number = await ctx.run(lambda: tries.append(1) or len(tries), name="count")
        if attempts[number - 1] == "no child":
            await ctx.sleep(5)
            return "no child any more"
        kid = ctx.workflow(child, id="kid")
        await kid.started
        if attempts[number - 1] == "fails":
            raise ValueError("again")
        return await kid

    return parent


async def test_a_child_that_ends_while_its_parent_waits_for_its_next_attempt_is_not_begun_again(registry, store, cache):
    """Its end waits in the inbox of the attempt that has not begun, and does not hold up the moment when it begins."""
    parent = family(registry, ["fails", "waits"])
    async with world(registry, store, cache) as env:
        handle = await env.start(parent)
        await env.handle("kid").signal("go", "done")
        assert await env.finish(handle.result()) == "done"
        kids = [one for one in (await env.engine.list()).instances if one.entity_id == "kid"]
        assert [str(kid.status) for kid in kids] == ["completed"]


async def test_an_open_child_is_adopted_by_the_next_attempt(registry, store, cache):
    parent = family(registry, ["fails", "waits"])
    async with world(registry, store, cache) as env:
        handle = await env.start(parent)
        await env.advance(60)
        await env.handle("kid").signal("go", "done")
        assert await env.finish(handle.result()) == "done"
        assert len([one for one in (await env.engine.list()).instances if one.entity_id == "kid"]) == 1


async def test_a_child_that_no_later_attempt_asks_for_ends_with_its_parent(registry, store, cache):
    parent = family(registry, ["fails", "no child"])
    async with world(registry, store, cache) as env:
        handle = await env.start(parent)
        assert await env.finish(handle.result()) == "no child any more"
        with pytest.raises(errors.WorkflowCancelled):
            await env.finish(env.handle("kid").result())


async def test_a_run_that_waits_for_its_next_attempt_is_running(registry, store, cache):
    parent = family(registry, ["fails", "fails", "fails"])
    async with world(registry, store, cache) as env:
        handle = await env.start(parent)
        found = await handle.describe()
        assert (str(found.status), found.attempt) == ("running", 2)


async def test_what_handlers_did_beside_a_loop_that_forgets_is_forgotten(registry, store, cache):
    """However long it lives, and whoever has talked to it, there is no more to be read again."""

    @registry.activity
    async def double(number: int) -> int:
        return 2 * number

    async def body(ctx: Context, rounds: int) -> Continue[int] | Break[int]:
        return Break(rounds) if await ctx.listen("tick", type=bool) else Continue(rounds + 1)

    @registry.workflow
    async def actor(ctx: Context) -> int:
        ctx.set("total", 0)

        @ctx.on_signal("add")
        async def add(number: int) -> None:
            doubled = await ctx.activity(double, number)
            ctx.set("total", ctx.get("total") + doubled)

        @ctx.on_update("more")
        async def more(number: int) -> int:
            ctx.set("total", ctx.get("total") + number)
            return ctx.get("total")

        @ctx.on_query("total")
        def total() -> int:
            return ctx.get("total")

        return await ctx.loop(body, 0, forget_every=5, keep_forgotten=3)

    async with world(registry, store, cache) as env:
        handle = await env.start(actor)
        lengths = []
        for number in range(1, 31):
            await handle.signal("add", 1)
            assert await env.finish(handle.update("more", 1, id=f"u{number}")) == 3 * number
            await handle.signal("tick", False)
            await env.settle()
            lengths.append(len(await handle.history()))
        assert max(lengths[5:]) == max(lengths[:10])
        assert len(await handle.history(forgotten=True)) < 2 * max(lengths)
        assert await handle.query("total") == 90
        # One that is repeated long after it was forgotten is not run again.
        assert await env.finish(handle.update("more", 1, id="u29")) in (87, 90)
        assert await handle.query("total") == 90
        await handle.signal("tick", True)
        assert await env.finish(handle.result()) == 30


async def test_an_update_that_ends_the_workflow_is_answered(registry, store, cache):
    @registry.workflow
    async def waits(ctx: Context) -> str:
        said = []

        @ctx.on_update("say")
        async def say(what: str) -> str:
            said.append(what)
            return what.upper()

        await ctx.until(lambda: said)
        return said[0]

    async with world(registry, store, cache) as env:
        handle = await env.start(waits)
        assert await env.finish(handle.update("say", "hello")) == "HELLO"
        assert await env.finish(handle.result()) == "hello"


async def test_a_compensation_that_fails_is_seen_and_made_good_by_hand(registry, store, cache):
    """It has the idempotency key that the saga's own compensation had, and the others were run all the same."""
    undone, broken = [], [True]

    @registry.activity
    async def book(what: str) -> str:
        return f"a {what}"

    @registry.activity(retry=RetryPolicy(max_attempts=2, initial_interval=1))
    async def undo(what: str) -> None:
        undone.append((what, registry.activity.info().idempotency_key))
        if what == "a flight" and broken:
            raise ConnectionError("nobody answers")

    @registry.activity(retry=RetryPolicy(max_attempts=1))
    async def fail() -> None:
        raise ValueError("sold out")

    @registry.workflow
    async def trip(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await asyncio.gather(*[saga.step(book, what, undo=undo) for what in ("flight", "hotel")])
            await saga.step(fail)

    async with world(registry, store, cache) as env:
        handle = await env.start(trip)
        with pytest.raises(errors.WorkflowFailed, match="sold out"):
            await env.finish(handle.result())
        assert [what for what, _ in undone] == ["a hotel", "a flight", "a flight"]
        [left] = (await handle.describe()).uncompensated
        place = left.rsplit("(", 1)[1].strip("')")
        broken.clear()
        by_hand = await handle.compensate(place)
        await env.finish(by_hand.result())
        assert undone[-1] == undone[1]
        assert (await handle.describe()).uncompensated == ()
        with pytest.raises(errors.AlreadyExists, match="is already compensated"):
            await handle.compensate(place)
        with pytest.raises(errors.NotFound, match=r"no saga step at \{9\}"):
            await handle.compensate("{9}")
