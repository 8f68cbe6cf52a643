"""The public types, pinned: checked by mypy --strict and basedpyright, never run.

A line that must not type-check carries an ignore for each checker; both complain if the ignore is not needed.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any, assert_type
from uuid import UUID

from resurgam import (
    Break,
    Context,
    Continue,
    Engine,
    Event,
    Handle,
    Location,
    Registry,
    RetryPolicy,
    SyncEngine,
    SyncHandle,
    activity,
    workflow,
)
from resurgam.client.pending import PendingWork
from resurgam.store.records import Arrival, LiveWorker, Page
from resurgam.testing import Environment, crash_everywhere, replay


@dataclass
class Order:
    id: str
    cents: int


@activity
async def charge(order: Order, note: str = "") -> str:
    return order.id + note


@activity(retry=RetryPolicy(max_attempts=3), timeout=30)
def total(orders: list[Order]) -> int:
    return sum(order.cents for order in orders)


@activity(queue="gpu")
async def render(order: Order) -> bytes:
    return b""


@activity(executor="process", timeout=60)
def crunch(order: Order) -> float:
    return order.cents / 7


@activity(start_timeout=5, heartbeat_timeout=timedelta(seconds=10))
def copy(rows: int) -> int:
    info = activity.info()
    assert_type(info.idempotency_key, str)
    assert_type(info.attempt, int)
    first: int = info.details or 0
    for row in range(first, rows):
        assert_type(activity.heartbeat(row), None)
        assert_type(activity.cancelled(), bool)
    activity.heartbeat()
    return rows


activity(heartbeat_timeout="5")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
activity(heartbeat=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
activity(executor="fiber")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


@workflow
async def checkout(ctx: Context, order: Order) -> str:
    assert_type(await ctx.activity(charge, order), str)
    assert_type(await ctx.activity(charge, order, note="x"), str)
    assert_type(await ctx.activity(total, [order]), int)
    assert_type(await ctx.activity(render, order), bytes)
    assert_type(await ctx.activity(total.options(queue="slow", timeout=timedelta(minutes=1)), [order]), int)
    assert_type(await ctx.activity(activity.ref("charge", returns=str), order), str)
    assert_type(await ctx.activity("charge", order, 1), Any)
    assert_type(await ctx.v(2).activity(order.id), Any)
    ctx.activity("charge", note="x")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert_type(await ctx.activity(crunch, order), float)
    assert_type(await ctx.activity(total.options(executor="process"), [order]), int)
    assert_type(await ctx.activity(copy.options(start_timeout=1, heartbeat_timeout=timedelta(hours=1)), 3), int)
    total.options(executor="fiber")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    ctx.activity(charge, 1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    ctx.activity(charge)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    ctx.activity(charge, order, timeout=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

    both = await asyncio.gather(ctx.activity(charge, order), ctx.activity(total, [order]))
    assert_type(both, tuple[str, int])
    async with asyncio.TaskGroup():
        pass
    assert_type(await ctx.sleep(1), None)
    assert_type(await ctx.sleep_until(datetime.fromisoformat("2030-01-01T00:00:00+00:00")), None)
    assert_type(await ctx.listen("approve", type=bool), bool)
    assert_type(await ctx.listen("approve", type=bool, timeout=3600), bool)
    assert_type(await ctx.listen("yes", "no", type=int), tuple[str, int])
    assert_type(await ctx.run(pick, 3, "a"), list[str])
    assert_type(await ctx.run(fetch, 3), float)
    ctx.run(pick, "a", 3)  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert_type(await ctx.branch(part, 3), str)
    ctx.branch(part, "3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await ctx.race(ctx.activity(charge, order), ctx.activity(charge, order)), tuple[int, str])
    assert_type(await ctx.until(lambda: True), None)
    assert_type(await ctx.v(2).activity(charge, order), str)
    with ctx.v(2):
        assert_type(await ctx.v(3).sleep(1), None)
    assert_type(await ctx.removed.activity("gone"), None)
    assert_type(await ctx.removed.activity(charge), None)
    assert_type(await ctx.check_version(2, "faster"), int)
    assert_type(await ctx.map(render, [order], key=lambda one: one.id, limit=3), list[bytes])
    assert_type(await ctx.map(part, range(3)), list[str])
    ctx.map(part, ["3"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert_type(await ctx.loop(counting, 1, forget_every=None), str)
    ctx.loop(counting, "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(ctx.set("k", 1), None)
    assert_type(ctx.clear("k"), None)
    assert_type(ctx.now(), datetime)
    assert_type(ctx.random, Random)
    assert_type(ctx.uuid4(), UUID)
    assert_type(ctx.info.attempt, int)
    return order.id


@workflow(name="other", queue="slow")
async def other(ctx: Context) -> dict[str, int]:
    return {}


def pick(count: int, of: str) -> list[str]:
    return [of] * count


async def fetch(count: int) -> float:
    return float(count)


async def counting(ctx: Context, number: int) -> Continue[int] | Break[str]:
    return Break("enough") if number > 3 else Continue(number + 1)


@workflow(matching="sequence", late_new="warn", orphans="cancel", input_check="strict", on_divergence="block")
async def strict(ctx: Context) -> None:
    pass


workflow(matching="guess")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


async def part(ctx: Context, count: int) -> str:
    return str(count)


async def running() -> None:
    async with Engine("memory://", queues=("default", "slow")) as engine:
        handle = await engine.start(checkout, Order("o-1", 1), id="o-1", tags={"shop": "a"})
        assert_type(handle, Handle[str])
        assert_type(await handle.result(), str)
        assert_type(await handle.result(timeout=5), str)
        assert_type(await engine.execute(other), dict[str, int])
        assert_type(await engine.execute(workflow.ref("elsewhere", returns=int), 1, 2), int)
        await engine.start("by name", 1, 2)
        assert_type(
            await engine.start(checkout.options(queue="eu", timeout=timedelta(hours=1)), Order("o-1", 1)), Handle[str]
        )
        assert_type(await engine.execute(checkout.options(retry=RetryPolicy()), Order("o-1", 1)), str)
        await engine.start(checkout, Order("o-1", 1), timeout=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
        await engine.start(checkout, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
        await engine.start(checkout)  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportArgumentType, reportCallIssue]
        await engine.start(checkout, Order("o-1", 1), delay=timedelta(hours=1), if_exists="replace")
        await engine.execute(other, delay=5, if_exists="attach")
        await engine.start(other, if_exists="maybe")  # type: ignore[call-overload, call-arg]  # pyright: ignore[reportArgumentType, reportCallIssue]
        told = await engine.signal_with_start(checkout, Order("o-1", 1), id="o-1", signal="approve", value=True)
        assert_type(told, Handle[str])
        ref = workflow.ref("elsewhere", returns=int)
        assert_type(await engine.signal_with_start(ref, 1, id="o-2", signal="go", signal_id="once"), Handle[int])
        await engine.signal_with_start(other, signal="go")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
        await engine.signal_with_start(checkout, 3, id="o-1", signal="go")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
        assert_type(await engine.resolve("p-1", Order("o-1", 1)), bool)
        assert_type(await engine.reject("p-1", ValueError("no")), bool)
        await engine.reject("p-1", 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        async for message in engine.subscribe("news"):
            assert_type(message, Any)
        assert_type((await engine.list(parent="o-1")).cursor, str | None)
        assert_type(await engine.list(failure="ValueError", newest_only=True), Page)
        assert_type(await engine.workers(), list[LiveWorker])
        await engine.list(kind="catalog")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await engine.list(since="2h")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await handle.signal("approve", True)
        assert_type(await handle.query("total", 1, timeout=5), Any)
        assert_type(await handle.update("add", Order("o-1", 1), id="once", timeout=timedelta(minutes=1)), Any)
        await handle.update("add", id=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
        assert_type(await handle.resolve("pay", 1), bool)
        assert_type(await handle.reject("pay", "no"), bool)
        assert_type(await handle.pause(tree=True, reason="lunch"), None)
        await handle.pause(True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        assert_type(await handle.resume(), None)
        assert_type(await handle.begin(), None)
        assert_type(await handle.retry(), int)
        history = await handle.history()
        assert_type(history, list[Event])
        assert_type(await handle.history(forgotten=True), list[Event])
        assert_type(history[0].location, Location | None)
        found = await handle.describe()
        assert_type(found.pending, tuple[PendingWork, ...])
        assert_type(found.state, dict[str, Any])
        assert_type(found.deactivated, bool)
        assert_type(found.begins_at, datetime | None)
        assert_type(found.previous, str | None)
        if found.parent is not None:
            assert_type(found.parent.location, Location)
        lines = await engine.export("o-1", handle.run_id)
        assert_type(lines, list[str])
        arrivals = await engine.import_(lines)
        assert_type(arrivals, list[Arrival])
        assert_type(arrivals[0].new, bool)
        await engine.import_([1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
        await replay(checkout, lines)
        assert_type(await engine.purge(before=found.created_at, status="failed", name="checkout"), int)
        await engine.purge(before=30)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await engine.purge()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def waiting() -> None:
    with SyncEngine("memory://", queues=("default", "slow"), grace=1, retain=timedelta(days=30)) as engine:
        handle = engine.start(checkout, Order("o-1", 1), id="o-1", tags={"shop": "a"})
        assert_type(handle, SyncHandle[str])
        assert_type(handle.result(), str)
        assert_type(handle.result(timeout=5), str)
        assert_type(handle.entity_id, str)
        assert_type(engine.execute(other, queue="slow"), dict[str, int])
        assert_type(engine.execute(workflow.ref("elsewhere", returns=int), 1, 2), int)
        assert_type(engine.start(workflow.ref("elsewhere", returns=int), 1, 2), SyncHandle[int])
        engine.start("by name", 1, 2)
        engine.start(checkout, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
        engine.start(checkout)  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportArgumentType, reportCallIssue]
        engine.start(checkout, Order("o-2", 1), id=2)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
        assert_type(handle.signal("approve", True, id="once"), None)
        handle.signal(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        handle.result(within=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        assert_type(handle.history(), list[Event])
        assert_type(handle.history(forgotten=True), list[Event])
        assert_type(handle.describe().deactivated, bool)
        assert_type(handle.retry(), int)
        told = engine.signal_with_start(checkout, Order("o-1", 1), id="o-1", signal="approve", value=True)
        assert_type(told, SyncHandle[str])
        engine.signal_with_start(other, signal="go")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
        assert_type(engine.resolve("p-1", 1), bool)
        assert_type(engine.reject("p-1", "no"), bool)
        for message in engine.subscribe("news"):
            assert_type(message, Any)
        assert_type(handle.query("total", 1, timeout=5), Any)
        assert_type(handle.update("add", 1, id="once"), Any)
        assert_type(handle.resolve("pay", 1), bool)
        assert_type(handle.pause(tree=True), None)
        handle.pause(tree="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert_type(handle.resume(), None)
        assert_type(handle.begin(), None)
        assert_type(engine.handle("o-1").result(), Any)
        assert_type(engine.list(status="running", kind="flow", limit=3).cursor, str | None)
        assert_type(engine.workers(), list[LiveWorker])
        engine.list(limit="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert_type(engine.export("o-1"), list[str])
        assert_type(engine.import_([""]), list[Arrival])
        assert_type(engine.purge(before=handle.describe().created_at), int)
        assert_type(engine.run(), None)
    SyncEngine(queue="slow")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SyncEngine(worker="no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def testing() -> None:
    async with Environment() as env:
        env.mock(charge, returns="r-1")
        assert_type(await env.start(checkout, Order("o-1", 1)), Handle[str])
        assert_type(await env.signal_with_start(checkout, Order("o-1", 1), id="o-1", signal="go"), Handle[str])
        await env.advance(timedelta(days=2))
    report = await replay(checkout, "")
    assert_type(report.result, Any)
    await crash_everywhere(checkout, Order("o-1", 1), mocks={charge: "r-1"}, promises={"paid": True})


def registries() -> None:
    registry = Registry()

    @registry.activity
    async def local(count: int) -> int:
        return count

    called: Coroutine[Any, Any, int] = local(3)
    called.close()
    assert_type(total([]), int)

    @registry.workflow
    async def uses(ctx: Context) -> int:
        return await ctx.activity(local, 3)

    @registry.workflow  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async def without_context(count: int) -> int:
        return count
