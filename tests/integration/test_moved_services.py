"""Flows that wait for the answer of a service, and go on in another store: by a move, or from an export."""

import pytest

from resurgam.core.errors import NotFound
from resurgam.core.retry import RetryPolicy
from resurgam.flows import HttpStep
from resurgam.store.move import Move, Options
from resurgam.testing import ManualClock
from support.engines import CACHES, Engines
from support.services import FakeServices, address_in, answer, answers, service, serving
from support.stores import STORES

TWO = RetryPolicy(max_attempts=2, initial_interval=5, backoff=1)
PAY = HttpStep("pay", service("pay"), outputs=["receipt"], asynchronous=True, deadline=60, retry=TWO)
HERE, THERE = (Engines(STORES[kind], CACHES["cached"]) for kind in ("memory", "sqlite"))


async def test_an_accepted_call_is_answered_in_the_store_to_which_its_flow_has_moved() -> None:
    """At the address that came with the call; and it is not made again."""
    services, clock = FakeServices(pay=answers(202)), ManualClock()
    async with HERE.open_store(clock) as source, THERE.open_store(clock) as target:
        async with serving(HERE, services, PAY, store=source, clock=clock) as env:
            await env.start_flow(["pay"], id="flow")
        moved = await Move(source, target, clock, url="sqlite").run()
        assert moved.same_secret
        async with serving(THERE, services, store=target, clock=clock) as env:
            await env.advance(50)
            assert await answer(env.engine, services.calls[0], receipt="r")
            assert await env.finish(env.handle("flow").result()) == {"receipt": "r"}
            await env.advance(60)
    assert len(services.calls) == 1


async def test_a_flow_that_has_ended_is_not_moved_before_its_accepted_calls_are_answered() -> None:
    """It could not be kept from going on in both stores; whoever moves is told how long it takes."""
    services, clock = FakeServices(pay=answers(202)), ManualClock()
    async with HERE.open_store(clock) as source, THERE.open_store(clock) as target:
        async with serving(HERE, services, PAY, store=source, clock=clock) as env:
            flow = await env.start_flow(["pay"], id="flow")
            await flow.cancel()
            await env.settle()
            moved = await Move(source, target, clock, url="sqlite", options=Options(patience=0)).run()
            assert moved.left["flow"].startswith(
                "it is closed, but its work may still be answered until 2023-11-14T22:14:"
            )
            assert await answer(env.engine, services.calls[0], receipt="r")
            await env.settle()
        moved = await Move(source, target, clock, url="sqlite", options=Options(closed=True)).run()
        assert not moved.left


async def test_an_imported_flow_calls_at_the_deadline_again_with_an_address_of_the_new_store() -> None:
    """An export does not give away the secret of its store, so that the first address is not valid there."""
    services, clock = FakeServices(pay=answers(202)), ManualClock()
    async with serving(HERE, services, PAY, clock=clock) as env:
        await env.start_flow(["pay"], id="flow")
        lines = await env.engine.export("flow")
    assert address_in(services.calls[0])[2].partition("-")[2] not in "".join(lines)
    async with serving(THERE, services, clock=clock) as env:
        await env.engine.import_(lines)
        await env.advance(59)
        with pytest.raises(NotFound):
            await answer(env.engine, services.calls[0], receipt="r")
        assert len(services.calls) == 1
        await env.advance(10)
        assert len({one.headers["Argyll-Receipt-Token"] for one in services.calls}) == 1
        assert await answer(env.engine, services.calls[1], receipt="r")
        assert await env.finish(env.handle("flow").result()) == {"receipt": "r"}
