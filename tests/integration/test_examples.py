"""Every example and every code block of the README runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.limits import HANGS

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def run(*command: str, folder: Path = ROOT) -> str:
    """Run Python as a person would, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        capture_output=True,
        text=True,
        timeout=HANGS,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_prints_something(example):
    assert run(str(example)).strip()


def test_there_are_examples():
    assert len(EXAMPLES) >= 9


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "receipt for o-1"), (1, "reminded Ada"), (2, "ctx.v(2).activity(screen, ...)")]
)
def test_the_code_block_of_the_readme_runs_and_runs_again(number, expected, tmp_path):
    """The second time finds the file that the first one left. Nobody kills it here, so it need not wait for that."""
    block = BLOCKS[number].replace("asyncio.sleep(20)", "asyncio.sleep(0)")
    assert expected in run("-c", block, folder=tmp_path)
    assert expected in run("-c", block, folder=tmp_path)


def test_the_readme_has_no_other_code_blocks():
    assert len(BLOCKS) == 3


def test_the_readme_names_exactly_two_commands_to_set_it_up():
    commands = re.findall(r"^    (make [a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE)

    assert commands == ["make demo", "make test"]
