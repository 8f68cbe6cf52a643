"""The answers of async steps: by the token that came with the call, the first one counts, on every store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Raw

from resurgam.core.entry import Failure
from resurgam.core.errors import NotFound, PayloadTooLarge, Postponed, SerializationError, WorkflowFailed
from resurgam.core.flow_event import ACKNOWLEDGED, HTTP_ACTIVITY
from resurgam.flows import model as m
from resurgam.flows.http.message import HttpCall
from resurgam.flows.http.token import webhook_token
from resurgam.runtime.registry import Registry
from resurgam.store.secret import secret_of
from resurgam.testing.environment import Environment
from support.engines import Engines

PAY = m.Step(
    id="pay",
    name="Pay",
    type="async",
    attributes={"amount": m.Required(), "receipt": m.Output()},
    http=m.HttpConfig(endpoint="http://localhost/pay"),
)


@asynccontextmanager
async def paying(engines: Engines, **options: Any) -> AsyncIterator[tuple[Environment, list[HttpCall]]]:
    """Open an engine with a service that accepts every call, and start a flow that waits for its answer."""
    registry, calls = Registry(), list[HttpCall]()

    @registry.activity(name=HTTP_ACTIVITY)
    async def accept(call: HttpCall) -> Any:
        calls.append(call)
        accepted = Failure(type=ACKNOWLEDGED, message="accepted")
        raise Postponed(env.clock.now() + call.deadline_ms, accepted, Raw(b"{}"), failed=False)

    async with engines.open(registry, **options) as env:
        await env.engine.register_step(PAY)
        await env.start_flow(["pay"], {"amount": 7}, id="flow")
        yield env, calls


async def token_of(env: Environment, call: HttpCall) -> str:
    return webhook_token(await secret_of(env.engine.store.values), call.receipt)


async def test_an_answer_completes_its_step_and_a_second_one_changes_nothing(engines: Engines) -> None:
    async with paying(engines) as (env, [call]):
        token, engine = await token_of(env, call), env.engine
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
    async with paying(engines) as (env, [call]):
        assert await env.engine.fail_work("flow", "pay", await token_of(env, call), "no money")
        with pytest.raises(WorkflowFailed, match="step 'pay' failed: no money"):
            await env.finish(env.handle("flow").result())
        await env.advance(2 * 3600)
        assert [entry.type for entry in await env.handle("flow").history()].count("work_started") == 1


async def test_an_address_that_no_call_has_carried_is_unknown(engines: Engines) -> None:
    """Another flow, another step, another number, another secret: all are told the same, without the token."""
    async with paying(engines) as (env, [call]):
        token = await token_of(env, call)
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
    async with paying(engines, max_payload=1000) as (env, [call]):
        token = await token_of(env, call)
        with pytest.raises(PayloadTooLarge, match="outputs"):
            await env.engine.complete_work("flow", "pay", token, {"receipt": "x" * 2000})
        with pytest.raises(SerializationError, match="outputs: must be an object of outputs by name, got list"):
            await env.engine.complete_work("flow", "pay", token, [1])  # type: ignore[arg-type]
        assert await env.engine.complete_work("flow", "pay", token, {"receipt": "r"})
