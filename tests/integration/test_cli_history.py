"""The command `resurgam history`: its order, its versions, and the histories of earlier attempts."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from resurgam import Engine, Registry
from resurgam.cli.history import fitted
from resurgam.cli.main import main
from resurgam.core import event as events
from resurgam.runtime.system import SystemClock
from resurgam.testing.contract.bench import OpensStores
from support.manual_worker import FAILURE, ManualWorker, at


@pytest.fixture
def url(tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("RESURGAM_STORE", f"sqlite:///{tmp_path}/shop.db")
    (tmp_path / "shop.db").touch()
    return f"sqlite:///{tmp_path}/shop.db"


def resurgam(*arguments):
    return CliRunner().invoke(main, ["history", *arguments], prog_name="resurgam")


def ok(*arguments):
    done = resurgam(*arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def workerless_engine(url, act):
    """Do what workers would, in the store that the commands talk to."""

    async def work():
        async with Engine(url, worker=False, registry=Registry()) as engine:
            return await act(engine, ManualWorker(engine.store, SystemClock(), OpensStores()))

    return asyncio.run(work())


async def _life(engine, worker):
    """Record calls and answers in another order than that of their places; the first attempt fails."""
    first = await engine.start("sell", id="o-1")
    await worker.retries("o-1", "second")
    await worker.does(
        "o-1",
        events.TimerStarted(deadline=1, version=2, **at(2)),
        events.ActivityScheduled(name="charge", queue="q", **at(1)),
        events.TimerFired(ref=2),
        events.SignalReceived(name="go", id="s-1"),
        events.SignalHandled(signal=5, scope=1),
        events.TimerStarted(deadline=1, **at(0, 1, 1)),
        events.ActivityFailed(ref=3, failure=FAILURE),
    )
    return first.execution_id


def test_a_call_is_printed_with_its_place_and_its_version(url):
    workerless_engine(url, _life)
    lines = [line.split() for line in ok("o-1").splitlines()]
    assert [line[4] for line in lines if "timer_started" in line] == ["{2}v2", "{0,"]
    assert [line[4] for line in lines if "activity_scheduled" in line] == ["{1}v1"]
    assert "ValueError: no" in ok("o-1")


def test_a_history_is_printed_in_the_order_of_locations(url):
    workerless_engine(url, _life)
    seqs = [json.loads(line)["seq"] for line in ok("o-1", "--by-location", "--json").splitlines()]
    assert seqs == [1, 6, 7, 3, 8, 2, 4, 5]
    shown = [line.split()[0] for line in ok("o-1", "--by-location").splitlines()[1:]]
    assert shown == [str(seq) for seq in seqs]
    assert [line.split()[0] for line in ok("o-1").splitlines()[1:]] == [str(seq) for seq in range(1, 9)]
    kept = [json.loads(line) for line in ok("o-1", "--by-location", "--forgotten", "--json").splitlines()]
    assert ([one["seq"] for one in kept], {one["active"] for one in kept}) == (seqs, {True})


def test_the_history_of_an_earlier_attempt_is_printed(url):
    first = workerless_engine(url, _life)
    types = [json.loads(line)["type"] for line in ok("o-1", "--execution", first, "--json").splitlines()]
    assert types == ["workflow_started", "workflow_retried"]
    assert "workflow_retried" in ok("o-1", "--execution", first, "--forgotten")

    done = resurgam("o-1", "--execution", "none")
    line = "Error: there is no workflow with id 'o-1' and execution 'none'\n"
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", line)


@pytest.mark.parametrize(
    ("width", "time"), [(80, "14:00:00"), (120, "14:00:00.123"), (200, "2026-01-31 14:00:00.123Z")]
)
def test_rows_fit_the_terminal(width, time):
    headings = ["SEQ", "TIME", "TYPE", "LOCATION", "NAME", "VALUE"]
    kind = "activity_retry_scheduled"
    row = ["14", "2026-01-31 14:00:00.123Z", kind, "{2, 1, 1}v1", "send_a_long_letter", "x" * 60]
    table = [headings, *fitted(headings, [row, row], width)]
    assert sum(max(map(len, column)) + 2 for column in zip(*table, strict=True)) - 2 <= width
    assert table[1][1:3] == [time, kind]


def test_the_day_is_told_where_there_are_several():
    headings = ["SEQ", "TIME", "TYPE", "LOCATION", "NAME", "VALUE"]
    rows = [["1", f"2026-01-{day} 14:00:00.123Z", "workflow_started", "", "sell", "x" * 60] for day in (30, 31)]
    assert [row[1] for row in fitted(headings, rows, 80)] == ["01-30 14:00:00", "01-31 14:00:00"]
