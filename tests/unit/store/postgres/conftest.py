import pytest

from resurgam.store.postgres.store import PostgresStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import LEASE, Bench, OpensStores
from support.postgres import fresh_url


class Postgres(OpensStores):
    pause = 0.001


@pytest.fixture
async def b():
    url, clock = fresh_url(), ManualClock()
    store = PostgresStore(url, clock, name="test", lease=LEASE)
    bench = Bench(store, clock, Postgres())
    bench.url = url
    bench.schema = url.partition("schema=")[2]
    yield bench
    await store.close()
