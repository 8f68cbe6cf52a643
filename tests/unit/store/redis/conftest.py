import pytest

from resurgam.store.redis.store import RedisStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import LEASE, Bench, OpensStores
from support.redis import fresh_url


class Redis(OpensStores):
    pause = 0.001
    partitions = 16


@pytest.fixture
async def b():
    url, clock = fresh_url(), ManualClock()
    store = RedisStore(url, clock, name="test", lease=LEASE)
    bench = Bench(store, clock, Redis())
    bench.url = url
    yield bench
    await store.close()
