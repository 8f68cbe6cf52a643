"""The script that measures ``resurgam check`` works, and the command is quick enough at its full size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def measured(*arguments: str) -> dict:
    command = [sys.executable, str(ROOT / "benchmarks/checking.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_measures_a_store_that_fits_and_one_that_does_not_in_part():
    found = measured("--runs", "300", "--events", "10")

    assert found["fits"]["summary"] == "300 runs: 300 fit, 0 would diverge, 0 undecided"
    assert found["edited"]["summary"] == "300 runs: 270 fit, 30 would diverge (1 finding), 0 undecided"


@pytest.mark.long
def test_ten_thousand_runs_of_fifty_events_take_less_than_a_minute_on_two_cores():
    found = measured()

    assert (found["runs"], found["events"], found["processes"]) == (10_000, 50, 2)
    assert found["fits"]["seconds"] < 60
    assert found["edited"]["seconds"] < 60
