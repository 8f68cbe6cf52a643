"""Steps that are services, on every store: each call has its place in the log, and nothing that was accepted is lost."""

import asyncio
from typing import Annotated, Any

import httpx2
import pytest

from resurgam.core import flow_event as fe
from resurgam.core.errors import WorkflowCancelled, WorkflowFailed
from resurgam.core.retry import RetryPolicy
from resurgam.flows import HttpStep, Input, Meta
from resurgam.testing.clock import ManualClock
from support.engines import Engines, of_kind
from support.health import set_health
from support.services import FakeServices, address_in, answer, answers, kinds, service, serving

ONE = RetryPolicy(max_attempts=1)
TWO = RetryPolicy(max_attempts=2, initial_interval=5, backoff=1)
MINUTE = 60
PAY = HttpStep(
    "pay", service("pay"), inputs=["amount"], outputs=["receipt"], asynchronous=True, deadline=MINUTE, retry=TWO
)
Each = Annotated[int, Input(for_each=True)]


async def test_a_chain_of_services_passes_its_values_on(engines: Engines) -> None:
    """The headers name the flow, the step and the item; the arguments are by inner name."""
    services = FakeServices(price=answers({"total": 5}), ship=answers({"parcel": "p-1"}))
    about = {"total": int, "flow": Annotated[str, Meta("flow_id")], "item": Annotated[str, Meta("receipt_token")]}
    steps = [
        HttpStep("price", service("price"), inputs={"sku": str}, outputs={"total": int}),
        HttpStep("ship", service("ship"), inputs=about, outputs={"parcel": str}),
    ]
    async with serving(engines, services, *steps) as env:
        flow = await env.start_flow(["ship"], {"sku": "a"}, id="flow")
        assert await env.finish(flow.result()) == {"parcel": "p-1"}
        run_id = (await flow.describe()).run_id
    first, second = services.calls
    assert first.content == b'{"sku":"a"}'
    assert httpx2.Response(200, content=second.content).json() == {"total": 5, "flow": "flow", "item": f"{run_id}/2"}
    sent = ("Argyll-Flow-ID", "Argyll-Step-ID", "Argyll-Receipt-Token", "Idempotency-Key")
    assert [second.headers[name] for name in sent] == ["flow", "ship", f"{run_id}/2", f"{run_id}/2"]
    assert "Argyll-Webhook-URL" not in second.headers


async def test_a_service_that_does_not_answer_is_called_again_with_the_same_receipt(engines: Engines) -> None:
    """After the pause that it asks for, if that is longer. Every call is in the log."""
    busy = httpx2.Response(503, headers={"Retry-After": "30"})
    services = FakeServices(price=answers(500, busy, {"total": 5}))
    policy = RetryPolicy(max_attempts=3, initial_interval=5, backoff=1)
    async with serving(engines, services, HttpStep("price", service("price"), outputs=["total"], retry=policy)) as env:
        flow = await env.start_flow(["price"], id="flow")
        assert await env.finish(flow.result()) == {"total": 5}
        assert await kinds(env) == [
            *("work_started", "work_not_completed", "retry_scheduled") * 2,
            *("work_started", "work_succeeded"),
        ]
        log = await flow.history()
    assert [one.attempt for one in of_kind(log, fe.WorkStarted)] == [1, 2, 3]
    first, second = of_kind(log, fe.RetryScheduled)
    assert 4000 < first.next_retry_at - first.at < 6000
    assert second.next_retry_at - second.at == 30_000
    assert len({one.headers["Argyll-Receipt-Token"] for one in services.calls}) == 1


async def test_the_last_attempt_fails_the_step_before_another_item_is_called(engines: Engines) -> None:
    """A refusal is not tried again at all."""
    for status, calls in ((503, 2), (422, 1)):
        services = FakeServices(price=answers(status))
        step = HttpStep("price", service("price"), inputs={"sku": Each}, outputs=["total"], retry=TWO)
        async with serving(engines, services, step) as env:
            flow = await env.start_flow(["price"], {"sku": [1, 2, 3]}, id="flow")
            with pytest.raises(WorkflowFailed, match=rf"step 'price' .*answered {status}"):
                await env.finish(flow.result())
            assert (await flow.history())[-1].type == "flow_deactivated"
        assert len(services.calls) == calls


