"""Where the shops stand: their processes, the file they share, and what must be true of every run afterwards."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from resurgam import Engine
from resurgam.core import event as events
from resurgam.core.commands import ANSWERS
from resurgam.core.state import InstanceState, Status
from resurgam.testing import replay
from support import shop
from support.limits import HANGS
from support.postgres import fresh_url
from support.redis import durable_url

TESTS = Path(shop.__file__).parent.parent
ENDS = (events.WorkflowCompleted, events.WorkflowFailed, events.WorkflowCancelled)


class Cluster:
    """One store, and the worker processes on it: shops, or whatever else *program* is.

    The store is at *url*, or a database file. *cache* is how many coroutines each worker keeps.
    """

    def __init__(
        self,
        folder: Path,
        *,
        options: str = "",
        disk: Path | None = None,
        program: Any = shop,
        url: str | None = None,
        cache: int = 1000,
    ) -> None:
        self.folder = folder
        self._program = program
        self._cache = cache
        self.file = (disk or folder) / "shop.db"
        self.url = url or f"sqlite:///{self.file}{options}"
        self.effects_file = folder / "effects.jsonl"
        self.workers: list[subprocess.Popen] = []
        self._all: list[subprocess.Popen] = []

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(self._program.__file__), self.url, *arguments]

    def spawn(self, command: list[str], **environment: str) -> subprocess.Popen:
        """Start a process; what it says goes to a file of its own."""
        found = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "PYTHONPATH": found, "SHOP_EFFECTS": str(self.effects_file), **environment}
        with (self.folder / f"process-{len(self._all)}.log").open("wb") as log:
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        self._all.append(process)
        return process

    def start_worker(self, *, lease: float = 2, queue: str = "default", **environment: str) -> subprocess.Popen:
        """Start one more worker."""
        options = ("--cache", str(self._cache), "--lease", str(lease), "--queue", queue)
        worker = self.spawn(self.command(*options), **environment)
        self.workers.append(worker)
        return worker

    def kill(self, worker: subprocess.Popen) -> None:
        """End a worker as a power cut would."""
        assert worker.poll() is None, f"a worker ended by itself:\n{self.said(worker)}"
        worker.send_signal(signal.SIGKILL)
        worker.wait(HANGS)
        self.workers.remove(worker)

    async def stop_for(self, worker: subprocess.Popen, seconds: float) -> None:
        """Let a worker stand still for a while; meanwhile it may be killed."""

        def stand_still() -> None:
            worker.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            worker.send_signal(signal.SIGCONT)

        # In a thread: the worker may hold the database just then, and this loop wait for it.
        await asyncio.to_thread(stand_still)

    async def stopped_itself(self, worker: subprocess.Popen) -> None:
        """Wait until a worker with ``SHOP_STOP`` stands still."""
        seen = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        await eventually(lambda: os.waitid(os.P_PID, worker.pid, seen), "the worker stops in the midst of it")

    def said(self, process: subprocess.Popen) -> str:
        return (self.folder / f"process-{self._all.index(process)}.log").read_text()

    def errors(self) -> list[str]:
        """Return what any process said of exceptions."""
        said = [self.said(process) for process in self._all]
        return [text for text in said if "Traceback" in text]

    def refusals(self) -> list[str]:
        """Return the lines in which any worker said that it was not heard: a commit, a result or a renewal of its."""
        lines = [line for process in self._all for line in self.said(process).splitlines()]
        return [line for line in lines if any(word in line for word in ("refused: ", "is lost: ", "is not heard: "))]

    def effects(self) -> list[shop.Effect]:
        """Return what was done, whole lines only: who was killed while noting it had not done it yet."""
        if not self.effects_file.exists():
            return []
        lines = self.effects_file.read_text().splitlines()
        return [shop.Effect(**json.loads(line)) for line in lines if line.endswith("}")]

    def client(self) -> Engine:
        return Engine(self.url, registry=self._program.registry, worker=False)

    def close(self) -> None:
        for process in self._all:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL)
            process.wait(HANGS)


def options_of(store: str) -> dict[str, Any]:
    """Return the options of a cluster on a kind of store: ``sqlite``, ``redis``, or ``redis-uncached``, for example."""
    kind = store.removesuffix("-uncached")
    options = {} if kind == store else {"cache": 0}
    if kind == "sqlite":
        return options
    return {**options, "url": fresh_url() if kind == "postgres" else durable_url(cluster=kind == "redis-cluster")}


async def eventually(condition, what: str):
    """Return what *condition* gives as soon as it gives something."""
    deadline = time.monotonic() + HANGS
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {HANGS:g} s: {what}")


def commands(history) -> list[tuple]:
    """Return what the code asked for, and where; when it did is left out."""
    return [(e.type, str(e.location), e.command, e.name, e.digest) for e in history if isinstance(e, events.Command)]


def check_log(history) -> InstanceState:
    """Check what holds for every log, complete or not."""
    assert [entry.seq for entry in history] == list(range(1, len(history) + 1))
    answered = Counter(entry.ref for entry in history if isinstance(entry, ANSWERS))
    twice = [ref for ref, number in answered.items() if number > 1]
    assert not twice, f"answered twice: {twice}"
    assert sum(isinstance(entry, ENDS) for entry in history) <= 1
    return InstanceState(history)


async def check_run(workflow, history, result) -> None:
    """Check a run that has ended: the log, the result, and that the code still gives the same."""
    state = check_log(history)
    assert state.status is Status.COMPLETED
    assert sum(isinstance(entry, ENDS) for entry in history) == 1
    report = await replay(workflow, history)
    assert report.diverged is None
    assert report.new == ()
    assert report.finished
    assert report.result == result


def check_effects(history, effects) -> None:
    """Check that each activity that completed was done, under one key, and nothing was done without a command."""
    asked = {key_of(history[0], entry): entry for entry in history if isinstance(entry, events.ActivityScheduled)}
    completed = {entry.ref for entry in history if isinstance(entry, events.ActivityCompleted)}
    mine = [e for e in effects if e.workflow == history[0].entity_id and e.name != "stamp"]
    done = Counter(effect.key for effect in mine)
    missing = [entry.name for key, entry in asked.items() if entry.seq in completed and not done[key]]
    assert not missing, f"recorded, but never done: {missing}"
    assert not done.keys() - asked.keys()
    assert all(asked[effect.key].name == effect.name for effect in mine)


def key_of(started, command) -> str:
    """Return the key under which an activity is done."""
    return "/".join([started.run_id, *(".".join(map(str, part)) for part in command.location.coordinates)])
