"""Waiting until an update is accepted, and sending one together with the start of its workflow."""

import asyncio
from typing import Any

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store import records as r
from resurgam.testing.contract.bench import raises
from support.engines import Engines, Interposed, count_of, types_of, writes


def counter() -> Registry:
    """Return the code of a workflow that counts by updates, each of which takes a second."""
    registry = Registry()

    @registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=0, jitter=0))
    async def count(ctx: Context, number: int) -> int:
        def positive(more: int) -> None:
            if more <= 0:
                raise ValueError(f"{more} is not positive")

        @ctx.on_update("add", validator=positive, one_at_a_time=True)
        async def add(more: int) -> int:
            nonlocal number
            await ctx.sleep(1)
            if more == 13:
                raise LookupError("no luck")
            number += more
            return number

        word = await ctx.listen("word")
        if word == "fail" and ctx.info.attempt == 1:
            raise LookupError("the first attempt")
        if word == "anew":
            await ctx.handlers_finished()
            ctx.continue_as_new(number)
        await ctx.handlers_finished()
        return number

    return registry


async def test_one_may_wait_until_an_update_is_accepted(engines: Engines) -> None:
    """Its handler has begun then; the result can be waited for later, several times, also after the end."""
    async with engines.open(counter()) as env:
        handle = await env.start("count", 0)
        begun = env.clock.now()
        first = await env.finish(handle.update("add", 5, id="u", wait="accepted"))
        second = await env.finish(handle.update("add", 13, wait="accepted"))
        assert env.clock.now() == begun
        assert (first.name, first.id, first.entity_id) == ("add", "u", handle.entity_id)
        assert (await types_of(handle)).count("update_completed") == 0
        with raises(errors.ResultTimeout, "'add'"):
            await env.finish(first.result(timeout=0.5))
        assert await env.finish(first.result()) == 5
        with raises(errors.UpdateRejected, "no luck"):
            await env.finish(second.result())
        await handle.signal("word", "end")
        assert await env.finish(handle.result()) == 5
        again = await env.finish(handle.update("add", 5, id="u", wait="accepted"))
        assert [await env.finish(one.result()) for one in (first, again)] == [5, 5]


async def test_an_update_that_is_refused_is_never_accepted(engines: Engines) -> None:
    """By its validator, or because there is no handler; the caller is told at once, and so if the stage is none."""
    async with engines.open(counter()) as env:
        handle = await env.start("count", 0)
        for name, text in (("add", "not positive"), ("ad", "no handler for update 'ad'")):
            with raises(errors.UpdateRejected, text):
                await env.finish(handle.update(name, -1, wait="accepted"))
        stage: Any = "begun"
        with raises(ValueError, "wait must be 'completed' or 'accepted', got 'begun'"):
            await handle.update("add", 1, wait=stage)
        paused = await env.start("count", 0, delay=3600)
        with raises(errors.ResultTimeout, "'add'"):
            await env.finish(paused.update("add", 1, wait="accepted", timeout=5))


async def test_an_accepted_update_is_followed_to_the_next_attempt_and_generation(engines: Engines) -> None:
    """A retry begins with it anew; a generation that waits for its handlers has answered it."""
    async with engines.open(counter()) as env:
        handle = await env.start("count", 0)
        sent = await env.finish(handle.update("add", 1, wait="accepted"))
        await handle.signal("word", "fail")
        await env.settle()
        assert (await handle.describe()).attempt == 2
        assert await env.finish(sent.result()) == 1
        second = await env.start("count", 10)
        sent = await env.finish(second.update("add", 1, wait="accepted"))
        await second.signal("word", "anew")
        assert await env.finish(sent.result()) == 11
        assert await env.finish(second.update("add", 1)) == 12
        assert (await second.describe()).generation == 2


