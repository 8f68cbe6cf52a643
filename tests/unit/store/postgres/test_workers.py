"""The workers of a Postgres store: those that have expired are deleted."""

from resurgam.testing.contract.live_workers import TTL, worker
from support.postgres import execute


async def test_workers_that_were_not_seen_for_too_long_leave_nothing_behind(b):
    for number in range(10):
        await b.store.workers.announce(worker(f"w-{number}"), TTL)
        await b.pass_time(TTL)
    rows = await execute(f"SELECT worker_id FROM {b.schema}.workers")
    assert [row["worker_id"] for row in rows] == ["w-9"]
