"""`engine.purge`: what is left of a chain, an update and a saga works on, and bad input is one clear error."""

from datetime import UTC, datetime

import pytest

from resurgam import Context, Engine, Registry, RetryPolicy, SyncEngine
from resurgam.errors import NotFound, StoreError
from resurgam.testing import Environment

registry = Registry()
LATER = datetime(2100, 1, 1, tzinfo=UTC)


@registry.activity(retry=RetryPolicy(max_attempts=1))
async def book(order: str) -> str:
    return f"booking of {order}"


@registry.activity(retry=RetryPolicy(max_attempts=1))
async def cancel(booking: str) -> None:
    if "stuck" in booking:
        raise RuntimeError("no answer")


@registry.workflow
async def sale(ctx: Context, order: str) -> str:
    return await ctx.activity(book, order)


@registry.workflow
async def trip(ctx: Context, order: str) -> None:
    async with ctx.saga() as saga:
        await saga.step(book, order, undo=cancel)
        raise ValueError("full")


@registry.workflow
async def counter(ctx: Context, number: int) -> int:
    @ctx.on_update("add")
    async def add(more: int) -> int:
        nonlocal number
        number += more
        return number

    await ctx.listen("next")
    ctx.continue_as_new(number)
    return number


@pytest.fixture(params=["memory://", "sqlite://"])
async def env(request):
    async with Environment(store=request.param, registry=registry) as env:
        yield env


async def test_a_handle_of_a_removed_generation_follows_those_that_are_kept(env):
    first = await env.start(counter, 1, id="c")
    for _ in range(10):
        await env.handle("c").signal("next")
        await env.advance(1)
    assert await env.engine.purge(before=env.now()) == 7
    with pytest.raises(NotFound):
        await env.handle("c", first.run_id).describe()
    await env.handle("c").update("add", 5)
    await env.handle("c").terminate("enough")
    with pytest.raises(Exception, match="enough"):
        await first.result()


async def test_an_update_is_not_run_again_though_generations_before_are_removed(env):
    await env.start(counter, 1, id="c")
    assert await env.handle("c").update("add", 5, id="once") == 6
    for _ in range(3):
        await env.handle("c").signal("next")
        await env.advance(1)
    await env.engine.purge(before=env.now())
    assert await env.handle("c").update("add", 5, id="once") == 6
    assert await env.handle("c").update("add", 0) == 6


async def test_a_step_that_was_taken_back_by_hand_is_not_taken_back_twice_after_a_purge(env):
    handle = await env.start(trip, "stuck", id="trip")
    env.mock(cancel, returns=None)
    await env.advance(1)
    await env.finish((await handle.compensate("{1}")).result())
    await env.advance(1)
    assert await env.engine.purge(before=env.now(), status="completed") == 0
    assert (await handle.describe()).uncompensated == ()
    assert await env.engine.purge(before=env.now()) == 2


def test_the_sync_engine_purges_too():
    with SyncEngine("memory://", registry=registry) as engine:
        engine.execute(sale, "a")
        assert engine.purge(before=LATER) == 1
        assert engine.list().instances == ()


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"before": "yesterday"}, TypeError, "before must be a datetime, got 'yesterday'"),
        ({"before": datetime(2030, 1, 1)}, ValueError, "before must have a time zone, got 2030-01-01T00:00:00"),  # noqa: DTZ001
        ({"status": "running"}, ValueError, r"status must be that of a closed run \(completed, .*got 'running'"),
        ({"name": ""}, ValueError, "name"),
    ],
)
async def test_what_purge_cannot_do_is_one_clear_error(options, kind, text):
    async with Engine(worker=False) as engine:
        with pytest.raises(kind, match=text):
            await engine.purge(**{"before": LATER, **options})
    with pytest.raises(StoreError, match="not open"):
        await engine.purge(before=LATER)
