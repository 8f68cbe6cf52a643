"""`resurgam lint`: what it prints for people and for programs, and how it refuses; and that our examples are clean."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from resurgam.cli.main import main
from resurgam.runtime.loop.forbidden import RULES
from support.limits import HANGS

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SHOP = """\
import time
from resurgam import workflow

def stamp():
    return time.time()

@workflow
async def checkout(ctx):
    return stamp()
"""
CLEAN = """\
from resurgam import workflow

@workflow
async def refund(ctx):
    await ctx.sleep(1)
"""


@pytest.fixture
def shop(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "clean.py").write_text(CLEAN)
    (tmp_path / "wrong.py").write_text("x = 1\ndef\n")
    return tmp_path


def lint(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["lint", *arguments], prog_name="resurgam")


@pytest.mark.parametrize("module", ["shop.py", "shop"])
def test_findings_for_people(shop, module):
    done = lint(module)

    finding, count = done.stdout.splitlines()
    assert finding.removeprefix(f"{shop}/") == (
        "shop.py:5:12: RS101 clock: time.time() in workflow checkout (in stamp, called from checkout at line 9): "
        "the time differs on replay; use ctx.now()"
    )
    assert count == "1 finding in 1 workflow"
    assert (done.exit_code, done.stderr) == (1, "")


def test_findings_for_programs(shop):
    done = lint("shop.py", "clean.py", "shop.py", "--json")

    assert done.exit_code == 1
    assert json.loads(done.stdout) == {
        "findings": [
            {
                "code": "RS101",
                "rule": "clock",
                "file": "shop.py",
                "line": 5,
                "column": 12,
                "workflow": "checkout",
                "path": [{"function": "stamp", "caller": "checkout", "line": 9}],
                "message": "time.time() in workflow checkout (in stamp, called from checkout at line 9): "
                "the time differs on replay",
                "remedy": "use ctx.now()",
            }
        ],
        "workflows": 2,
    }


def test_no_findings(shop):
    (shop / "empty.py").write_text("")

    assert (lint("clean.py").stdout, lint("clean.py").exit_code) == ("no findings in 1 workflow\n", 0)
    assert lint("clean.py", "empty.py", "--json").stdout == '{"findings":[],"workflows":1}\n'
    assert lint("empty.py").stdout == "no findings in 0 workflows\n"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["wrong.py"], "MODULE: wrong.py:2: def: invalid syntax (see resurgam lint --help)"),
        (["none.py"], "/none.py (see resurgam lint --help)"),
        (["no_such_module"], "there is no module 'no_such_module' in "),
        (["clean.py", "wrong.py"], "wrong.py:2: def: invalid syntax"),
        ([""], "must not be empty"),
        ([], "Missing argument 'MODULE...'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(shop, arguments, part):
    done = lint(*arguments)

    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert part in done.stderr


def test_the_help_has_an_example_and_tells_how_to_allow_a_line():
    text = " ".join(lint("--help").stdout.split())

    assert "Example: resurgam lint shop.py" in text
    assert "# resurgam: allow clock" in text
    assert "RESURGAM_DEV=1" in text
    assert all(rule.word in text for rule in RULES.values())


def test_every_rule_is_told_in_the_page_about_determinism():
    page = (ROOT / "docs/concepts/determinism.md").read_text()

    assert [code for code, rule in RULES.items() if f"| {code} | `{rule.word}` |" not in page] == []


def test_the_examples_have_no_findings():
    done = lint(*map(str, EXAMPLES), "resurgam.cli.demo_shop", "resurgam.bench.programs")

    assert done.exit_code == 0, done.stdout
    assert done.stdout.startswith("no findings in ")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_under_watch_without_a_complaint(example):
    code = f"import logging, runpy, sys; logging.basicConfig(); runpy.run_path({str(example)!r}, run_name='__main__')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "RESURGAM_DEV": "1"}
    command = [sys.executable, "-c", code] if example.stem != "cpu_bound" else [sys.executable, str(example)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANGS, check=False)

    assert done.returncode == 0, done.stderr
    assert "resurgam.dev" not in done.stderr
    assert "NotDeterministic" not in done.stderr + done.stdout
