"""What is published is what was measured, and a peer that fails is told of rather than left out."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

PEER = f"""#!{sys.executable}
import json, pathlib, sys
def managed(at_once):
    tries = pathlib.Path(__file__).with_name(f"tries-{{at_once}}")
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    return at_once <= 200 or (at_once == 500 and tries.read_text() == "x")
if sys.argv[1] == "-c":
    print("0.0")
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


def test_a_peer_that_fails_is_tried_with_fewer_and_reported(tmp_path) -> None:
    peer = tmp_path / "peer"
    peer.write_text(PEER)
    peer.chmod(0o755)
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
