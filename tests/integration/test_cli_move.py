"""`resurgam move`, between stores of different kinds, with workers on both and a process that is killed."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from resurgam import Context, Engine, Registry
from resurgam.cli.main import main
from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.flows import ScriptStep
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.store.open import open_store
from support import postgres, redis
from support.limits import HANGS

SRC = str(Path(__file__).parents[2] / "src")
ROOTS = 30

registry = Registry()


@registry.activity
async def double(number: int) -> int:
    return 2 * number


@registry.workflow
async def leaf(ctx: Context, number: int) -> int:
    doubled = await ctx.activity(double, number)
    return doubled + await ctx.listen("more", type=int)


@registry.workflow
async def root(ctx: Context, number: int) -> int:
    last = ctx.promise("last", type=int)
    below = await ctx.workflow(leaf, number, id=f"leaf-{number}")
    return below + await last


def sqlite_url(folder: Path, name: str = "a.db") -> str:
    return f"sqlite:///{folder}/{name}?synchronous=off"


PAIRS = {
    "sqlite-redis": lambda folder: (sqlite_url(folder), redis.fresh_url()),
    "redis-postgres": lambda _: (redis.fresh_url(), postgres.fresh_url()),
    "postgres-sqlite": lambda folder: (postgres.fresh_url(), sqlite_url(folder)),
    "sqlite-sqlite": lambda folder: (sqlite_url(folder), sqlite_url(folder, "b.db")),
}


@pytest.fixture(params=PAIRS)
def urls(request, tmp_path):
    return PAIRS[request.param](tmp_path)


def resurgam(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="resurgam")


async def promised(engine: Engine, entity_id: str) -> str:
    """Return the id of the promise of a run, once its child is there."""
    while True:
        [copy] = await engine.store.transfer.copies(entity_id)
        if any(isinstance(entry, events.ChildStarted) for entry in copy.log):
            return copy.promises[0].promise_id
        instance = copy.instance
        await engine.store.wait(
            r.LogGrown(entity_id=entity_id, execution_id=instance.execution_id, last_seq=instance.last_seq)
        )


def begin(url: str) -> dict[str, str]:
    """Begin runs that wait for a signal, a promise and their children; return the ids of their promises by entity."""

    async def work() -> dict[str, str]:
        async with Engine(url, registry=registry) as engine:
            for number in range(ROOTS):
                await engine.start(root, number, id=f"root-{number}")
            return {f"root-{number}": await promised(engine, f"root-{number}") for number in range(ROOTS)}

    return asyncio.run(work())


def finish(url: str, promise_ids: dict[str, str]) -> None:
    """Let all runs end, by the ids that were handed out before the move."""

    async def work() -> None:
        async with Engine(url, registry=registry) as engine:
            for number in range(ROOTS):
                await engine.handle(f"leaf-{number}").signal("more", 10)
                assert await engine.resolve(promise_ids[f"root-{number}"], 100)
            for number in range(ROOTS):
                assert await engine.handle(f"root-{number}").result(timeout=HANGS) == 2 * number + 110

    asyncio.run(work())


def found_in(url: str) -> dict[str, Status]:
    """Return the executions that a store has, with their status."""

    async def work() -> dict[str, Status]:
        store = open_store(url, SystemClock(), name="look", lease=10_000)
        try:
            page = await store.inspector.list(r.Query(limit=1000))
            return {one.execution_id: one.status for one in page.instances}
        finally:
            await store.close()

    return asyncio.run(work())


def test_live_runs_go_on_in_another_store(urls):
    here, there = urls
    promise_ids = begin(here)
    done = resurgam("move", "--from", here, "--to", there)
    assert done.exit_code == 0, done.output
    assert f"moved {2 * ROOTS} workflows ({2 * ROOTS} executions) from " in done.stdout
    assert f"paused {2 * ROOTS} of {2 * ROOTS}" in done.stderr
    assert f"resumed {2 * ROOTS} of {2 * ROOTS}" in done.stderr
    assert found_in(here) == {}
    finish(there, promise_ids)
    again = resurgam("move", "--from", here, "--to", there, "--json")
    assert json.loads(again.stdout) == {"workflows": 0, "executions": 0, "left": {}, "same_secret": True}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "moved 0 workflows (0 executions) and the catalog from "),
        (1, "moved 1 workflow (1 execution) and the catalog"),
    ],
)
def test_the_catalog_moves_too_and_does_not_count_as_a_workflow(tmp_path, number, text):
    here, there = sqlite_url(tmp_path), sqlite_url(tmp_path, "b.db")

    async def work() -> None:
        async with Engine(here, registry=registry, worker=False) as engine:
            await engine.register_step(ScriptStep("twice", "2 * n", inputs=["n"]))
            for one in range(number):
                await engine.start(root, one)

    asyncio.run(work())
    done = resurgam("move", "--from", here, "--to", there)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(text)
    back = resurgam("move", "--from", there, "--to", here, "--json")
    assert json.loads(back.stdout) == {"workflows": number, "executions": number, "left": {}, "same_secret": True}
    assert len(found_in(here)) == number + 1


@pytest.mark.parametrize("seed", range(2))
def test_a_move_that_is_killed_is_finished_by_the_same_command(urls, seed):
    """At any moment a run is offered in one store at most; in the end all of them are in the target, and complete."""
    here, there = urls
    promise_ids = begin(here)
    before = found_in(here).keys()
    chance = random.Random(seed)
    command = [sys.executable, "-m", "resurgam", "move", "--from", here, "--to", there]
    environment = {**os.environ, "PYTHONPATH": SRC}
    kills = 0
    while True:
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stderr is not None
        lines = chance.randrange(1, 8)
        for _ in range(lines):
            if not process.stderr.readline():
                break
        else:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=HANGS)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
        sides = found_in(here), found_in(there)
        assert sides[0].keys() | sides[1].keys() == before
        offered = [{one for one, status in side.items() if status is Status.RUNNING} for side in sides]
        assert not offered[0] & offered[1]
        if kills == 5:
            assert resurgam("move", "--from", here, "--to", there).exit_code == 0
            break
    assert found_in(here) == {}
    assert found_in(there) == dict.fromkeys(before, Status.RUNNING)
    finish(there, promise_ids)


def test_an_interrupted_move_can_be_aborted(tmp_path):
    here, there = sqlite_url(tmp_path), sqlite_url(tmp_path, "b.db")
    promise_ids = begin(here)
    command = [sys.executable, "-m", "resurgam", "move", "--from", here, "--to", there]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SRC}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()
    process.kill()
    process.communicate(timeout=HANGS)
    done = resurgam("move", "--from", here, "--to", there, "--abort", "--json")
    assert done.exit_code == 0, done.output
    assert Status.PAUSED not in {*found_in(here).values(), *found_in(there).values()}
    assert resurgam("move", "--from", there, "--to", here).exit_code == 0
    finish(here, promise_ids)


def test_errors_are_one_clear_line(tmp_path):
    here, there = sqlite_url(tmp_path), sqlite_url(tmp_path, "b.db")
    missing = resurgam("move", "--from", here, "--to", there)
    assert missing.exit_code == 1
    assert missing.stderr == f"Error: there is no file {tmp_path}/a.db; check --from\n"
    (tmp_path / "a.db").touch()
    itself = resurgam("move", "--from", here, "--to", here)
    assert itself.exit_code == 1
    assert "both URLs lead to the same store; name another one to move to" in itself.stderr
    for arguments in (
        ["--from", here],
        ["--to", there],
        ["--from", here, "--to", "memory://"],
        ["--from", "", "--to", there],
    ):
        refused = resurgam("move", *arguments)
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused.stderr
    for wrong in (
        "redis://:secret@127.0.0.1:1/0",
        "postgresql://u:secret@127.0.0.1:1/d",
        "postgresql://u:secret@[::1/d",
    ):
        nowhere = resurgam("move", "--from", here, "--to", wrong)
        assert nowhere.exit_code == 1, wrong
        assert "secret" not in nowhere.output
        assert nowhere.stderr.count("\n") == 1


def test_a_run_that_is_busy_stops_the_move_and_is_named(tmp_path):
    here, there = sqlite_url(tmp_path), sqlite_url(tmp_path, "b.db")

    async def work() -> Result:
        running = asyncio.Event()
        names = Registry()

        @names.activity
        async def endless() -> None:
            running.set()
            await asyncio.Event().wait()

        @names.workflow
        async def waiting(ctx: Context) -> None:
            await ctx.activity(endless)

        async with Engine(here, registry=names, grace=0) as engine:
            await engine.start(waiting, id="o-1")
            await running.wait()
            return await asyncio.to_thread(resurgam, "move", "--from", here, "--to", there, "--wait", "0")

    done = asyncio.run(work())
    assert done.exit_code == 1
    assert "moved 0 workflows" in done.stdout
    assert (
        "1 not moved, and all that was not goes on where it was: o-1: activity 'endless' runs on worker" in done.stderr
    )
    assert list(found_in(here).values()) == [Status.RUNNING]
