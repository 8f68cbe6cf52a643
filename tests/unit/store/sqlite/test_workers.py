"""The workers of a SQLite file: those that have expired are deleted."""

import sqlite3
from contextlib import closing

from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.live_workers import TTL, worker


async def test_workers_that_were_not_seen_for_too_long_leave_nothing_behind(tmp_path):
    clock = ManualClock()
    store = SqliteStore(tmp_path / "a.db", clock, name="one", synchronous="OFF")
    try:
        for number in range(10):
            await store.workers.announce(worker(f"w-{number}"), TTL)
            clock.move_to(clock.now() + TTL)
        with closing(sqlite3.connect(tmp_path / "a.db")) as other:
            assert other.execute("SELECT worker_id FROM workers").fetchall() == [("w-9",)]
    finally:
        await store.close()


async def test_an_announcement_of_an_older_worker_is_listed(tmp_path):
    """One that told neither its load nor what it holds."""
    store = SqliteStore(tmp_path / "a.db", ManualClock(), name="one", synchronous="OFF")
    try:
        await store.workers.announce(worker("old", slots_in_use=1), TTL)
        with closing(sqlite3.connect(tmp_path / "a.db")) as other:
            other.execute("UPDATE workers SET body = json_remove(body, '$.load', '$.held')")
            other.commit()
        [found] = await store.workers.list()
        assert (found.worker_id, found.slots_in_use, found.load, found.held) == ("old", 1, None, None)
    finally:
        await store.close()
