"""The types of handles and of what they answer, pinned as in `api.py`."""

from dataclasses import dataclass
from typing import Any, assert_type

from resurgam import Context, Engine, Handle, SyncEngine, SyncHandle, workflow
from resurgam.client.structure import Tree
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
