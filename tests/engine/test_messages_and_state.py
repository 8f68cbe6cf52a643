"""Messages, which each subscriber gets at most once, and the state, which any client may read."""

import asyncio
from typing import Any

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.engine import Engine
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.testing.contract.bench import raises
from support.engines import TWICE, Engines, types_of


def newspaper() -> Registry:
    """Return the code of a workflow that publishes as many numbers as it is told to, a second apart."""
    registry = Registry()

    @registry.workflow
    async def publish(ctx: Context, count: int) -> None:
        for number in range(count):
            await ctx.publish("news", {"number": number})
            ctx.publish("other", number)
            await ctx.sleep(1)

    return registry


async def test_messages_are_heard_once_by_each_who_listens(engines: Engines) -> None:
    """In order, from the moment of subscribing, without repetition on replay; nothing is kept of listeners."""
    async with engines.open(newspaper()) as env:
        async with env.engine.subscribe("news") as early, env.engine.subscribe("silent") as silent:
            handle = await env.start("publish", 5)
            async with env.engine.subscribe("news") as late:
                heard: dict[str, list[int]] = {"early": [], "late": []}

                async def listen(name: str, subscription: Any) -> None:
                    async for message in subscription:
                        heard[name].append(message["number"])

                tasks = [asyncio.ensure_future(listen(*each)) for each in (("early", early), ("late", late))]
                nothing = asyncio.ensure_future(anext(silent))
                await env.finish(handle.result())
                await env.settle()
                for task in (*tasks, nothing):
                    task.cancel()
                await asyncio.gather(*tasks, nothing, return_exceptions=True)
        assert heard == {"early": [0, 1, 2, 3, 4], "late": [1, 2, 3, 4]}
        assert nothing.cancelled()
        published = [e for e in await handle.history() if isinstance(e, events.MessagePublished)]
        assert [message.name for message in published] == ["news", "other"] * 5


async def test_messages_reach_another_engine(engines: Engines) -> None:
    """A client of its own on the same store hears what a worker's workflows publish."""
    async with engines.client(newspaper()) as (store, clock, client):
        other = Engine(store, registry=Registry(), clock=clock, worker=False)
        async with other, other.subscribe("news") as news:
            handle = await client.start("publish", 2)
            async with engines.serve(store, clock, newspaper()) as env:
                await env.finish(handle.result())
            assert [await anext(news), await anext(news)] == [{"number": 0}, {"number": 1}]


async def test_a_message_that_cannot_be_recorded_is_not_sent(engines: Engines) -> None:
    """Unserialisable, too large, or without a topic: an error at the call, and no place is taken."""
    registry = Registry()

    @registry.workflow
    async def clumsy(ctx: Context) -> list[str]:
        told: list[str] = []
        given: list[tuple[Any, Any]] = [("news", object()), ("news", "x" * 2000), ("", 1), (None, 1)]
        for topic, value in given:
            try:
                ctx.publish(topic, value)
            except (errors.SerializationError, ValueError) as error:
                told.append(type(error).__name__)
        return told

    async with engines.open(registry, max_payload=1000) as env:
        handle = await env.start(clumsy)
        assert await env.finish(handle.result()) == [
            *("SerializationError", "PayloadTooLarge", "ValueError", "ValueError"),
        ]
        assert "message_published" not in await types_of(handle)
        with raises(ValueError, "topic"):
            env.engine.subscribe("")


async def test_state_is_read_without_a_worker(engines: Engines) -> None:
    """While no worker runs, of a closed run, and under unknown names."""
    registry = Registry()

    @registry.workflow
    async def keep(ctx: Context) -> None:
        ctx.set("list", [1, {"a": None}])
        ctx.set("none", None)
        ctx.set("gone", 1)
        ctx.clear("gone")
        await ctx.listen("go")
        ctx.set("list", "other")

    async with engines.client(Registry()) as (store, clock, client):
        handle = await client.start("keep")
        assert await handle.state("list", "not yet") == "not yet"
        async with engines.serve(store, clock, registry) as env:
            await env.settle()
        assert await handle.state("list") == [1, {"a": None}]
        assert await handle.state("none", "default") is None
        assert await handle.state("gone", "default") == "default"
        with raises(ValueError, "state"):
            await handle.state("")
        await handle.signal("go")
        async with engines.serve(store, clock, registry) as env:
            await env.finish(handle.result())
        assert await handle.state("list") == "other"


async def test_a_retry_does_not_publish_a_message_again(engines: Engines) -> None:

    registry = Registry()

    @registry.workflow(retry=TWICE)
    async def speaker(ctx: Context) -> None:
        await ctx.publish("news", 1)
        if ctx.info.attempt == 1:
            raise LookupError("once")

    async with engines.open(registry) as env:
        heard: list[Any] = []

        async def hear() -> None:
            async for value in env.engine.subscribe("news"):
                heard.append(value)

        hearing = asyncio.ensure_future(hear())
        await env.settle()
        handle = await env.start(speaker)
        await env.finish(handle.result())
        await env.settle()
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
        assert len(heard) == 1
