"""`resurgam bench` on a Postgres server, at a tiny size; how fast is not asserted."""

import json

import pytest
from click.testing import CliRunner

from resurgam import Engine
from resurgam.bench import programs
from resurgam.bench.catalog import POSTGRES_EXPECTATIONS, verdicts
from resurgam.bench.figures import Figures
from resurgam.bench.schemas import open_schemas
from resurgam.cli.main import main
from resurgam.store import records as r
from resurgam.store.postgres.url import parse
from support.count_workloads import until_at_rest
from support.postgres import execute, shared_server


@pytest.fixture(scope="module")
def report() -> dict:
    arguments = ["bench", "--only", "W1,W3,W7,W9", "--scale", "0.01", "--json", "--store", shared_server().url]
    done = CliRunner().invoke(main, arguments, prog_name="resurgam")
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


def figures_of(report: dict, workload: str) -> list[dict]:
    return [figures for figures in report["figures"] if figures["workload"] == workload]


def test_each_workload_counts_round_trips(report):
    assert [f["workload"] for f in report["figures"]] == ["W1", "W3", "W7", "W9", "W9"]
    for name in ("W1", "W3", "W7"):
        [figures] = figures_of(report, name)
        assert (figures["round_trips"] is None, figures["commits"] is None) == (False, True)
    assert [f["title"] for f in figures_of(report, "W9")] == [f"{w} beside 10,000 idle instances" for w in ("W1", "W2")]


def test_a_chain_is_compared_with_plain_statements(report):
    assert figures_of(report, "W1")[0]["more"]["rate_of_calls"] > 0


def test_the_server_and_what_a_sleeper_takes_are_told(report):
    [sleepers] = figures_of(report, "W7")

    assert report["server"].startswith("Postgres ")
    assert "synchronous_commit on, fsync off" in report["server"]
    assert sleepers["more"]["server_bytes_per_sleeper"] > 500
    assert shared_server().password not in json.dumps(report)


async def test_nothing_is_left_behind(report):
    assert await execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%bench%'") == []


@pytest.fixture
def schemas():
    with open_schemas(f"{shared_server().url}?schema=mine&pool=7") as opened:
        yield opened


async def test_each_store_has_a_schema_and_the_options_of_the_url(schemas):
    address = parse(schemas.url("a"))

    assert (address.pool, address.schema) == (7, f"{schemas.prefix}a")
    assert address.schema.startswith("mine_bench_")


async def test_copies_of_sleepers_are_idle_instances(schemas):
    async with Engine(schemas.url("a"), registry=programs.registry) as engine:
        await engine.start(programs.sleeper)
        await until_at_rest(engine)
        assert await schemas.copy_sleepers("a", 30) == 30
        stats = await engine.store.inspector.stats()
        found = (await engine.store.inspector.list(r.Query(name="sleeper"))).instances
        histories = [await engine.store.inspector.history(one) for one in found]

    assert stats.instances["running"] == 31
    assert len({(one.entity_id, one.run_id, one.execution_id) for one in found}) == 31
    assert {tuple(event.type for event in history) for history in histories} == {("workflow_started", "timer_started")}
    assert {history[0].execution_id for history in histories} == {one.execution_id for one in found}


def test_expectations_are_met_or_not():
    chain = Figures(workload="W1", title="", sample="", samples=1, p50=1, p95=1, rate=40, round_trips=1.004)
    many = Figures(workload="W2", title="", sample="", samples=1, p50=1, p95=1, rate=79, round_trips=0.2)
    crowd = Figures(workload="W9", title="", sample="", samples=1, p50=1, p95=1, more={"kept": 0.9, "of_W2": 1.0})

    found = verdicts([chain, many, crowd], expectations=POSTGRES_EXPECTATIONS)
    assert [(verdict.workload, verdict.met) for verdict in found] == [
        ("W1", True),
        ("W2", False),
        ("W9", None),
        ("W9", True),
    ]
