"""Answers are decoded as ``type=``, else by the handler's annotation if its code is registered, else as plain JSON."""

from dataclasses import dataclass

import pytest

from resurgam import Context, Registry, errors
from resurgam.testing import Environment


@dataclass
class Order:
    id: str
    cents: int


@dataclass
class Priced:
    cents: str


registry = Registry()


@registry.workflow
async def desk(ctx: Context, kind: str = "orders") -> int:
    orders: list[Order] = [Order("a", 1)]
    ctx.set("last", Order("a", 1))

    @ctx.on_query("orders")
    def show() -> list[Order]:
        return orders

    @ctx.on_query("plain")
    def plain():
        return orders[0]

    @ctx.on_query("wrong")
    def wrong() -> int:
        return "five"  # type: ignore[return-value]

    if kind == "orders":

        @ctx.on_update("add")
        async def add(order: Order) -> Order:
            orders.append(order)
            ctx.set("last", order)
            return order

    elif kind == "counts":

        @ctx.on_update("add")
        async def count(order: Order) -> int:
            orders.append(order)
            return len(orders)

    else:

        @ctx.on_update("add")
        async def total(order: Order) -> float:
            orders.append(order)
            return sum(order.cents for order in orders)

    return await ctx.listen("close", type=int)


@pytest.fixture
async def env():
    async with Environment(registry=registry) as env:
        yield env


@pytest.fixture
async def elsewhere(env):
    """A client of the same store that has no code."""
    async with Environment(store=env.engine.store, registry=Registry(), clock=env.clock, worker=False) as client:
        yield client


async def test_a_query_answered_here_is_read_by_the_annotation_of_its_handler(env):
    handle = await env.start(desk)
    assert await handle.query("orders") == [Order("a", 1)]
    assert await handle.query("plain") == {"id": "a", "cents": 1}
    assert await handle.query("plain", type=Order) == Order("a", 1)
    assert await handle.query("plain", type=Order | None) == Order("a", 1)
    assert await handle.query("orders", type=list[dict[str, object]]) == [{"id": "a", "cents": 1}]


async def test_a_query_answered_elsewhere_is_plain_json_unless_a_type_is_given(env, elsewhere):
    handle = elsewhere.handle((await env.start(desk)).entity_id)
    assert await handle.query("orders") == [{"id": "a", "cents": 1}]
    assert await handle.query("orders", type=list[Order]) == [Order("a", 1)]


async def test_an_answer_that_does_not_fit_names_the_handler_and_the_field(env, elsewhere):
    handle = await env.start(desk)
    with pytest.raises(errors.SerializationError, match=r"answer to query 'orders'\[0\]: Expected int, got object"):
        await handle.query("orders", type=list[int])
    with pytest.raises(errors.SerializationError, match=r"result of update 'add'\.cents: Expected str, got int"):
        await env.finish(handle.update("add", Order("b", 2), type=Priced))
    with pytest.raises(errors.SerializationError, match=r"state 'last'\.cents: Expected str"):
        await handle.state("last", type=Priced)
    for asked in (handle, elsewhere.handle(handle.entity_id)):
        with pytest.raises(errors.SerializationError, match="answer to query 'wrong': Expected int"):
            await asked.query("wrong")


async def test_a_type_that_cannot_be_read_is_refused_before_anything_is_sent(env):
    handle = await env.start(desk)
    for verb, what in ((handle.query, "query 'add'"), (handle.update, "update 'add'"), (handle.state, "state 'add'")):
        with pytest.raises(errors.SerializationError, match=f"{what}, type=int: Type ''int'' is not supported"):
            await verb("add", type="int")
    assert await handle.query("orders") == [Order("a", 1)]


async def test_an_update_is_read_by_the_annotation_of_its_handler(env, elsewhere):
    handle = await env.start(desk)
    assert await env.finish(handle.update("add", Order("b", 2), id="once")) == Order("b", 2)
    without_code = elsewhere.handle(handle.entity_id)
    assert await without_code.update("add", Order("b", 2), id="once") == {"id": "b", "cents": 2}
    assert await without_code.update("add", Order("b", 2), id="once", type=Order) == Order("b", 2)


async def test_a_client_learns_the_annotation_of_an_update_from_the_history(env):
    handle = await env.start(desk)
    await env.finish(handle.update("add", Order("b", 2), id="once"))
    desk.update_results.clear()  # as in a process in which no run has registered the handler
    assert await handle.update("add", Order("b", 2), id="once") == Order("b", 2)


async def test_handlers_of_one_name_may_differ_from_run_to_run(env):
    orders, counts, sums = await env.start(desk), await env.start(desk, "counts"), await env.start(desk, "sums")
    for _ in range(2):
        assert await env.finish(orders.update("add", Order("b", 2))) == Order("b", 2)
        for run, kind in ((counts, int), (sums, float)):
            assert type(await env.finish(run.update("add", Order("b", 2)))) is kind


async def test_a_state_is_read_as_the_type_that_is_given(env):
    handle = await env.start(desk)
    assert await handle.state("last") == {"id": "a", "cents": 1}
    assert await handle.state("last", type=Order) == Order("a", 1)
    assert await handle.state("nothing", Order("none", 0), type=Order) == Order("none", 0)
    assert await handle.state("nothing", type=Order) is None
