"""The types of handles and of what they answer, pinned as in `api.py`."""

from dataclasses import dataclass
from typing import Any, Literal, assert_type

from resurgam import Context, Engine, Handle, SyncEngine, SyncHandle, workflow
from resurgam.client.tree import Tree
from resurgam.client.update import UpdateHandle
from resurgam.sync import SyncUpdateHandle
from resurgam.testing import Environment


@dataclass
class Order:
    id: str


@dataclass
class Receipt:
    cents: int


@workflow
async def checkout(ctx: Context, order: Order) -> Receipt:
    return Receipt(len(order.id))


async def typed_by_a_workflow() -> None:
    async with Engine() as engine, Environment() as env:
        handle = engine.handle("o-1", workflow=checkout)
        assert_type(handle, Handle[Receipt])
        assert_type(await handle.result(), Receipt)
        assert_type(await handle.tree(), Tree)
        assert_type(engine.handle("o-1", "r-1", execution_id="x-1", workflow=checkout), Handle[Receipt])
        assert_type(engine.handle("o-1", workflow=workflow.ref("elsewhere", returns=int)), Handle[int])
        assert_type(engine.handle("o-1", workflow="checkout"), Handle[Any])
        assert_type(engine.handle("o-1", execution_id="x-1"), Handle[Any])
        assert_type(env.handle("o-1", workflow=checkout), Handle[Receipt])
        engine.handle("o-1", "r-1", "x-1")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
        engine.handle("o-1", workflow=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


def typed_without_a_loop() -> None:
    with SyncEngine() as engine:
        assert_type(engine.handle("o-1", workflow=checkout), SyncHandle[Receipt])
        assert_type(engine.handle("o-1", workflow=checkout).result(), Receipt)
        assert_type(engine.handle("o-1", execution_id="x-1").result(), Any)
        assert_type(engine.handle("o-1").tree(), Tree)
        engine.handle("o-1", workflow=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


async def typed_answers(handle: Handle[Receipt]) -> None:
    assert_type(await handle.query("orders"), Any)
    assert_type(await handle.query("orders", 1, type=list[Order], timeout=5), list[Order])
    assert_type(await handle.query("last", type=Order | None), Order | None)
    assert_type(await handle.update("add", Order("o-1")), Any)
    assert_type(await handle.update("add", Order("o-1"), type=Order, id="once"), Order)
    assert_type(await handle.update("add", wait="completed", timeout=5), Any)
    assert_type(await handle.update("add", wait="accepted"), UpdateHandle[Any])
    begun = await handle.update("add", type=Order, wait="accepted", id="once")
    assert_type(begun, UpdateHandle[Order])
    assert_type(await begun.result(timeout=5), Order)
    await handle.update("add", wait="begun")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert_type(await handle.state("last"), Any)
    assert_type(await handle.state("last", Order("none")), Any)
    assert_type(await handle.state("last", type=Order), Order | None)
    assert_type(await handle.state("last", Order("none"), type=Order), Order)
    assert_type(await handle.state("count", 0, type=int), int)
    assert_type(await handle.state("last", 0, type=Literal["a", "b"]), Literal["a", "b"] | int)
    count: str = await handle.query("count", type=int)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    total: int = await handle.state("total", type=int)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    await handle.query("count", count, total, timeout="5")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await handle.query("count", type=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await handle.query(5, type=int)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


def typed_answers_without_a_loop(handle: SyncHandle[Receipt]) -> None:
    assert_type(handle.query("orders"), Any)
    assert_type(handle.query("orders", 1, type=list[Order], timeout=5), list[Order])
    assert_type(handle.update("add", Order("o-1")), Any)
    assert_type(handle.update("add", Order("o-1"), type=Order, id="once"), Order)
    assert_type(handle.update("add", type=Order, wait="accepted"), SyncUpdateHandle[Order])
    assert_type(handle.update("add", wait="accepted").result(), Any)
    assert_type(handle.state("last"), Any)
    assert_type(handle.state("last", type=Order), Order | None)
    assert_type(handle.state("count", 0, type=int), int)
    handle.update("add", id=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


async def typed_updates_with_start(engine: Engine, shop: SyncEngine) -> None:
    assert_type(await engine.update_with_start(checkout, Order("o-1"), id="o-1", update="add"), Any)
    sent = await engine.update_with_start(
        checkout, Order("o-1"), id="o-1", update="add", with_args=[1, "x"], type=Order, update_id="once", timeout=5
    )
    assert_type(sent, Order)
    assert_type(await engine.update_with_start("checkout", 1, id="o-1", update="add", type=int | None), int | None)
    assert_type(shop.update_with_start(checkout, Order("o-1"), id="o-1", update="add"), Any)
    assert_type(shop.update_with_start("checkout", 1, id="o-1", update="add", type=int), int)
    await engine.update_with_start(checkout, 5, id="o-1", update="add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await engine.update_with_start("checkout", id="o-1")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
