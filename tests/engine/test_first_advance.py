"""The first advance of a start, which the engine's own worker makes before the start is stored."""

import asyncio
from contextvars import ContextVar

import pytest

from resurgam.core import errors
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from support.engines import Engines, run, types_of

CALLER: ContextVar[str] = ContextVar("CALLER", default="default")


async def test_a_start_with_a_used_id_leaves_no_trace_of_its_first_advance(engines: Engines) -> None:
    """Its activity is not run, and the slot that was reserved for it is free again."""
    registry = Registry()
    ran: list[str] = []

    @registry.activity
    async def note(word: str) -> str:
        ran.append(word)
        return word

    @registry.workflow
    async def order(ctx: Context, word: str) -> str:
        noted = await ctx.activity(note, word)
        return noted + await ctx.listen("more", type=str)

    async with engines.open(registry, max_activities=1) as env:
        first = await env.start(order, "one", id="order")
        await env.settle()
        before = await types_of(first)
        for _ in range(3):
            with pytest.raises(errors.AlreadyExists):
                await env.start(order, "two", id="order")
            attached = await env.start(order, "three", id="order", if_exists="attach")
        await env.settle()
        assert (ran, await types_of(first)) == (["one"], before)
        await first.signal("more", "!")
        assert await env.finish(attached.result()) == "one!"
        other = await env.start(order, "four")
        await other.signal("more", "!")
        assert await env.finish(other.result()) == "four!"


async def test_clean_up_of_a_discarded_first_advance_makes_no_durable_call(engines: Engines) -> None:
    registry = Registry()
    ran: list[str] = []

    @registry.activity
    async def note(word: str) -> None:
        ran.append(word)

    @registry.workflow
    async def order(ctx: Context) -> None:
        try:
            await ctx.listen("never")
        finally:
            await ctx.activity(note, "clean-up")

    async with engines.open(registry) as env:
        handle = await env.start(order, id="order")
        with pytest.raises(errors.AlreadyExists):
            await env.start(order, id="order")
        await env.settle()
        assert ran == []
        assert await types_of(handle) == ["workflow_started", "listen_started"]


async def test_attempts_do_not_see_the_context_of_the_call_that_started_them(engines: Engines) -> None:
    """Not that of a start, whose first advance schedules them, nor that of the workflow's code."""
    registry = Registry()

    @registry.activity
    async def caller() -> str:
        await asyncio.sleep(0)
        return CALLER.get()

    @registry.activity
    def in_a_thread() -> str:
        return CALLER.get()

    @registry.workflow
    async def order(ctx: Context) -> list[str]:
        CALLER.set("workflow")
        return [await ctx.activity(caller), await ctx.activity(in_a_thread), await ctx.activity(caller)]

    async with engines.open(registry) as env:
        CALLER.set("client")
        assert await run(env, order) == ["default"] * 3
