"""The types of context verbs that reach other workflows and clients, pinned as in `api.py`."""

from dataclasses import dataclass
from typing import Any, Literal, assert_type

from resurgam import Context, RetryPolicy, activity, workflow
from resurgam.core.event import Parent
from resurgam.runtime.context.children import Child
from resurgam.runtime.context.messaging import Promise


@dataclass
class Order:
    id: str


@activity
async def book(order: Order, seats: int) -> str:
    return order.id * seats


@activity
def ship(order: Order) -> int:
    return len(order.id)


@activity
async def cancel(booking: str) -> None: ...


@activity
async def recall(parcel: int) -> None: ...


@workflow
async def child(ctx: Context, order: Order) -> int:
    return len(order.id)


@workflow(retry=RetryPolicy(max_attempts=3), timeout=60)
async def parent(ctx: Context, order: Order) -> str:
    ctx.tag(stage="paid", hold=None)
    ctx.v(2).tag(stage="paid")
    ctx.tag(stage=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    begun = ctx.workflow(child, order, id="c", queue="q", on_parent_close="abandon")
    assert_type(begun, Child[int])
    assert_type(await begun, int)
    assert_type(await begun.started, str)
    assert_type(begun.entity_id, str)
    await begun.signal("go", 1)
    assert_type(await ctx.workflow(workflow.ref("other", returns=list[str]), 1, 2), list[str])
    assert_type(await ctx.workflow("other", 1), Any)
    assert_type(await ctx.flow(["ship"], {"order": order}, id="f", on_parent_close="abandon"), dict[str, Any])
    assert_type(await ctx.v(2).flow(["ship"]), dict[str, Any])
    ctx.flow(["ship"], deferred=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_type(await ctx.v(2).workflow(child, order), int)
    assert_type(await ctx.workflow(child.options(retry=RetryPolicy(max_attempts=2), timeout=5), order), int)
    assert_type(await ctx.workflow(workflow.ref("other", returns=int).options(queue="q"), 1), int)
    ctx.workflow(child.options(timeout=5), 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    child.options(matching="sequence")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    child.options(retry=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ctx.workflow(child, order, timeout=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    ctx.workflow(child, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    ctx.workflow(child)  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportArgumentType, reportCallIssue]
    ctx.workflow(child, order, on_parent_close="forget")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert_type(ctx.info.parent, Parent | None)
    return "x"


@workflow
async def talking(ctx: Context) -> None:
    assert_type(ctx.promise("p", type=int), Promise[int])
    assert_type(await ctx.promise("p", type=int, timeout=5), int)
    assert_type(ctx.promise("p").promise_id, str)
    assert_type(await ctx.resolve("id", 1), bool)
    assert_type(await ctx.listen_many("a", limit=3, type=int), list[int])
    assert_type(await ctx.listen_many("a", "b", limit=3, type=int), list[tuple[str, int]])
    assert_type(await ctx.listen("a", type=int | None), int | None)
    assert_type(await ctx.listen_many("a", limit=3, type=Literal["x", "y"]), list[Literal["x", "y"]])
    assert_type(await ctx.promise("p", type=Order | None), Order | None)
    assert_type(await ctx.activity(activity.ref("find", returns=Order | None)), Order | None)
    assert_type(await ctx.workflow(workflow.ref("find", returns=Order | None)), Order | None)
    assert_type(await ctx.listen("a"), Any)
    assert_type(await ctx.promise("p"), Any)
    heard: str = await ctx.listen("a", type=int)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    ctx.listen("a", type=heard)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    assert_type(await ctx.signal("e", "s", 1), None)
    assert_type(await ctx.publish("t", 1), None)
    ctx.listen_many("a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    ctx.promise(name=1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]

    assert_type(await ctx.handlers_finished(), None)

    @ctx.on_update("add", validator=lambda n: None, one_at_a_time=True)
    async def add(n: int) -> int:
        return n

    assert_type(await add(3), int)


@workflow
async def saga(ctx: Context, order: Order) -> str:
    async with ctx.saga() as trip:
        assert_type(await trip.step(book, order, 2, undo=cancel), str)
        assert_type(await trip.step(ship, order, undo=recall, undo_on_unknown=True), int)
        assert_type(await trip.step(activity.ref("pay", returns=float), order), float)
        assert_type(await trip.step("pay", order), Any)
        await trip.step(book, order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
        await trip.step(book, order, 2, undo=recall)  # type: ignore[call-arg, misc]  # pyright: ignore[reportArgumentType, reportCallIssue]
    return ctx.continue_as_new(order)
