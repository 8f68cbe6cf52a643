"""`resurgam bench`: every workload runs, at a tiny size; how fast is not asserted."""

import contextlib
import json
import sqlite3
from functools import partial

import pytest
from click.testing import CliRunner, Result

from resurgam import Engine
from resurgam.bench import programs
from resurgam.bench.catalog import EXPECTATIONS, WORKLOADS, verdicts
from resurgam.bench.figures import Count, Figures, Raw, percentile, rounds
from resurgam.bench.raw import RawFile, commits_of
from resurgam.bench.recovery import recovery, recovery_of_many
from resurgam.bench.scene import Scene
from resurgam.bench.several import several
from resurgam.bench.storage import Files, file_system, open_storage
from resurgam.cli.main import main
from resurgam.core import event as events


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments], prog_name="resurgam")


@pytest.fixture(scope="module")
def report() -> dict:
    with pytest.MonkeyPatch.context() as patch:
        # A long lease: the commits of a renewal would be counted too.
        patch.setattr("resurgam.bench.scene.Engine", partial(Engine, lease=3600))
        done = bench("--scale", "0.01", "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_every_workload_gives_its_figures(report):
    assert [f["workload"] for f in report["figures"]] == [
        "W1",
        "W2",
        "W3",
        "W4",
        "W5",
        "W6",
        "W6",
        "W7",
        "W8",
        "W9",
        "W9",
        "W10",
        "W10",
        "W11",
        "W12",
        "W12",
        "W13",
        *("W14", "W14", "W14"),
    ]
    assert (report["level"], report["failed"], report["skipped"]) == ("FULL", {}, [])
    for figures in report["figures"]:
        assert 0 < figures["p50"] <= figures["p95"]
        name = figures["workload"]
        assert name in {"W9", "W10"} or "streams" in figures["more"] or figures["raw"]["p50"] > 0
        assert figures["rss"] > 0
        assert figures["level"] == ("FULL" if name != "W12" else None)
        assert (figures["commits"] is None) == (name in {"W6", "W9", "W10", "W11", "W12", "W14"})


def test_every_expectation_is_told_but_at_that_size_none_is_judged(report):
    assert {verdict[0] for verdict in report["verdicts"]} == set(WORKLOADS)
    assert {verdict[-1] for verdict in report["verdicts"]} == {None}


def test_a_sequential_step_is_one_commit(report):
    [chain] = [figures for figures in report["figures"] if figures["workload"] == "W1"]

    assert chain["commits"] == 1.0


def test_the_table_for_people(tmp_path):
    done = bench("--only", "w1,W3", "--scale", "0.02", "--store", f"sqlite:///{tmp_path}/x.db?synchronous=normal")

    assert (done.exit_code, done.stderr) == (0, "")
    where, _, heading, *rows = done.stdout.splitlines()
    assert where.startswith(f"measured in {tmp_path} (")
    assert "PRAGMA synchronous reads NORMAL" in where
    assert heading.split()[:3] == ["WORKLOAD", "P50", "P95"]
    assert [row[:2] for row in rows if row.startswith("W")] == ["W1", "W3", "W1", "W1", "W3"]
    assert "NOT MET" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_memory_cannot_be_killed_nor_shared():
    done = bench("--only", "W6,W4,W10,W11", "--scale", "0.01", "--store", "memory://")

    assert done.exit_code == 0
    for name in ("W6", "W10", "W11"):
        assert f"this store does not support {name}" in done.stdout
    assert "1 workflow, 10 activities gathered" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (
            ["--only", "W99"],
            2,
            "there is no workload 'W99'; there are W1, W2, W3, W4, W5, W6, W7, W8, W9, W10, W11, W12",
        ),
        (["--only", ""], 2, "there is no workload ''"),
        (["--scale", "0"], 2, "Invalid value for '--scale'"),
        (["--store", "nosql://x"], 1, "no store for 'nosql://x'"),
        (["--store", "sqlite:///x.db?colour=red"], 1, "the only option is synchronous=full, normal or off"),
        (["--store", "sqlite:////no/such/folder/x.db"], 1, "cannot create a file there: No such file or directory"),
    ],
)
def test_an_error_is_one_clear_line(arguments, code, part):
    done = bench(*arguments)

    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert part in done.stderr


def test_help_has_an_example():
    assert "Example: resurgam bench --only W1,W4" in bench("--help").stdout


# The instruments.


def test_a_temporary_place_is_on_a_disk_and_is_removed():
    with open_storage(None) as storage:
        assert storage.folder.is_dir()
        assert file_system(storage.folder) not in {"tmpfs", "ramfs"}
        assert storage.url("a").startswith("sqlite:////")
    assert not storage.folder.exists()


