import asyncio

import httpx2
import pytest

from resurgam import Engine, Registry
from resurgam.core.errors import StoreError
from resurgam.core.flow_event import CATALOG, StepHealthChanged
from resurgam.flows import model as m
from resurgam.flows.http.outbound import Outbound
from resurgam.testing.clock import START, ManualClock

HTTP = m.HttpConfig(endpoint="http://shop.example/", health_check="http://shop.example/health")
STEP = m.Step(id="price", name="Price", type="sync", http=HTTP)
UNCHECKED = m.Step(id="plain", name="Plain", type="sync", http=m.HttpConfig(endpoint="http://shop.example/"))


class Shop:
    """A service whose health check gives *status*, and the engine that probes it."""

    def __init__(self):
        self.status = 200
        self.probes = []
        self.clock = ManualClock()
        outbound = Outbound(transport=httpx2.MockTransport(self._answer))
        self.engine = Engine(registry=Registry(), worker=False, clock=self.clock, outbound=outbound)

    def _answer(self, request):
        self.probes.append(request)
        if isinstance(self.status, Exception):
            raise self.status
        return httpx2.Response(self.status)

    async def __aenter__(self):
        await self.engine.__aenter__()
        await self.engine.register_step(STEP)
        await self.engine.register_step(UNCHECKED)
        return self

    async def __aexit__(self, *about):
        await self.engine.__aexit__(*about)

    async def changes(self):
        catalog = await self.engine.store.inspector.get(CATALOG)
        log = await self.engine.store.inspector.history(catalog, forgotten=True)
        return [entry.status for entry in log if isinstance(entry, StepHealthChanged)]


@pytest.mark.parametrize(
    ("status", "health", "why"),
    [
        (200, "healthy", ""),
        (204, "healthy", ""),
        (302, "healthy", ""),
        (404, "unhealthy", "answered 404 Not Found"),
        (503, "unhealthy", "answered 503"),
        (httpx2.ConnectError("refused"), "unhealthy", "refused"),
    ],
)
async def test_a_service_is_unhealthy_if_it_answers_400_or_more_or_not_at_all(status, health, why):
    async with Shop() as shop:
        shop.status = status
        assert (await shop.engine.step_health("price")).status == "unknown"

        await shop.engine.health_checks().check_all()

        found = await shop.engine.step_health("price")
        assert found.status == health
        assert why in found.error
        [probe] = shop.probes
        assert (probe.method, probe.url.path) == ("GET", "/health")
        assert (await shop.engine.step_health("plain")).status == "unknown"


async def test_only_changes_are_recorded():
    async with Shop() as shop:
        checks = shop.engine.health_checks()
        for number, status in enumerate((200, 200, 503, 500, 200)):
            shop.clock.move_to(START + 30_000 * number)
            shop.status = status
            await checks.check_all()

        assert len(shop.probes) == 5
        assert await shop.changes() == ["healthy", "unhealthy", "healthy"]


async def test_processes_share_the_probes_of_a_step():
    async with Shop() as shop:
        one, two = shop.engine.health_checks(), shop.engine.health_checks()
        for moment in (0, 15_000, 30_000, 45_000):
            shop.clock.move_to(START + moment)
            await asyncio.gather(one.check_all(), two.check_all())

        assert len(shop.probes) == 2


async def test_probes_are_spread_over_the_first_third_of_an_interval():
    async with Shop() as shop:
        for name in ("rate", "stock"):
            await shop.engine.register_step(m.Step(id=name, name=name, type="sync", http=HTTP))
        checking = asyncio.create_task(shop.engine.health_checks().check_all())
        for number, moment in enumerate((0, 3334, 6667), start=1):
            shop.clock.move_to(START + moment)
            while len(shop.probes) < number:
                await asyncio.sleep(0)
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(shop.probes) == number

        await checking


async def test_a_step_that_was_updated_is_probed_anew():
    async with Shop() as shop:
        await shop.engine.health_checks().check_all()
        changed = m.Step(id="price", name="Price 2", type="sync", http=HTTP)
        await shop.engine.update_step(changed)
        assert (await shop.engine.step_health("price")).status == "unknown"

        shop.clock.move_to(START + 30_000)
        await shop.engine.health_checks().check_all()
        assert await shop.changes() == ["healthy", "healthy"]


async def test_the_checks_go_on_until_they_are_left_though_the_store_fails_once(caplog):
    async with Shop() as shop:
        checks = shop.engine.health_checks()
        catalog, failing = checks._catalog, _Failing()
        checks._catalog = failing
        async with checks:
            await failing.called.wait()
            checks._catalog = catalog
            while shop.clock.next_due() is None:
                await asyncio.sleep(0)
            shop.clock.move_to(START + 30_000)
            while await shop.changes() != ["healthy"]:
                await asyncio.sleep(0)

        assert "health checks failed: gone" in caplog.text
        assert checks._running.done()


class _Failing:
    def __init__(self):
        self.called = asyncio.Event()

    async def read(self):
        self.called.set()
        raise StoreError("gone")
