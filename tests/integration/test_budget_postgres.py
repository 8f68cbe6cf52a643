"""What a step costs on a Postgres server, in counts: they are the same on a busy machine as on a quiet one.

The budget is `tests/budget.json`. Round trips are counted on the wire, by a proxy between the engine and the server; rows and
WAL by a server that does nothing else meanwhile.
"""

import asyncio
from contextlib import asynccontextmanager, contextmanager

import pytest

from resurgam import Engine
from resurgam.bench import programs
from support.budget import all_within, within
from support.costs import of_a_sequential_step, of_a_signal, of_a_start_with_one_step
from support.count_workloads import until_at_rest
from support.postgres import execute, fresh_url, own_server
from support.wire import proxied


@asynccontextmanager
async def warm_engine(url):
    # A long lease: the round trips of a renewal would be counted as those of the steps.
    async with Engine(url, registry=programs.registry, lease=3600) as opened:
        await opened.execute(programs.chain, 20)
        await opened.execute(programs.fan, 20)
        await until_at_rest(opened)
        yield opened


@pytest.fixture
async def wired():
    async with proxied(fresh_url()) as (wire, url), warm_engine(url) as opened:
        yield wire, opened


def round_trips(wire):
    """Return what counts the round trips on a wire."""

    @contextmanager
    def counting(_):
        counts, before = {}, wire.round_trips
        yield counts
        counts["round trips"] = wire.round_trips - before

    return counting


@pytest.mark.parametrize("costs", [of_a_sequential_step, of_a_start_with_one_step, of_a_signal])
async def test_round_trips(wired, costs) -> None:
    wire, engine = wired
    # A look that nothing asks for, or another connection, may fall into one count, and only adds to it.
    counted = [await costs(engine, round_trips(wire)) for _ in range(3)]
    all_within({name: min(one[name] for one in counted) for name in counted[0]})


async def test_round_trips_of_a_step_of_many_at_once(wired) -> None:
    wire, engine = wired
    before = wire.round_trips
    await asyncio.gather(*(engine.execute(programs.chain, 10) for _ in range(200)))
    assert (wire.round_trips - before) / 2000 <= 0.1  # how many share a flight depends on the machine


@pytest.fixture(scope="module")
def alone():
    server = own_server("autovacuum=off")
    yield server.url
    server.kill()


async def position(url) -> int:
    return (await execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint", url=url))[0][0]


async def test_wal_of_a_sequential_step(alone) -> None:
    async with warm_engine(f"{alone}?schema=wal") as engine:
        counts = []
        for length in (400, 200):
            before = await position(alone)
            await engine.execute(programs.chain, length)
            counts.append(await position(alone) - before)
    within("bytes of WAL per sequential step on Postgres", (counts[0] - counts[1]) / 200)


_WRITTEN = """
SELECT relname::text AS name, n_tup_ins AS inserted, n_tup_upd AS updated, n_tup_hot_upd AS hot, n_tup_del AS deleted
FROM pg_stat_user_tables WHERE schemaname = $1 AND relname <> ALL ($2)
"""

_KEPT = ["calls", "workers", "announced"]
"""Tables with a row for each connection, worker or queue: who begins, and when, depends on the machine."""


async def rows_written(url, schema, length, workflows=1) -> dict[tuple[str, str], int]:
    """Return what chains write to each table of a new store, once the server has the figures of all its connections."""
    async with Engine(f"{url}?schema={schema}", registry=programs.registry, lease=3600) as engine:
        await asyncio.gather(*(engine.execute(programs.chain, length) for _ in range(workflows)))
    while (await execute("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'resurgam%'", url=url))[0][
        0
    ]:
        pass
    rows = await execute(_WRITTEN, schema, _KEPT, url=url)
    return {(row["name"], kind): row[kind] for row in rows for kind in ("inserted", "updated", "hot", "deleted")}


async def test_rows_that_a_sequential_step_writes(alone) -> None:
    short, long = [await rows_written(alone, f"rows{length}", length) for length in (100, 200)]
    assert {what: count - short[what] for what, count in long.items() if count != short[what]} == {
        ("events", "inserted"): 200,
        ("states", "updated"): 100,
        ("states", "hot"): pytest.approx(100, abs=8),  # a page is full now and then
    }


async def test_steps_of_many_at_once_touch_no_index_of_their_states(alone) -> None:
    written = await rows_written(alone, "many", 10, workflows=300)
    ends = 300  # these leave the list of leases
    assert written["states", "updated"] == 300 * 10
    assert written["states", "updated"] - written["states", "hot"] <= 1.3 * ends
