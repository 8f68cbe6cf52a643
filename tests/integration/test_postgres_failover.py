"""A standby takes over while calls are under way: nothing acknowledged is lost if the primary waits for it."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from resurgam.runtime.system import SystemClock
from resurgam.store.postgres import functions
from resurgam.store.postgres.functions import join
from resurgam.store.postgres.pool import Pool
from resurgam.store.postgres.url import parse
from support.postgres import execute, own_server, temporary_folder

CALLS = (Path(functions.__file__).parent / "functions" / "shared" / "calls.sql").read_text()
PUT = """
CREATE FUNCTION {schema}.put_{code}(moment bigint, lease bigint, owner text, parts jsonb)
RETURNS TABLE (notices text[], answers jsonb) LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.stored_values (key, value, expires_at)
    SELECT part || half, '', 1 FROM jsonb_array_elements_text(parts) part, unnest(ARRAY['a', 'b']) half
    ON CONFLICT (key) DO UPDATE SET expires_at = stored_values.expires_at + 1;
    RETURN QUERY SELECT '{}'::text[], parts;
END $$;
"""
"""Writes two rows for each part, and counts how often."""


@asynccontextmanager
async def pair(*, synchronous):
    """Yield a primary with a standby that follows it."""
    primary = own_server()
    standby = primary.standby(temporary_folder())
    try:
        if synchronous:
            primary.reload("synchronous_standby_names = 'standby'")
            state = "SELECT sync_state FROM pg_stat_replication"
            while await execute(state, url=primary.url) != [("sync",)]:
                await asyncio.sleep(0.01)
        yield primary, standby
    finally:
        standby.kill()
        primary.kill()


async def acknowledged_before_and_after(primary, standby):
    """Let the standby take over under load; return the keys of all calls that were acknowledged, before it and after."""
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    url = f"postgresql://resurgam:{primary.password}@{hosts}/postgres?schema=s"
    pool = Pool(parse(url), SystemClock(), name="test", lease=10_000, code=join([CALLS, PUT]))
    before, after = [], []
    acknowledged, stop = before, asyncio.Event()

    async def load(name):
        number = 0
        while not stop.is_set():
            number += 1
            acknowledged.append(await pool.ask("put", f"{name}-{number}-"))

    tasks = [asyncio.ensure_future(load(name)) for name in "xyz"]
    try:
        while len(before) < 300:
            await asyncio.sleep(0)
        primary.kill()
        acknowledged = after
        await asyncio.to_thread(standby.promote)
        while len(after) < 300:
            await asyncio.sleep(0.001)
            assert not any(task.done() for task in tasks)
    finally:
        stop.set()
        await asyncio.gather(*tasks)
        await pool.close()
    return before, after


async def written(standby):
    """Return how often each row was written on the server that has taken over."""
    rows = await execute("SELECT key, expires_at FROM s.stored_values", url=standby.url)
    return {row["key"]: row["expires_at"] for row in rows}


@pytest.mark.long
async def test_nothing_is_lost_if_the_primary_waits_for_its_standby():
    async with pair(synchronous=True) as (primary, standby):
        before, after = await acknowledged_before_and_after(primary, standby)
        found = await written(standby)
        assert {key + half for key in before + after for half in "ab"} == found.keys()
        assert set(found.values()) == {1}


@pytest.mark.long
async def test_whole_calls_are_lost_if_the_primary_does_not_wait():
    async with pair(synchronous=False) as (primary, standby):
        before, after = await acknowledged_before_and_after(primary, standby)
        found = await written(standby)
        lost = [key for key in before if key + "a" not in found]
        print(f"{len(lost)} of {len(before)} acknowledged calls were lost")
        assert [key for key in before if key + "b" not in found] == lost
        assert all(found.get(key + half) == 1 for key in after for half in "ab")
