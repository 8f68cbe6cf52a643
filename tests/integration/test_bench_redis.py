"""`resurgam bench` on a Redis server, at a tiny size; how fast is not asserted."""

import json

import pytest
from click.testing import CliRunner

from resurgam import Engine
from resurgam.bench import programs
from resurgam.bench.catalog import SERVER_EXPECTATIONS, compared, verdicts
from resurgam.bench.figures import Figures, Raw
from resurgam.bench.servers import RawServer, Servers, open_servers
from resurgam.cli.main import main
from resurgam.store import records as r
from resurgam.store.redis.url import parse
from support.count_workloads import until_at_rest
from support.redis import shared_server


@pytest.fixture(scope="module")
def report() -> dict:
    arguments = ["bench", "--only", "W1,W3,W7,W9", "--scale", "0.01", "--json", "--store", shared_server().url]
    done = CliRunner().invoke(main, arguments, prog_name="resurgam")
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


def figures_of(report: dict, workload: str) -> list[dict]:
    return [figures for figures in report["figures"] if figures["workload"] == workload]


def test_each_workload_counts_round_trips_beside_a_raw_limit(report):
    assert [f["workload"] for f in report["figures"]] == ["W1", "W3", "W7", "W9", "W9"]
    for name in ("W1", "W3", "W7"):
        [figures] = figures_of(report, name)
        assert figures["raw"]["p50"] > 0
        assert (figures["round_trips"] is None, figures["commits"] is None) == (False, True)
    assert [f["title"] for f in figures_of(report, "W9")] == [f"{w} beside 10,000 idle instances" for w in ("W1", "W2")]


def test_what_is_compared_runs_on_sqlite_too(report):
    [figures] = figures_of(report, "W3")

    assert [(f["workload"], f["level"]) for f in report["beside"]] == [("W3", "FULL")]
    assert figures["more"]["p50_to_sqlite"] > 0
    assert {verdict[-1] for verdict in report["verdicts"]} == {None}


def test_the_server_and_the_memory_of_a_sleeper_are_told(report):
    [sleepers] = figures_of(report, "W7")

    assert "maxmemory-policy noeviction" in report["server"]
    assert report["level"] is None
    assert sleepers["more"]["server_bytes_per_sleeper"] > 500


def test_nothing_is_left_behind(report):
    assert shared_server().ask("KEYS", "resurgam-bench-*") == []


def test_the_table_for_people():
    arguments = ["bench", "--only", "W3", "--scale", "0.02", "--store", shared_server().url]
    done = CliRunner().invoke(main, arguments, prog_name="resurgam")

    where, _, heading, row, beside, _, _, verdict, *_ = done.stdout.splitlines()
    assert where.startswith(f"measured in {shared_server().url} under the prefix resurgam-bench-")
    assert heading.split()[-3:] == ["ROUND", "TRIPS", "RSS"]
    assert row.startswith("W3")
    assert "on SQLite: start, 1 activity, result" in beside
    assert "p50 within 1.2 of SQLite's" in verdict


@pytest.fixture
def servers() -> Servers:
    with open_servers(f"{shared_server().url}?partitions=2&prefix=mine") as opened:
        yield opened


def test_each_store_has_a_prefix_and_the_options_of_the_url(servers):
    address = parse(servers.url("a"))

    assert (address.partitions, address.prefix) == (2, servers.prefix("a"))
    assert address.prefix.startswith("mine-bench-")
    assert address.prefix.endswith("-a:")


async def test_the_raw_limit_writes_the_events_of_a_history(servers):
    async with Engine(servers.url("a"), registry=programs.registry) as engine:
        handle = await engine.start(programs.chain, 3)
        await handle.result()
        history = await handle.history()
    raw = RawServer(servers.address, servers.prefix("raw"))
    times = [*raw.write(history), *raw.write(history, instances=2)]
    raw.close()

    assert len(times) == 10
    keys = shared_server().ask("KEYS", f"{servers.prefix('raw')}events-*")
    assert [shared_server().ask("XLEN", key) for key in keys] == [len(history)] * 3


async def test_copies_of_sleepers_are_idle_instances(servers):
    async with Engine(servers.url("a"), registry=programs.registry) as engine:
        for _ in range(20):
            await engine.start(programs.sleeper)
        await until_at_rest(engine)
        assert await servers.copy_sleepers("a", 30) == 30
        stats = await engine.store.inspector.stats()
        [one, *_] = (await engine.store.inspector.list(r.Query(name="sleeper"))).instances
        history = await engine.store.inspector.history(one)

    assert stats.instances["running"] == 50
    assert [event.type for event in history] == ["workflow_started", "timer_started"]


def test_expectations_of_a_server_are_met_or_not():
    chain = Figures(
        workload="W1", title="", sample="", samples=1, p50=1, p95=1, rate=40, round_trips=1.004, raw=Raw(of="", p50=1, rate=100)
    )  # fmt: skip
    many = Figures(workload="W2", title="", sample="", samples=1, p50=1, p95=1, rate=79, round_trips=0.01)
    on_sqlite = Figures(workload="W2", title="", sample="", samples=1, p50=2, p95=2, rate=100)

    found = verdicts([chain, *compared([many], [on_sqlite])], expectations=SERVER_EXPECTATIONS)
    assert [(verdict.workload, verdict.met) for verdict in found] == [
        ("W1", True),
        ("W1", True),
        ("W1", None),
        ("W2", True),
        ("W2", False),
    ]
