"""Which modules a process imports: what it does not need is imported when it is needed.

A start is measured by `resurgam bench`; what it costs is decided by these modules.
"""

import subprocess
import sys

import pytest

from resurgam.cli.main import ListedCommand, main

UNNEEDED = {
    *("resurgam.check", "resurgam.cli", "resurgam.lint", "resurgam.store.memory", "resurgam.sync", "resurgam.testing"),
    *("resurgam.client.compensation", "resurgam.client.describe", "resurgam.client.pause", "resurgam.client.pending"),
    *("resurgam.client.flows", "resurgam.flows"),
    *("resurgam.client.retry", "resurgam.client.tree", "resurgam.store.sqlite.vacuum"),
    *("click", "ctypes", "importlib.metadata", "importlib.resources", "json", "multiprocessing", "pydantic", "rich"),
    *("tempfile", "zipfile"),
}
"""Modules and whole packages that are imported when they are first used, by a worker or a client."""

PROGRAM = """
import asyncio, sys
from resurgam import Context, Engine, activity, workflow

@activity
async def double(number: int) -> int:
    return 2 * number

@workflow
async def twice(ctx: Context) -> int:
    return await ctx.activity(double, 2)

async def work():
    async with Engine(f"sqlite:///{sys.argv[1]}/one.db") as engine:
        assert await engine.execute(twice) == 4

async def call():
    async with Engine(f"sqlite:///{sys.argv[1]}/one.db", worker=False) as engine:
        handle = await engine.start(twice)
        await handle.signal("go")
        await handle.terminate()

"""


def modules(code: str, *arguments: str) -> set[str]:
    """Run *code* in a new process and return the modules that it has imported."""
    script = f"{code}\nimport sys\nprint('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def own(found: set[str]) -> set[str]:
    return {name for name in found if name.startswith("resurgam")}


def test_importing_the_package_imports_nothing_else_of_it():
    found = modules("import resurgam")

    assert own(found) == {"resurgam"}
    assert found & {"asyncio", "msgspec", "click", "sqlite3"} == set()


def test_the_help_of_the_command_imports_no_verb():
    help_ = "import sys, contextlib\nsys.argv = ['resurgam', '--help']\nfrom resurgam.cli.main import main\n"
    found = modules(f"{help_}with contextlib.suppress(SystemExit):\n    main()")

    assert own(found) == {"resurgam", "resurgam.cli", "resurgam.cli.main", "resurgam.cli.text"}
    assert found & {"asyncio", "msgspec", "sqlite3", "rich", "importlib.metadata"} == set()


def test_a_worker_imports_only_what_it_runs(tmp_path):
    found = modules(f"{PROGRAM}asyncio.run(work())", str(tmp_path))

    assert found & UNNEEDED == set()


def test_a_client_imports_nothing_that_runs_workflows(tmp_path):
    found = modules(f"{PROGRAM}asyncio.run(call())", str(tmp_path))

    assert (
        found & {*UNNEEDED, "resurgam.worker.worker", "resurgam.runtime.brain", "resurgam.runtime.execution"} == set()
    )


@pytest.mark.parametrize("listed", main.commands.values(), ids=lambda listed: listed.name)
def test_a_listed_command_is_the_one_that_is_imported(listed):
    assert isinstance(listed, ListedCommand)
    assert listed.load().name == listed.name
