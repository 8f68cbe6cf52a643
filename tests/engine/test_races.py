"""What happens when two things come at once. Whichever the log has first has won, for ever.

Both orders are had by putting both into the inbox before a worker is there: the store keeps the order of arrival.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.registry import Registry
from resurgam.testing.contract.bench import raises
from resurgam.testing.replay import replay
from support.engines import Engines, count_of, types, types_of


async def assert_replays(workflow: Workflow[..., Any], history: Sequence[events.Event]) -> None:
    """Assert that code which reads this history comes to the same decisions, and to nothing else."""
    report = await replay(workflow, list(history))
    assert report.diverged is None
    assert not report.new


async def test_cancel_against_completion(engines: Engines) -> None:
    """Heard first, the cancel ends it; heard second, the workflow has completed and the cancel found it so."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context) -> str:
        return await ctx.listen("word", type=str)

    for first in ("cancel", "signal"):
        async with engines.client(registry) as (store, clock, client):
            handle = await client.start(work)
            if first == "cancel":
                await handle.cancel()
            await handle.signal("word", "done")
            if first == "signal":
                await handle.cancel()
            async with engines.serve(store, clock, registry) as env:
                await env.settle()
            status = (await handle.describe()).status
            assert status is (Status.CANCELLED if first == "cancel" else Status.COMPLETED)
            history = await handle.history()
            assert types(history)[-1] == "workflow_deactivated"
            await assert_replays(work, history)


async def test_a_signal_against_a_continuation(engines: Engines) -> None:
    """Whether it comes before the end of a generation or after it, one of the two hears it, and only once."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context, number: int, got: list[int]) -> list[int]:
        await ctx.listen("next")
        while True:
            try:
                got.append(await ctx.listen("number", type=int, timeout=0))
            except errors.SignalTimeout:
                break
        if number < 2:
            ctx.continue_as_new(number + 1, got)
        return got

    for order in (("number", "next"), ("next", "number")):
        async with engines.client(registry) as (store, clock, client):
            handle = await client.start(work, 1, [])
            for name in order:
                await handle.signal(name, 7)
            async with engines.serve(store, clock, registry) as env:
                await env.settle()
                await handle.signal("number", 8)
                await handle.signal("next")
                assert await env.finish(handle.result()) == [7, 8]
            for copy in await store.transfer.copies(handle.entity_id):
                await assert_replays(work, copy.log)


async def test_the_end_of_a_child_against_that_of_its_parent(engines: Engines) -> None:
    """The parent has the result, or it has ended without; the child is not ended twice."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> str:
        return await ctx.listen("word", type=str)

    @registry.workflow
    async def parent(ctx: Context) -> Any:
        begun, end = ctx.workflow(child, id="child"), ctx.listen("end")
        done, _ = await asyncio.wait([begun, end], return_when=asyncio.FIRST_COMPLETED)
        return [begun in done, end in done]

    for first in ("child", "parent"):
        async with engines.client(registry) as (store, clock, client):
            handle = await client.start(parent, id="parent")
            async with engines.serve(store, clock, registry) as env:
                await env.settle()
            below = client.handle("child")
            await (below.signal("word", "done") if first == "child" else handle.signal("end"))
            async with engines.serve(store, clock, registry) as env:
                await env.settle()
                if first == "parent":
                    with raises(errors.NotFound):
                        await below.signal("word", "too late")
                result = await env.finish(handle.result())
            assert result == [first == "child", first == "parent"]
            expected = Status.COMPLETED if first == "child" else Status.CANCELLED
            assert (await below.describe()).status is expected
            await assert_replays(parent, await handle.history())