async def test_a_step_is_not_called_again_before_its_deadline_though_its_worker_is_replaced(engines: Engines) -> None:
    """The other worker calls it once the deadline has passed, with the same receipt, and the answer to any call counts."""
    services, clock = FakeServices(pay=answers(202)), ManualClock()
    async with engines.open_store(clock) as store:
        async with serving(engines, services, PAY, store=store, clock=clock) as env:
            await env.start_flow(["pay"], {"amount": 7}, id="flow")
            [accepted] = of_kind(await env.handle("flow").history(), fe.WorkAcknowledged)
            assert accepted.deadline == clock.now() + MINUTE * 1000
        async with serving(engines, services, store=store, clock=clock) as env:
            await env.advance(MINUTE - 1)
            assert len(services.calls) == 1
            await env.advance(10)
            assert len(services.calls) == 2
            assert await kinds(env) == [
                *("work_started", "work_acknowledged", "work_not_completed", "retry_scheduled"),
                *("work_started", "work_acknowledged"),
            ]
            assert await answer(env.engine, services.calls[0], receipt="r")
            assert await env.finish(env.handle("flow").result()) == {"receipt": "r"}
            await env.advance(2 * MINUTE)
    assert len(services.calls) == 2
    assert len({one.headers["Argyll-Receipt-Token"] for one in services.calls}) == 1
    assert address_in(services.calls[0]) == address_in(services.calls[1])


async def test_a_step_whose_answer_never_comes_fails_after_its_last_deadline(engines: Engines) -> None:
    services = FakeServices(pay=answers(202))
    async with serving(engines, services, PAY) as env:
        flow = await env.start_flow(["pay"], {"amount": 7}, id="flow")
        with pytest.raises(WorkflowFailed, match=r"step 'pay' .*sent no answer to the webhook within 60 s"):
            await env.finish(flow.result())
        assert (await flow.history())[-1].type == "flow_deactivated"
        assert not await answer(env.engine, services.calls[0], receipt="late")
    assert len(services.calls) == 2


@pytest.mark.parametrize("status", [202, 503, 422])
async def test_an_answer_that_comes_before_the_call_is_over_counts(engines: Engines, status: int) -> None:
    """Whatever the service says to the call afterwards, also a refusal; and it is not called again."""
    may_end = asyncio.Event()

    async def quick(request: httpx2.Request) -> httpx2.Response:
        assert await answer(env.engine, request, receipt="r")
        await may_end.wait()
        return httpx2.Response(status)

    services = FakeServices(pay=quick)
    async with serving(engines, services, PAY) as env:
        flow = await env.engine.start_flow(["pay"], {"amount": 7}, id="flow")
        assert await asyncio.wait_for(flow.result(), 60) == {"receipt": "r"}
        may_end.set()
        await env.advance(2 * MINUTE)
        assert await kinds(env) == ["work_started", "work_succeeded"]
        assert (await flow.history())[-1].type == "flow_deactivated"
    assert len(services.calls) == 1


async def test_an_answer_to_a_call_that_seemed_to_fail_counts(engines: Engines) -> None:
    """The connection broke, but the service has done its work; the retry is not made."""
    services = FakeServices(pay=answers(502, 202))
    async with serving(engines, services, PAY) as env:
        await env.start_flow(["pay"], {"amount": 7}, id="flow")
        assert await answer(env.engine, services.calls[0], receipt="r")
        assert await env.finish(env.handle("flow").result()) == {"receipt": "r"}
        await env.advance(MINUTE)
    assert len(services.calls) == 1


async def test_a_late_success_of_a_failed_step_is_undone_after_the_end_of_its_flow(engines: Engines) -> None:
    """The flow waits for what was accepted. A compensation has its own retries, and the receipt of the item.

    The item has used up its own ones before it was accepted.
    """

    slow = httpx2.Response(503, headers={"Retry-After": "20"})
    first, second = answers(503, 202), answers(slow, 422)

    async def book(request: httpx2.Request) -> httpx2.Response:
        return await (first if b'"night":1' in request.content else second)(request)

    services = FakeServices(book=book, cancel=answers(503, 204))
    step = HttpStep(
        "book",
        service("book"),
        inputs={"night": Each},
        outputs=["room"],
        asynchronous=True,
        deadline=MINUTE,
        compensate=service("cancel"),
        retry=TWO,
        parallelism=2,
    )
    async with serving(engines, services, step) as env:
        flow = await env.start_flow(["book"], {"night": [1, 2]}, id="flow")
        with pytest.raises(WorkflowFailed, match="answered 422"):
            await env.finish(flow.result(), limit=MINUTE / 2)
        [_, accepted] = [one for one in services.called("book") if b'"night":1' in one.content]
        assert (await flow.history())[-1].type != "flow_deactivated"
        assert await answer(env.engine, accepted, room=7)
        await env.advance(MINUTE / 2)
        log = await flow.history()
        assert [one.type for one in log if one.type.startswith("comp_")] == [
            *("comp_started", "comp_retry_scheduled", "comp_succeeded")
        ]
        assert log[-1].type == "flow_deactivated"
    undone, again = services.called("cancel")
    assert undone.content == again.content == b'{"input":{"night":1},"output":{"room":7}}'
    assert undone.headers["Argyll-Receipt-Token"] == accepted.headers["Argyll-Receipt-Token"]
    assert undone.headers["Argyll-Flow-ID"] == "flow"