async def test_update_with_start_reaches_the_open_run_or_begins_one(engines: Engines) -> None:
    """However many send at once there is one run; a repeated update is not run again, and begins nothing."""
    async with engines.open(counter()) as env:

        def add(number: int, more: int, **options: Any) -> Any:
            sending = env.engine.update_with_start("count", number, id="c", update="add", with_args=[more], **options)
            return env.finish(sending)

        both = asyncio.gather(
            *(env.engine.update_with_start("count", 10, id="c", update="add", with_args=(more,)) for more in (1, 1))
        )
        assert sorted(await env.finish(both)) == [11, 12]
        assert await add(99, 5, update_id="u") == 17
        assert await add(99, 5, update_id="u", type=int) == 17
        assert await count_of(env) == 1
        handle = env.engine.handle("c")
        await handle.signal("word", "end")
        assert await env.finish(handle.result()) == 17
        assert await add(99, 5, update_id="u") == 17
        assert await count_of(env) == 1
        assert await add(100, 1) == 101
        assert await count_of(env) == 2


async def test_update_with_start_that_crosses_the_end_is_in_one_run(engines: Engines) -> None:
    """Sent while the commit of the end is written it begins the next run; nothing is lost in between."""
    sent: list[asyncio.Future[Any]] = []
    async with engines.client(counter()) as (store, clock, client):
        handle = await client.start("count", 1, id="c")

        async def before(part: r.Commit) -> None:
            if writes(part, events.WorkflowCompleted) and not sent:
                starting = client.update_with_start("count", 2, id="c", update="add", with_args=(1,))
                sent.append(asyncio.ensure_future(starting))
                for _ in range(20):
                    await asyncio.sleep(0)

        async with engines.serve(Interposed(store, before), clock, counter()) as env:
            await env.settle()
            await handle.signal("word", "end")
            assert await env.finish(handle.result()) == 1
            assert await env.finish(sent[0]) == 3
            assert await count_of(env) == 2


async def test_update_with_start_of_a_workflow_that_ends_without_the_handler_begins_one_run(engines: Engines) -> None:
    """The next one would end in the same way, and so on for ever."""
    registry = Registry()

    @registry.workflow
    async def quick(_ctx: Context) -> int:
        return 1

    async with engines.open(registry) as env:
        with raises(errors.NotFound, "closed (workflow_completed) before its handler started"):
            await env.finish(env.engine.update_with_start(quick, id="q", update="add"))
        assert len((await env.engine.list(name="quick")).instances) == 1


async def test_the_minute_begins_when_a_worker_first_runs_the_code(engines: Engines) -> None:
    """An update that waits in a queue longer than that still meets a handler that is registered late."""
    registry = Registry()

    @registry.activity
    async def prepare() -> None: ...

    @registry.workflow
    async def late(ctx: Context) -> None:
        await ctx.activity(prepare)

        @ctx.on_update("add")
        async def add() -> int:
            return 1

        await ctx.listen("end")

    async with engines.client(registry) as (store, clock, client):
        asked = asyncio.ensure_future(client.update_with_start(late, id="l", update="add"))
        for _ in range(5):
            await asyncio.sleep(0)
        clock.move_to(clock.now() + 120_000)
        async with engines.serve(store, clock, registry) as env:
            assert await env.finish(asked) == 1


async def test_a_wrong_update_with_start_begins_nothing(engines: Engines) -> None:
    """The name, the arguments and the options are looked at before anything is written."""
    async with engines.open(counter()) as env:
        wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"update": ""}, ValueError, "update name"),
            ({"update": "add", "with_args": "ab"}, TypeError, "with_args must be a list or tuple"),
            ({"update": "add", "with_args": [object()]}, errors.SerializationError, "arguments of update 'add'"),
            ({"update": "add", "update_id": ""}, ValueError, "update id"),
            ({"update": "add", "timeout": -1}, ValueError, "timeout"),
            ({"update": "add", "wit_args": [1]}, TypeError, "wit_args"),
            ({}, TypeError, "update"),
        ]
        for options, kind, text in wrong:
            with raises(kind, text):
                await env.engine.update_with_start("count", 0, id="c", **options)
        assert await count_of(env) == 0
        with raises(errors.UpdateRejected, "not positive"):
            await env.finish(env.engine.update_with_start("count", 0, id="c", update="add", with_args=[-1]))
        assert (await env.engine.handle("c").describe()).status is Status.RUNNING
