"""What a log takes of the memory of the server."""

from resurgam.store.redis.store import RedisStore
from resurgam.testing.clock import ManualClock
from resurgam.testing.contract.bench import LEASE, Bench, OpensStores, request, scheduled
from support.redis import fresh_url, shared_server


async def test_a_short_log_has_no_room_to_spare_while_its_instance_sleeps():
    clock = ManualClock()
    store = RedisStore(fresh_url(), clock, name="size", lease=LEASE)
    b = Bench(store, clock, OpensStores())
    instance = await b.create()
    claim = await b.claim_one()
    key = f"{store._link.keys[store._link.partition_of('order')]}events-{instance.execution_id}"
    await b.committed(claim, scheduled(request(2)), release=False)
    held = shared_server().ask("MEMORY", "USAGE", key)
    await b.committed(claim, scheduled(request(3)), base_seq=2, wake_at=clock.now() + 1000)
    assert shared_server().ask("MEMORY", "USAGE", key) < held / 2
    assert [entry.seq for entry in await store.read(instance)] == [1, 2, 3]
    await store.close()