async def test_a_cancelled_flow_gives_up_at_the_deadline_what_was_accepted(engines: Engines) -> None:
    """It calls nothing more: not the item that waits for a retry, and not the accepted one."""
    services = FakeServices(pay=answers(202), ask=answers(503))
    ask = HttpStep("ask", service("ask"), outputs=["a"], asynchronous=True, retry=TWO)
    async with serving(engines, services, PAY, ask) as env:
        flow = await env.start_flow(["pay", "ask"], {"amount": 7}, id="flow")
        await flow.cancel()
        with pytest.raises(WorkflowCancelled):
            await env.finish(flow.result())
        await env.advance(MINUTE / 2)
        log = await flow.history()
        assert log[-1].type == "work_cancelled"
        await env.advance(MINUTE)
        last = [one.type for one in await flow.history()][-3:]
        assert last == ["work_failed", "step_failed", "flow_deactivated"]
    assert sorted(one.url.path for one in services.calls) == ["/ask", "/pay"]


async def test_a_step_that_cannot_be_undone_is_not_compensated(engines: Engines) -> None:
    async def price(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(422) if b'"sku":2' in request.content else httpx2.Response(200, json={"total": 1})

    services = FakeServices(price=price)
    step = HttpStep("price", service("price"), inputs={"sku": Each}, outputs=["total"], retry=ONE)
    async with serving(engines, services, step) as env:
        flow = await env.start_flow(["price"], {"sku": [1, 2]}, id="flow")
        with pytest.raises(WorkflowFailed):
            await env.finish(flow.result())
        assert (await kinds(env))[-1] == "work_failed"
        assert (await flow.history())[-1].type == "flow_deactivated"
    assert len(services.calls) == 2


async def test_an_unhealthy_service_is_called_later_and_not_for_ever_later(engines: Engines) -> None:
    """Each pause is in the log; a minute later it is called all the same."""
    services = FakeServices(price=answers({"total": 5}))
    async with serving(engines, services, HttpStep("price", service("price"), outputs=["total"])) as env:
        await set_health(env.engine, "price", "unhealthy", "HTTP 500")
        flow = await env.start_flow(["price"], id="flow")
        assert not services.calls
        deferred = (await flow.describe()).pending[0]
        assert deferred.status == "deferred"
        assert "is unhealthy (HTTP 500)" in deferred.text
        await env.advance(MINUTE - 1)
        assert not services.calls
        await env.advance(2)
        assert await flow.result() == {"total": 5}
        log = await flow.history()
    assert {one.attempt for one in of_kind(log, fe.WorkStarted)} == {1}
    pauses = [round((one.next_at - one.at) / 1000) for one in of_kind(log, fe.DispatchDeferred)]
    assert sum(pauses) == 60
    assert pauses[:4] == [1, 2, 4, 8]


async def test_a_memoized_answer_is_kept_for_other_flows(engines: Engines) -> None:
    services = FakeServices(pay=answers(202))
    kept: dict[str, Any] = {"asynchronous": True, "memoize": True, "inputs": ["amount"], "outputs": ["receipt"]}
    async with serving(engines, services, HttpStep("pay", service("pay"), **kept)) as env:
        await env.start_flow(["pay"], {"amount": 7}, id="flow")
        assert await answer(env.engine, services.calls[0], receipt="r")
        assert await env.finish(env.handle("flow").result()) == {"receipt": "r"}
        other = await env.start_flow(["pay"], {"amount": 7}, id="other")
        assert await env.finish(other.result()) == {"receipt": "r"}
    assert len(services.calls) == 1


async def test_what_a_flow_waits_for_says_that_its_service_has_accepted_it(engines: Engines) -> None:
    """Without the secret of the webhook, which is nowhere in what the flow records or shows."""
    services = FakeServices(pay=answers(202))
    async with serving(engines, services, PAY) as env:
        flow = await env.start_flow(["pay"], {"amount": 7}, id="flow")
        [waiting] = (await flow.describe()).pending
        assert (waiting.status, waiting.attempt, waiting.max_attempts) == ("acknowledged", 1, 2)
        assert waiting.text.endswith("its service has accepted it")
        assert waiting.until is not None
        assert round(waiting.until.timestamp() * 1000) == env.clock.now() + MINUTE * 1000
        token = address_in(services.calls[0])[2]
        assert token.partition("-")[2] not in repr((await flow.describe(), await flow.history()))
        found = await env.engine.store.inspector.get("flow")
        assert found is not None
        assert token.partition("-")[2] not in repr(await env.engine.store.inspector.open_work(found))
