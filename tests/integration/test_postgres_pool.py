"""Flights, retries and lost connections of the Postgres store, on functions made for these tests."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

from resurgam.runtime.system import SystemClock
from resurgam.store.postgres import functions
from resurgam.store.postgres.functions import join
from resurgam.store.postgres.pool import Pool
from resurgam.store.postgres.url import parse
from support.postgres import fresh_url

CALLS = (Path(functions.__file__).parent / "functions" / "shared" / "calls.sql").read_text()

ECHO = """
CREATE FUNCTION {schema}.echo_{code}(moment bigint, lease bigint, owner text, parts jsonb)
RETURNS TABLE (notices text[], answers jsonb) LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY SELECT ARRAY['echo', jsonb_array_length(parts)::text], parts;
END
$$;
"""


@asynccontextmanager
async def opened(text=ECHO, url=None):
    pool = Pool(parse(url or fresh_url()), SystemClock(), name="test", lease=10_000, code=join([CALLS, text]))
    try:
        yield pool
    finally:
        await pool.close()


async def test_calls_that_wait_share_a_flight():
    async with opened() as pool:
        noted = []
        pool.notify = noted.append
        assert await asyncio.gather(*(pool.ask("echo", n) for n in range(100))) == list(range(100))
        assert noted == [["echo", "100"]]
