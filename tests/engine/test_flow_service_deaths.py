"""A worker dies at any of its writes, applied or not: nothing is lost, and no accepted call is made again too early."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.retry import RetryPolicy
from resurgam.engine import Engine
from resurgam.flows import HttpStep
from resurgam.flows.services import PUBLIC_URL
from resurgam.runtime.registry import Registry
from resurgam.testing.clock import ManualClock
from resurgam.testing.contract.bench import LEASE
from support.dying import Dying, serve_until_dead
from support.engines import Engines, of_kind
from support.flow_checks import check_log
from support.services import PUBLIC, FakeServices, answer, answers, service, serving

DEADLINE = 600
QUICK = RetryPolicy(max_attempts=5, initial_interval=1, backoff=1)
STEPS = [
    HttpStep("price", service("price"), outputs=["total"], retry=QUICK),
    HttpStep(
        "pay",
        service("pay"),
        inputs=["total"],
        outputs=["receipt"],
        asynchronous=True,
        deadline=DEADLINE,
        retry=QUICK,
    ),
    HttpStep("ship", service("ship"), inputs=["receipt"], outputs=["parcel"], retry=QUICK),
]


class Shop(FakeServices):
    """Three services; the one that is paid fails at first. *at_once*: it sends its answer before it accepts the call."""

    def __init__(self, client: Engine, clock: ManualClock, *, at_once: bool) -> None:
        super().__init__(price=answers(503, {"total": 5}), pay=self._pay, ship=answers({"parcel": "p"}))
        self.paid: list[tuple[httpx2.Request, int]] = []
        self.first_answers = 0
        self._client, self._clock, self._at_once = client, clock, at_once

    async def _pay(self, request: httpx2.Request) -> httpx2.Response:
        self.paid.append((request, self._clock.now()))
        if self._at_once:
            await self.answer_all()
        return httpx2.Response(202)

    async def answer_all(self) -> None:
        """Answer every call that was accepted so far."""
        for request, _ in self.paid:
            self.first_answers += await answer(self._client, request, receipt="r")


async def _dies(engines: Engines, at: int, *, applied: bool, at_once: bool) -> bool:
    """Let a worker die, and another take over; return whether the first came as far as that."""
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(engines.open_store(clock))
        client = await stack.enter_async_context(Engine(store, registry=Registry(), clock=clock, worker=False))
        await store.values.put(PUBLIC_URL, PUBLIC.encode())
        for one in STEPS:
            await client.register_step(one)
        await client.start_flow(["ship"], id="flow")
        shop = Shop(client, clock, at_once=at_once)
        dying = Dying(store, at, applied=applied)
        await serve_until_dead(engines, dying, clock, Registry(), seconds=60, outbound=shop.outbound)
        env: Any = await stack.enter_async_context(serving(engines, shop, store=store, clock=clock))
        await env.advance(2 * LEASE / 1000 + 5)
        await shop.answer_all()
        assert await env.finish(env.handle("flow").result(), limit=DEADLINE / 2) == {"parcel": "p"}
        await env.advance(2 * DEADLINE)
        _check(await env.handle("flow").history(), shop)
    return dying.dead


def _check(log: Sequence[events.Event], shop: Shop) -> None:
    check_log(log)
    assert shop.first_answers == 1
    assert len({request.headers["Argyll-Receipt-Token"] for request, _ in shop.paid}) == 1
    for accepted in of_kind(log, fe.WorkAcknowledged):
        assert not [at for _, at in shop.paid if accepted.at < at]
    # Once more than needed, if the first worker died between the call and its record.
    assert len(shop.called("pay")) <= 2
    assert len(shop.called("ship")) <= 2


@pytest.mark.engines("memory-cached", "memory-replayed", "sqlite-cached")
@pytest.mark.parametrize("at_once", [False, True], ids=["answered later", "answered at once"])
async def test_services_are_called_on_wherever_their_worker_dies(engines: Engines, *, at_once: bool) -> None:
    at = 1
    while await _dies(engines, at, applied=at % 2 == 0, at_once=at_once):
        at += 1
    assert at > 5


@pytest.mark.parametrize("at", [5, 6])
async def test_services_are_called_on_where_their_worker_has_died_on_every_store(engines: Engines, at: int) -> None:
    assert await _dies(engines, at, applied=at == 6, at_once=True)


@pytest.mark.long
@pytest.mark.parametrize("at_once", [False, True], ids=["answered later", "answered at once"])
async def test_services_are_called_on_wherever_their_worker_dies_on_any_store(
    engines: Engines, *, at_once: bool
) -> None:
    for applied in (False, True):
        at = 1
        while await _dies(engines, at, applied=applied, at_once=at_once):
            at += 1
