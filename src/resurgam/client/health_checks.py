"""Probe the services of steps, and record when their health changes.

Any number of processes may do it on one store: each probe is claimed there, so that a service gets one in each interval.
"""

import asyncio
import logging
from types import TracebackType
from typing import Final, Self

from resurgam.client.access import Access
from resurgam.client.catalog import CatalogClient
from resurgam.core.clock import Clock
from resurgam.core.errors import NotFound, StoreError
from resurgam.flows.http.health import probe
from resurgam.flows.http.outbound import Outbound
from resurgam.flows.http.sending import Sends
from resurgam.flows.model import Step
from resurgam.flows.services import service_client
from resurgam.runtime.system import new_id
from resurgam.store.protocol import Values

logger = logging.getLogger("resurgam.health")

_INTERVAL: Final = 30_000
"""Milliseconds from one probe of a service to the next."""
_SLACK: Final = 1000
"""Milliseconds by which a claim ends before the next probe, so that its own process can make that one too."""
_AT_ONCE: Final = 16
"""Probes that run at the same time."""


class HealthChecks:
    """Probes every registered step that has a health check, as an async context manager: while it is entered."""

    def __init__(self, catalog: CatalogClient, client: Sends, values: Values, clock: Clock) -> None:
        self._catalog = catalog
        self._client = client
        self._values = values
        self._clock = clock
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.get_running_loop().create_task(self._run(), name="health checks")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        await self._client.close()

    async def _run(self) -> None:
        while True:
            begun = self._clock.now()
            try:
                await self.check_all()
            except Exception as error:
                logger.error(  # noqa: TRY400 -- an error of the store names its cause and remedy
                    "health checks failed: %s", error, exc_info=None if isinstance(error, StoreError) else error
                )
            await _sleep_until(self._clock, max(begun + _INTERVAL, self._clock.now() + _SLACK))

    async def check_all(self) -> None:
        """Probe every service that no other process has probed in this interval, spread over a third of it."""
        steps = (await self._catalog.read()).steps.values()
        checked = [step for step in steps if step.http is not None and step.http.health_check]
        begun = self._clock.now()
        async with asyncio.TaskGroup() as group:
            for number, step in enumerate(checked):
                await _sleep_until(self._clock, begun + number * _INTERVAL // (3 * len(checked)))
                group.create_task(self._check(step))

    async def _check(self, step: Step) -> None:
        async with self._free:
            if step.http is None or not await self._claim(step.id):
                return
            status, error = await probe(self._client, step.http.health_check)
            try:
                # Read again: another process, or an update of the step, may have changed it meanwhile.
                catalog = await self._catalog.read()
                if catalog.find(step.id) != step or catalog.health(step.id).status == status:
                    return
                if await self._catalog.set_health(step.id, status, error):
                    logger.info("the service of step %r is %s%s", step.id, status, f": {error}" if error else "")
            except NotFound:
                return  # it was removed meanwhile

    async def _claim(self, step_id: str) -> bool:
        now = self._clock.now()
        claim = new_id(now).encode()
        until = now + _INTERVAL - _SLACK
        return await self._values.put_if_absent(f"health/{step_id}", claim, expires_at=until) == claim


def make(access: Access, name: str, outbound: Outbound | None) -> HealthChecks:
    """Return the health checks of a store; raise `ClientMissing` without the package that sends requests."""
    client = service_client(outbound or Outbound(), max_body=access.max_payload)
    return HealthChecks(CatalogClient(access, name), client, access.store.values, access.clock)


async def _sleep_until(clock: Clock, when: int) -> None:
    if clock.now() >= when:
        return
    due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancel = clock.call_at(when, lambda: None if due.done() else due.set_result(None))
    try:
        await due
    finally:
        cancel()