async def test_the_raw_limit_writes_the_rows_of_a_history(tmp_path):
    with open_storage(f"sqlite:///{tmp_path}/x.db") as storage:
        async with Scene(storage).engine("a") as engine:
            handle = await engine.start("chain", 3)
            await handle.result()
            history = await handle.history()
    commits = commits_of(history)
    assert [len(commit) for commit in commits] == [1, 1, 2, 2, 3]
    assert [entry for commit in commits for entry in commit] == history
    assert isinstance(commits[2][0], events.ActivityCompleted)

    file = RawFile(tmp_path / "raw.db", "OFF")
    assert len(file.write(history)) == len(file.write(history, instances=2)) == 5
    assert file.counts() == {"instances": 3, "events": 27, "activities": 0}
    file.close()


async def test_the_raw_limit_fills_columns_that_it_does_not_know(tmp_path):
    async with Engine(f"sqlite:///{tmp_path}/raw.db", registry=programs.registry) as engine:
        handle = await engine.start("chain", 1)
        await handle.result()
        history = await handle.history()
    with contextlib.closing(sqlite3.connect(tmp_path / "raw.db")) as connection:
        for table, kind in (("instances", "TEXT"), ("events", "INTEGER"), ("activities", "BLOB")):
            [create] = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", [table]).fetchone()
            connection.execute(f"DROP TABLE {table}")
            connection.execute(create.replace("(", f"(later {kind} NOT NULL,", 1))

    file = RawFile(tmp_path / "raw.db", "OFF")
    file.write(history)
    assert file.counts() == {"instances": 1, "events": 5, "activities": 0}
    file.close()


def test_statements_are_counted_without_the_borders_of_transactions():
    count = Count()
    for statement in ("BEGIN IMMEDIATE", "UPDATE a", "INSERT b", "COMMIT"):
        count.wrote(statement)
    for statement in ("BEGIN", "SELECT c", "COMMIT", "PRAGMA data_version", "-- by a trigger"):
        count.read(statement)

    assert count == Count(commits=1, statements=3)


def test_percentiles_and_rounds():
    assert [percentile([3.0, 1.0, 2.0], share) for share in (0, 0.5, 0.95, 1)] == [1, 2, 3, 3]
    assert list(rounds(3)) == [0, 1, 2]
    assert list(rounds(3, patience=-1)) == [0]


def test_expectations_are_met_or_not():
    good = Figures(
        workload="W1", title="", sample="", samples=1, p50=1, p95=1, rate=60, commits=1.001, raw=Raw(of="", p50=1, rate=100)
    )  # fmt: skip
    slow = Figures(workload="W2", title="", sample="", samples=1, p50=1, p95=1, rate=14_999)

    assert [verdict.met for verdict in verdicts([good, slow])] == [True, True, False]
    assert [verdict.met for verdict in verdicts([good, slow], scale=0.5)] == [None] * 3
    assert {expectation.workload for expectation in EXPECTATIONS} == set(WORKLOADS)


async def test_what_is_killed_and_recovered_has_been_replayed(tmp_path):
    """A new step is one that the workflow asked for, not what the killed process left on the queue."""
    scene = Scene(Files(tmp_path), 0.002)
    shorter, longer = await recovery(scene)
    async with Engine(scene.storage.url("w6-20"), worker=False) as engine:
        history = await engine.handle("run-0").history()

    assert (shorter.more["length"], longer.more["length"]) == (2, 20)
    gates = [event for event in history if isinstance(event, events.ActivityScheduled) and event.name == "gate"]
    answers = [event for event in history if isinstance(event, events.ActivityCompleted)]
    assert (len(gates), len(answers)) == (3, 22)  # one process passed the first gate, the next one the second


async def test_every_run_of_a_killed_process_makes_a_new_step(tmp_path):
    scene = Scene(Files(tmp_path), 0.003)
    [figures] = await recovery_of_many(scene)
    async with Engine(scene.storage.url("w11-50"), worker=False) as engine:
        histories = [await engine.handle(f"run-{run}").history() for run in range(3)]

    assert (figures.more["runs"], figures.title) == (3, "killed in 3 runs of 100 events")
    for history in histories:
        answers = [event for event in history if isinstance(event, events.ActivityCompleted)]
        assert len(answers) == 52  # as above: 50 steps, a gate passed by each of two processes


async def test_two_processes_share_the_load_of_one(tmp_path):
    scene = Scene(Files(tmp_path), 0.004)
    one, two = await several(scene)

    assert (one.more["processes"], two.more["processes"]) == (1, 2)
    assert two.more["to_one_process"] > 0
    for name, workflows in (("w10-1-0", 4), ("w10-2-0", 4)):
        async with Engine(scene.storage.url(name), worker=False) as engine:
            done = (await engine.store.inspector.stats()).instances["completed"]
        assert done == workflows + int(name[4])  # and the warm-up of each process