async def test_a_child_that_ends_while_its_parent_is_ending(engines: Engines) -> None:
    """Both inboxes are full when the worker comes; each order of serving them ends both, and neither waits."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> str:
        return await ctx.listen("word", type=str)

    @registry.workflow
    async def parent(ctx: Context) -> str:
        begun = ctx.workflow(child, id="child")
        winner, _ = await ctx.race(begun, ctx.listen("end"))
        return ("child", "end")[winner]

    for order in (("child", "parent"), ("parent", "child")):
        async with engines.client(registry) as (store, clock, client):
            handle = await client.start(parent, id="parent")
            async with engines.serve(store, clock, registry) as env:
                await env.settle()
            for who in order:
                name = "word" if who == "child" else "end"
                await client.handle(who).signal(name, "done")
            async with engines.serve(store, clock, registry) as env:
                result = await env.finish(handle.result(), limit=60)
                await env.settle()
            left = await client.handle("child").describe()
            assert left.status in (Status.COMPLETED, Status.CANCELLED)
            if result == "child":
                assert "child_completed" in await types_of(handle)
                assert left.status is Status.COMPLETED
            await assert_replays(parent, await handle.history())


async def test_pause_against_completion(engines: Engines) -> None:
    """Paused before its end it waits, whatever lies in its inbox; after its end there is nothing to pause."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context) -> str:
        return await ctx.listen("word", type=str)

    for first in ("pause", "signal"):
        async with engines.client(registry) as (store, clock, client):
            handle = await client.start(work)
            if first == "pause":
                await handle.pause()
            await handle.signal("word", "done")
            if first == "signal":
                await handle.pause()
            async with engines.serve(store, clock, registry) as env:
                await env.settle()
                # The code had not received the signal yet: a pause is not one more entry, it takes the workflow out of the way.
                assert (await handle.describe()).status is Status.PAUSED
                await handle.resume()
                assert await env.finish(handle.result(), limit=60) == "done"
                with raises(errors.NotFound, "is closed (completed)"):
                    await handle.pause()
            await assert_replays(work, await handle.history())


async def test_a_retry_against_the_late_end_of_a_child(engines: Engines) -> None:
    """The child ends before its parent's next attempt, while that begins, or after: it is begun once, and heard."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context) -> str:
        return await ctx.listen("word", type=str)

    @registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=10, jitter=0))
    async def parent(ctx: Context) -> str:
        begun = ctx.workflow(child, id="child")
        await ctx.listen("go")
        if ctx.info.attempt == 1:
            raise LookupError("once")
        return await begun

    for moment in ("with the failure", "between", "with the start", "after"):
        async with engines.client(registry) as (store, clock, client):
            handle = await client.start(parent)
            below = client.handle("child")
            async with engines.serve(store, clock, registry) as env:
                await env.settle()
            if moment == "with the failure":
                await below.signal("word", moment)
            await handle.signal("go")
            async with engines.serve(store, clock, registry) as env:
                await env.settle()
                if moment == "between":
                    await below.signal("word", moment)
                    await env.settle()
            if moment == "with the start":
                clock.move_to(clock.now() + 10_000)
                await below.signal("word", moment)
            async with engines.serve(store, clock, registry) as env:
                await env.advance(11)
                if moment == "after":
                    await below.signal("word", moment)
                assert await env.finish(handle.result(), limit=60) == moment
                assert await count_of(env, name="child") == 1, moment
            for copy in await store.transfer.copies(handle.entity_id):
                await assert_replays(parent, copy.log)


async def test_cancel_against_the_request_of_a_child(engines: Engines) -> None:
    """Called off in the step that asks for it, in the next, or after it has ended: never left behind."""
    registry = Registry()

    @registry.workflow
    async def child(ctx: Context, seconds: int) -> None:
        await ctx.sleep(seconds)

    @registry.workflow
    async def parent(ctx: Context, when: str) -> list[bool]:
        begun = ctx.workflow(child, 0 if when == "ended" else 3600, id="child")
        if when == "next":
            await begun.started
        if when == "ended":
            await begun
        called_off = begun.cancel()
        await asyncio.wait([begun])
        return [called_off, begun.cancelled()]

    expected = {"at once": [True, True], "next": [True, True], "ended": [False, False]}
    for when, told in expected.items():
        async with engines.open(registry) as env:
            handle = await env.start(parent, when)
            assert await env.finish(handle.result(), limit=60) == told, when
            assert await count_of(env, status="running") == 0
            await assert_replays(parent, await handle.history())


async def test_two_who_terminate_or_replace_at_once(engines: Engines) -> None:
    """One of them has ended it, the other hears so; of many who replace, the last is left."""
    registry = Registry()

    @registry.workflow
    async def work(ctx: Context, number: int) -> int:
        await ctx.listen("end")
        return number

    async with engines.open(registry) as env:
        handle = await env.start(work, 0, id="work")
        ends = await asyncio.gather(*(handle.terminate(str(n)) for n in range(5)), return_exceptions=True)
        assert [type(end).__name__ for end in ends].count("NoneType") == 1
        starts = [env.engine.start(work, n, id="work", if_exists="replace") for n in range(5)]
        await asyncio.gather(*starts)
        await env.settle()
        assert await count_of(env, status="running") == 1
        assert await count_of(env, status="terminated") == 5
