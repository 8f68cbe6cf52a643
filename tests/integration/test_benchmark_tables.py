"""What is published is what was measured, and a peer that fails is told of rather than left out."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

PEER = f"""#!{sys.executable}
import json, pathlib, sys
def managed(at_once):
    tries = pathlib.Path(__file__).with_name(f"tries-{{at_once}}")
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    return at_once <= 200 or (at_once == 500 and tries.read_text() == "x")
if sys.argv[1] == "-c":
    print("0.0")
elif sys.argv[2] == "describe":
    print(json.dumps({{"restate": "9.9", "restate_sdk": "9.8", "restate_disable_wal_fsync": "false"}}))
elif sys.argv[1].endswith("peer_restate.py"):
    pathlib.Path(sys.argv[3]).write_text(" ".join(sys.argv[2:]))
    print(json.dumps([{{"workload": sys.argv[2], "p50": 1.0, "p95": 1.0, "rate": 7.0, "rss": 1}}]))
elif sys.argv[3] == "fast" or not managed(int(sys.argv[6])):
    sys.exit("pool.TimeoutError: QueuePool limit reached (Background on this error at: nowhere)")
else:
    print(json.dumps([{{"workload": sys.argv[2], "p50": 1.0, "p95": 1.0, "rate": 20000 / int(sys.argv[6]), "rss": 1, "level": "FULL"}}]))
"""
"""Manages 200 workflows at once, 500 the first time only, and none when it is tuned."""


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_tables_are_those_of_the_results() -> None:
    done = script("publish.py", "--check")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    made = tmp_path / "environment" / "bin" / "peer"
    made.parent.mkdir(parents=True)
    made.write_text(PEER)
    made.chmod(0o755)
    return made


def test_a_peer_that_fails_is_tried_with_fewer_and_reported(tmp_path, peer) -> None:
    known = {"machine": {}, "cases": {"W1": {"scale": 1, "repeats": 1, "sides": {"dbos": {"values": [1.0]}}}}}
    (tmp_path / "compare.json").write_text(json.dumps(known))
    options = [
        "--only",
        "W2",
        "--scale",
        "0.01",
        "--repeats",
        "2",
        "--folder",
        str(tmp_path),
        "--results",
        str(tmp_path),
    ]
    done = script("compare.py", str(peer), *options)
    assert done.returncode == 0, done.stderr
    cases = json.loads((tmp_path / "compare.json").read_text())["cases"]
    assert cases["W1"] == known["cases"]["W1"]
    sides = cases["W2"]["sides"]
    assert sides["resurgam"]["values"][0] > 0
    assert (sides["dbos"]["at_once"], list(sides["dbos"]["refused"])) == (200, ["1000", "500"])
    # What it managed once with 500 is not mixed with what it gave at 200.
    assert sides["dbos"]["values"] == [100.0, 100.0]
    assert sides["dbos, tuned"]["failed"] == "failed: QueuePool limit reached"
    assert "100 steps/s ¹" in done.stdout
    assert "With at most 200 in flight; 500 and 1,000 at once ended with `QueuePool limit reached`." in done.stdout
    assert "| failed: QueuePool limit reached |" in done.stdout
    assert "restate" not in sides
    assert "Restate was not measured: its server is not installed." in done.stdout


def test_restate_is_measured_where_its_server_is_installed(tmp_path, peer) -> None:
    server = peer.parents[1] / "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server"
    server.parent.mkdir(parents=True)
    server.touch()
    options = [
        "--only",
        "W1",
        "--scale",
        "0.01",
        "--repeats",
        "1",
        "--folder",
        str(tmp_path),
        "--results",
        str(tmp_path),
    ]
    done = script("compare.py", str(peer), *options)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "compare.json").read_text())
    assert report["cases"]["W1"]["sides"]["restate"]["values"] == [7.0]
    assert server.read_text().split()[:2] == ["W1", str(server)]
    assert "| Restate | ratio |" in done.stdout
    assert "Restate 9.9 (SDK 9.8)" in done.stdout
    assert "`rocksdb-disable-wal-fsync` false" in done.stdout
    assert "| expected |" not in done.stdout  # a trial is not judged


def test_expected_ratios_are_judged_at_full_size(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    tables, results = importlib.import_module("tables"), importlib.import_module("results")
    cases = {
        "W1": {
            "scale": 1,
            "sides": {"resurgam": rate(100), "dbos": rate(10), "dbos, tuned": rate(99), "restate": rate(25)},
        },
        "W2": {"scale": 1, "sides": {"resurgam": rate(100), "dbos": {"values": [], "failed": "over 600 s"}}},
        "W6 10000": {"scale": 1, "sides": {"resurgam": rate(1), "dbos": rate(20)}},
        "W7": {"scale": 0.5, "sides": {"resurgam": rate(100), "dbos": rate(1)}},
    }

    assert [tuple(row) for row in tables.expectations(list(cases.items()), results.EXPECTED)] == [
        ("W1", "at least 8 x DBOS", "10.0 x", "met"),
        ("W2", "at least 40 x DBOS", "not measured", ""),
        ("W6 (10,000 steps)", "at least 20 x DBOS", "20.0 x", "met"),
        ("W1", "at least 5 x Restate", "4.0 x", "not met"),
    ]


def test_workloads_are_listed_in_the_order_of_their_numbers(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    limits = importlib.import_module("limit").limits
    machine = {"processor": "", "cores": 1, "file_system": "", "python": "", "sqlite": ""}
    figures = {"title": "", "sample": "", "samples": 1, "p50": 1.0, "p95": 1.0}
    workloads = {
        name: {"scale": 1, "repeats": 1, "failed": None, "figures": [figures | {"workload": name}]}
        for name in ("W10", "W2", "W1")
    }

    written = limits({"machine": machine, "workloads": workloads})
    first_table = written.split("\n\n")[1].splitlines()[2:]
    assert [row.split("|")[1].strip() for row in first_table] == ["W1", "W2", "W10"]


def rate(number: float) -> dict:
    return {"values": [number]}
