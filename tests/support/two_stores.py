"""Two Postgres stores on the same data: one waits for what the other does."""

import asyncio
import contextlib
from typing import Final

import asyncpg

from resurgam.store.postgres.store import PostgresStore
from resurgam.store.postgres.url import parse
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import LEASE, Bench, OpensStores
from support.postgres import shared_server

PATIENT: Final = 60
"""Seconds after which what has not come will not come."""


class Two:
    """Two stores on the same data and by the same clock: *waiting* waits, *acting* changes something."""

    def __init__(self, url, options=""):
        self.url = url
        self.schema = parse(url).schema
        self.clock = ManualClock()
        self.waiting = PostgresStore(url + options, self.clock, name="waiting", lease=LEASE)
        self.acting = PostgresStore(url, self.clock, name="acting", lease=LEASE)
        self.mine, self.other = (Bench(store, self.clock, OpensStores()) for store in (self.waiting, self.acting))

    async def wait(self, watch, until=None):
        """Begin to wait; return once the store listens and has looked."""
        task = asyncio.create_task(self.waiting.wait(watch, until))
        async with asyncio.timeout(PATIENT):
            while not any(waiter.has_looked for waiter in self.waiting._watcher.waiters.all):
                await asyncio.sleep(0.001)
        assert not task.done()
        return task

    async def woken(self, task):
        return await asyncio.wait_for(task, PATIENT)

    @property
    def looks(self):
        return self.waiting._pool.flights

    @contextlib.asynccontextmanager
    async def locked(self, table, execution_id):
        """Hold the row of an execution in a transaction of its own."""
        connection = await asyncpg.connect(shared_server().url)
        try:
            async with connection.transaction():
                rows = await connection.fetch(
                    f"SELECT FROM {self.schema}.{table} WHERE execution_id = $1 FOR UPDATE", execution_id
                )
                assert len(rows) == 1
                yield
        finally:
            await connection.close()


@contextlib.asynccontextmanager
async def two_on(url, options=""):
    two = Two(url, options)
    try:
        yield two
    finally:
        await two.waiting.close()
        await two.acting.close()
