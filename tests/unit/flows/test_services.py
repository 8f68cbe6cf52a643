import asyncio
import sys

import httpx2
import pytest

from resurgam import Engine, Registry
from resurgam.core.errors import WorkflowFailed
from resurgam.flows import model as m
from resurgam.flows.errors import ClientMissing
from resurgam.flows.http.message import HttpCall
from resurgam.flows.http.outbound import Outbound
from resurgam.flows.services import PUBLIC_URL, Services, StoreSurroundings
from resurgam.testing.clock import START, ManualClock
from support.health import set_health

STEP = m.Step(
    id="price",
    name="Price",
    type="sync",
    attributes={"sku": m.Required(), "total": m.Output()},
    http=m.HttpConfig(endpoint="http://shop.example/{sku}"),
)


def _answering(answer):
    return Outbound(transport=httpx2.MockTransport(answer))


async def test_a_flow_calls_the_service_of_its_step():
    seen = []

    def answer(request):
        seen.append(request)
        return httpx2.Response(200, json={"total": 7})

    async with Engine(registry=Registry(), outbound=_answering(answer)) as engine:
        await engine.register_step(STEP)
        flow = await engine.start_flow(["price"], {"sku": "a/b"}, id="f")

        assert await flow.result() == {"total": 7}
    [request] = seen
    assert str(request.url) == "http://shop.example/a%2Fb"
    assert request.content == b'{"sku":"a/b"}'
    assert request.headers["argyll-flow-id"] == "f"


async def test_an_address_that_is_not_allowed_fails_the_flow_and_says_why():
    async with Engine(registry=Registry(), outbound=Outbound(allow=("other.example",))) as engine:
        at_home = m.HttpConfig(endpoint="http://127.0.0.1:1/")
        await engine.register_step(m.Step(id="price", name="Price", type="sync", http=at_home))
        flow = await engine.start_flow(["price"])

        with pytest.raises(WorkflowFailed, match="not on the allow-list"):
            await flow.result()


async def test_engines_that_share_a_registry_call_by_their_own_rules():
    registry = Registry()

    async def total(number):
        async with Engine(
            registry=registry, outbound=_answering(lambda _: httpx2.Response(200, json={"total": number}))
        ) as one:
            await one.register_step(STEP)
            return await (await one.start_flow(["price"], {"sku": "a"})).result()

    assert await asyncio.gather(total(1), total(2)) == [{"total": 1}, {"total": 2}]


async def test_the_connections_of_a_worker_are_closed_with_it():
    class Transport(httpx2.MockTransport):
        closed = 0

        async def aclose(self):
            self.closed += 1

    transport = Transport(lambda _: httpx2.Response(204))
    async with Engine(registry=Registry(), outbound=Outbound(transport=transport)) as engine:
        await engine.register_step(STEP)
        await (await engine.start_flow(["price"], {"sku": "a"})).result()
        assert transport.closed == 0

    assert transport.closed == 1


async def test_a_worker_without_the_package_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("resurgam.flows.http.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    async with Engine(registry=Registry(), worker=False) as engine:
        with pytest.raises(ClientMissing, match=r"pip install 'resurgam\[web\]'"):
            Services(engine.store, ManualClock(), Outbound(), max_payload=100)


async def test_the_health_of_a_step_and_the_address_of_the_server_are_kept_for_a_moment():
    clock = ManualClock()
    async with Engine(registry=Registry(), worker=False) as engine:
        known = StoreSurroundings(engine.store, clock)
        await engine.register_step(STEP)
        assert await known.public_url() is None
        assert await known.unhealthy("price") is None

        await engine.store.values.put(PUBLIC_URL, b"http://me:1")
        await set_health(engine, "price", "unhealthy", "down")
        assert await known.public_url() == "http://me:1"
        assert await known.unhealthy("price") is None
        clock.move_to(START + 1000)
        assert await known.unhealthy("price") == "down"

        await engine.store.values.put(PUBLIC_URL, b"http://me:2")
        assert await known.public_url() == "http://me:1"
        clock.move_to(START + 6000)
        assert await known.public_url() == "http://me:2"
        clock.set_back(60_000)
        await set_health(engine, "price", "healthy")
        assert await known.unhealthy("price") is None


async def test_an_item_is_wanted_while_its_step_is_active():
    async with Engine(registry=Registry(), outbound=_answering(lambda _: httpx2.Response(204))) as engine:
        known = StoreSurroundings(engine.store, ManualClock())
        await engine.register_step(STEP)
        flow = await engine.start_flow(["price"], {"sku": "a"}, id="f")
        await flow.result()
        run_id = (await flow.describe()).run_id

        for receipt in (f"{run_id}/1", "another-run/1"):
            assert not await known.is_wanted(HttpCall(flow_id="f", step_id="price", receipt=receipt, url="http://h/"))


def test_rules_of_another_type_are_refused_at_once():
    with pytest.raises(TypeError, match="outbound must be an Outbound"):
        Engine(outbound=("shop.example",))
