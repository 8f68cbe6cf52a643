"""The answers of async steps: by the token that came with the call, the first one counts, on every store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from resurgam.core.errors import NotFound, PayloadTooLarge, SerializationError, WorkflowFailed
from resurgam.flows import FlowStep, HttpStep
from resurgam.testing.environment import Environment
from support.engines import Engines
from support.services import FakeServices, address_in, answers, service, serving

PAY = HttpStep("pay", service("pay"), inputs=["amount"], outputs=["receipt"], asynchronous=True)


@asynccontextmanager
async def paying(engines: Engines, **options: Any) -> AsyncIterator[tuple[Environment, str]]:
    """Start a flow that waits for the answer of a service, which has accepted its call with a token."""
    services = FakeServices(pay=answers(202))
    async with serving(engines, services, PAY, **options) as env:
        await env.start_flow(["pay"], {"amount": 7}, id="flow")
        [call] = services.calls
        flow_id, step_id, token = address_in(call)
        assert (flow_id, step_id) == ("flow", "pay")
        yield env, token


async def test_an_answer_completes_its_step_and_a_second_one_changes_nothing(engines: Engines) -> None:
    async with paying(engines) as (env, token):
        engine = env.engine
        assert await engine.complete_work("flow", "pay", token, {"receipt": "r-1"})
        assert not await engine.complete_work("flow", "pay", token, {"receipt": "r-2"})
        assert not await engine.fail_work("flow", "pay", token, "no money")
        assert await env.finish(env.handle("flow").result()) == {"receipt": "r-1"}
        assert not await engine.complete_work("flow", "pay", token, {"receipt": "r-3"})
        log = [entry.type for entry in await env.handle("flow").history()]
        assert log == [
            *("flow_started", "flow_activated", "step_started", "work_started", "work_acknowledged"),
            *("work_succeeded", "attribute_set", "step_completed", "flow_completed"),
            *("flow_digest_updated", "flow_deactivated"),
        ]
        assert await env.handle("flow").result() == {"receipt": "r-1"}


async def test_a_failure_is_an_answer_that_is_not_retried(engines: Engines) -> None:
    async with paying(engines) as (env, token):
        assert await env.engine.fail_work("flow", "pay", token, "no money")
        with pytest.raises(WorkflowFailed, match="step 'pay' failed: no money"):
            await env.finish(env.handle("flow").result())
        await env.advance(2 * 3600)
        assert [entry.type for entry in await env.handle("flow").history()].count("work_started") == 1


async def test_an_address_that_no_call_has_carried_is_unknown(engines: Engines) -> None:
    """Another flow, another step, another number, another secret: all are told the same, without the token."""
    async with paying(engines) as (env, token):
        forged = f"{token[:-1]}{'0' if token[-1] != '0' else '1'}"
        wrong = [
            ("other", "pay", token),
            ("catalog", "pay", token),
            ("flow", "ship", token),
            ("flow", "pay", forged),
            ("flow", "pay", f"2{token[1:]}"),
            ("flow", "pay", "1"),
            ("flow", "pay", ""),
        ]
        for flow_id, step_id, tried in wrong:
            with pytest.raises(NotFound, match="is answered at this address") as refused:
                await env.engine.complete_work(flow_id, step_id, tried, {})
            assert not tried or len(tried) < 9 or tried not in str(refused.value)
        assert await env.engine.complete_work("flow", "pay", token, {})
        with pytest.raises(NotFound):
            await env.engine.complete_work("flow", "ship", token, {})


async def test_an_answer_that_cannot_be_recorded_is_refused_and_may_be_sent_again(engines: Engines) -> None:
    async with paying(engines, max_payload=1000) as (env, token):
        with pytest.raises(PayloadTooLarge, match="outputs"):
            await env.engine.complete_work("flow", "pay", token, {"receipt": "x" * 2000})
        with pytest.raises(SerializationError, match="outputs: must be an object of outputs by name, got list"):
            await env.engine.complete_work("flow", "pay", token, [1])  # type: ignore[arg-type]
        assert await env.engine.complete_work("flow", "pay", token, {"receipt": "r"})


async def test_of_many_answers_at_the_same_time_one_is_the_first(engines: Engines) -> None:
    async with paying(engines) as (env, token):
        sent = [env.engine.complete_work("flow", "pay", token, {"receipt": number}) for number in range(8)]
        firsts = await asyncio.gather(*sent)
        assert firsts.count(True) == 1
        assert await env.finish(env.handle("flow").result()) == {"receipt": firsts.index(True)}


async def test_the_step_of_a_child_flow_is_answered_at_its_own_address(engines: Engines) -> None:
    services = FakeServices(pay=answers(202))
    order = FlowStep("order", ["pay"], inputs=["amount"], outputs=["receipt"])
    async with serving(engines, services, PAY, order) as env:
        parent = await env.start_flow(["order"], {"amount": 7}, id="flow")
        await env.settle()
        flow_id, step_id, token = address_in(services.calls[0])
        assert "/" in flow_id
        assert await env.engine.complete_work(flow_id, step_id, token, {"receipt": "r"})
        assert await env.finish(parent.result()) == {"receipt": "r"}
