"""Processes of activities, with real signals: none outlives its worker, none its cancellation."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from resurgam import Context, Engine, Registry
from resurgam.core.state import Status
from support.cluster import eventually
from support.limits import HANGS

PRESS = Path(__file__).with_name("process_activities.py")
SRC = Path(__file__).parents[2] / "src"


class Hall:
    """Where one press stands: its file, its notes, and its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'press.db'}"
        self.started: list[subprocess.Popen] = []

    def start(self, *command: str) -> subprocess.Popen:
        env = {**os.environ, "PYTHONPATH": str(SRC), "PRESS_NOTES": str(self.folder / "notes")}
        process = subprocess.Popen(
            [sys.executable, *command],
            env=env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self.started.append(process)
        return process

    def press(self, name: str) -> subprocess.Popen:
        return self.start(str(PRESS), self.url, name)

    def notes(self) -> dict[str, int]:
        file = self.folder / "notes"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return {word: int(pid) for word, pid in lines}

    async def begun(self) -> dict[str, int]:
        await eventually(lambda: "begun" in self.notes(), "the activity begins")
        return self.notes()

    def close(self) -> None:
        for process in self.started:
            process.kill()
        # Before their output is read to its end: a process that is left over would hold it open.
        for pid in self.notes().values():
            if runs(pid):
                os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.communicate()


@pytest.fixture
def hall(tmp_path):
    hall = Hall(tmp_path)
    try:
        yield hall
    finally:
        hall.close()


def runs(pid: int) -> bool:
    """Whether a process runs and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


async def test_functions_of_the_main_program_run(hall):
    """And their errors are those of the main program: caught by type, and named in a policy."""
    told, said = hall.press("prints").communicate(timeout=HANGS)

    assert told == "[2, True, \"activity 'jams' failed after 1 attempt: JamError: paper\"]\n", said


async def test_no_process_outlives_a_worker_that_is_killed(hall):
    """Not even one whose interpreter is held by C code, nor what it has started itself."""
    worker = hall.press("held")
    pids = await hall.begun()
    assert runs(pids["begun"])
    worker.send_signal(signal.SIGKILL)

    await eventually(lambda: not any(map(runs, pids.values())), "all of them end")


async def test_a_process_that_ignores_sigterm_is_killed(hall, monkeypatch):
    """It is asked first. What it has started goes with it, and the attempt has ended before that."""
    monkeypatch.setenv("PRESS_GRACE", "4")  # even a busy machine asks it within that
    hall.press("ignored")
    pids = await hall.begun()
    async with Engine(hall.url, registry=Registry(), worker=False) as engine:
        handle = engine.handle("ignored")
        await handle.signal("stop")
        await eventually(lambda: not any(map(runs, pids.values())), "all of them end")
        assert "asked" in hall.notes()
        assert (await handle.describe()).status is Status.RUNNING
        assert [e.type for e in await handle.history()].count("activity_cancelled") == 1


async def test_ctrl_c_is_the_workers_to_hear(hall):
    """It goes to every process of the terminal's group, but what runs may finish."""
    worker = hall.press("second")
    await hall.begun()
    os.killpg(worker.pid, signal.SIGINT)
    _, said = worker.communicate(timeout=HANGS)

    assert worker.returncode == 0, said
    async with Engine(hall.url, registry=Registry(), worker=False) as engine:
        assert "activity_completed" in [e.type for e in await engine.handle("second").history()]


async def test_the_command_line_serves_them(hall):
    (hall.folder / "app.py").write_text(PRESS.read_text())
    hall.start("-m", "resurgam", "worker", "app.py", f"--store={hall.url}")
    async with Engine(hall.url, registry=Registry(), worker=False) as engine:
        handle = await engine.start("second")
        assert await handle.result(timeout=HANGS) == "done"


async def test_a_program_that_does_not_guard_its_main_part_is_told(hall):
    """Its process would run it again, and so would the process of that."""
    (hall.folder / "bare.py").write_text(
        PRESS.read_text().replace('if __name__ == "__main__":\n    asyncio', 'if "prints":\n    asyncio')
    )
    bare = hall.start("bare.py", "memory://", "prints")
    _, said = bare.communicate(timeout=HANGS)

    assert bare.returncode != 0
    assert 'put the code that runs it under `if __name__ == "__main__":`' in said


async def test_a_program_without_a_file_is_told(hall):
    code = PRESS.read_text().replace("asyncio.run(main(*sys.argv[1:]))", 'asyncio.run(main("memory://", "prints"))')
    _, said = hall.start("-c", code).communicate(timeout=HANGS)

    assert "define it in a module" in said


async def test_code_without_a_loop_may_have_them(hall):
    """The loop that starts them runs in a thread."""
    code = """
from resurgam import SyncEngine
import press
with SyncEngine() as engine:
    print(engine.execute(press.second))
"""
    (hall.folder / "press.py").write_text(PRESS.read_text())
    told, said = hall.start("-c", code).communicate(timeout=HANGS)

    assert told == "done\n", said


async def test_what_an_attempt_told_survives_the_kill_of_its_worker(hall, monkeypatch):
    """The next worker finds the details in the attempt that it takes over; the death was no attempt."""
    monkeypatch.setenv("PRESS_LEASE", "1")
    worker = hall.press("copied")
    await hall.begun()
    file = sqlite3.connect(hall.folder / "press.db")
    await eventually(lambda: file.execute("SELECT details FROM activities").fetchone(), "the lease is renewed")
    file.close()
    worker.send_signal(signal.SIGKILL)
    worker.wait()

    registry = Registry()

    @registry.activity
    def copies() -> object:
        return [registry.activity.info().attempt, registry.activity.info().details]

    @registry.workflow
    async def copied(ctx: Context) -> object:
        return await ctx.activity(copies)

    async with Engine(hall.url, registry=registry) as engine:
        assert await engine.handle("copied").result(timeout=HANGS) == [1, {"row": 7}]
