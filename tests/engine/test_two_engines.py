"""One of two engines on a store dies, closes or starts again: what the other holds, and what only waits, is left alone."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest

from resurgam.engine import Engine
from resurgam.flows import HttpStep
from resurgam.flows.model import Step
from resurgam.flows.services import PUBLIC_URL
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.info import activity_info
from resurgam.runtime.registry import Registry
from resurgam.store.protocol import Store
from resurgam.testing.clock import ManualClock
from resurgam.testing.contract.bench import LEASE
from resurgam.testing.environment import Environment
from support.dying import Dying, doomed, kill
from support.dying import settle as settle_worker
from support.engines import Engines, settle, types
from support.services import PUBLIC, FakeServices, answer, answers, kinds, service

DEADLINE = 600
ENDS = pytest.mark.parametrize("end", ["dies", "closes", "starts again"])
PAY = HttpStep("pay", service("pay"), outputs=["receipt"], asynchronous=True, deadline=DEADLINE)
PRICE = HttpStep("price", service("price"), outputs=["total"])


class TwoEngines:
    """Two engines on one store: *client* serves nothing, the *second* one stays, the first ends by `end`."""

    def __init__(self, engines: Engines, registry: Registry, services: FakeServices, stack: AsyncExitStack) -> None:
        self._engines = engines
        self._registry = registry
        self._services = services
        self._stack = stack
        self.clock = ManualClock()
        self.store: Store
        self.client: Engine
        self.second: Environment

    async def open(self, *steps: Step) -> None:
        """Open the store, and the client."""
        self.store = await self._stack.enter_async_context(self._engines.open_store(self.clock))
        made = Engine(self.store, registry=self._registry, clock=self.clock, worker=False)
        self.client = await self._stack.enter_async_context(made)
        await self.store.values.put(PUBLIC_URL, PUBLIC.encode())
        for one in steps:
            await self.client.register_step(one)

    async def open_first(self, end: str, **options: Any) -> Callable[[], Awaitable[None]]:
        """Open the first engine, and let it do what it can; return how it ends, and perhaps starts again."""
        given: dict[str, Any] = {"outbound": self._services.outbound, **options}
        if end == "dies":
            dying = Dying(self.store)
            worker = await self._stack.enter_async_context(
                doomed(self._engines, dying, self.clock, self._registry, **given)
            )
            await settle_worker(worker)

            async def die() -> None:
                kill(worker, dying)

            return die
        opened = AsyncExitStack()
        env = await opened.enter_async_context(self.serve(grace=0, **given))
        await env.settle()

        async def close() -> None:
            await opened.aclose()
            if end == "starts again":
                await self._stack.enter_async_context(self.serve(**given))

        return close

    async def open_second(self) -> Environment:
        """Open the engine that stays."""
        self.second = await self._stack.enter_async_context(self.serve(outbound=self._services.outbound))
        await self.second.settle()
        return self.second

    def serve(self, **options: Any) -> Any:
        """Open an engine on the store."""
        return self._engines.serve(self.store, self.clock, self._registry, **options)


@ENDS
async def test_steps_that_wait_for_their_webhook_are_not_called_again(engines: Engines, end: str) -> None:
    """Neither by the engine beside the one that has called them, nor by one that starts; their answers count."""
    services = FakeServices(pay=answers(202))
    ids = [f"flow-{number}" for number in range(3)]
    async with AsyncExitStack() as stack:
        two = TwoEngines(engines, Registry(), services, stack)
        await two.open(PAY)
        for entity_id in ids:
            await two.client.start_flow(["pay"], id=entity_id)
        end_first = await two.open_first(end)
        assert len(services.calls) == 3
        second = await two.open_second()
        await end_first()
        await second.advance(2 * LEASE / 1000)
        third = await stack.enter_async_context(two.serve(outbound=services.outbound))
        await settle(second, third)
        await second.advance(DEADLINE - 2 * LEASE / 1000 - 1)
        assert len(services.calls) == 3
        for request in services.calls:
            assert await answer(two.client, request, receipt="r")
        for entity_id in ids:
            assert await second.finish(two.client.handle(entity_id).result()) == {"receipt": "r"}
        await second.advance(2 * DEADLINE)
        assert len(services.calls) == 3
        for entity_id in ids:
            assert await kinds(second, entity_id) == ["work_started", "work_acknowledged", "work_succeeded"]


@ENDS
async def test_work_that_the_other_engine_holds_is_not_run_again(engines: Engines, end: str) -> None:
    """Activities and calls of services. What the first one had begun is begun again by the second, after its lease at most."""
    gate = asyncio.Event()
    ran: Counter[str] = Counter()
    registry = Registry()

    @registry.activity
    async def work() -> str:
        ran[activity_info().workflow_id] += 1
        await gate.wait()
        return "done"

    @registry.workflow
    async def job(ctx: Context) -> str:
        return await ctx.activity(work)

    async def price(_: httpx2.Request) -> httpx2.Response:
        await gate.wait()
        return httpx2.Response(200, json={"total": 5})

    services = FakeServices(price=price)
    async with AsyncExitStack() as stack:
        two = TwoEngines(engines, registry, services, stack)
        await two.open(PRICE)
        await two.client.start(job, id="of the first")
        end_first = await two.open_first(end, max_activities=1)
        second = await two.open_second()
        await second.engine.start(job, id="of the second")
        await second.engine.start_flow(["price"], id="flow")
        await second.settle()
        assert (ran, len(services.calls)) == ({"of the first": 1, "of the second": 1}, 1)
        await end_first()
        await second.advance(3 * LEASE / 1000)
        third = await stack.enter_async_context(two.serve(outbound=services.outbound))
        await settle(second, third)
        await second.advance(3 * LEASE / 1000)
        assert (ran, len(services.calls)) == ({"of the first": 2, "of the second": 1}, 1)
        gate.set()
        for entity_id in ("of the first", "of the second"):
            handle = two.client.handle(entity_id)
            assert await second.finish(handle.result()) == "done"
            assert types(await handle.history()) == [
                *("workflow_started", "activity_scheduled", "activity_completed"),
                *("workflow_completed", "workflow_deactivated"),
            ]
        assert await second.finish(two.client.handle("flow").result()) == {"total": 5}
        assert await kinds(second) == ["work_started", "work_succeeded"]
        assert (ran, len(services.calls)) == ({"of the first": 2, "of the second": 1}, 1)
