"""Measure ``resurgam check``: ``checking.py [--runs 10000] [--events 50] [--diverging 0.1] [--processes 2]``.

Fill a store with copies of one history, then run the command on it: once with the code that wrote the histories, once with
code that does not fit some of them.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from resurgam.core import event as events
from resurgam.core.outcome import Entry
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.registry import default_registry
from resurgam.runtime.system import SystemClock
from resurgam.store.open import open_store
from resurgam.store.records import Adoption, Copy, Instance

SHOP: Final = """
from resurgam import Context, activity, workflow

@activity
async def step(number: int) -> int:
    return number

@workflow
async def chain(ctx: Context, steps: int) -> str:
    for number in range(steps):{edit}
        await ctx.activity(step, number)
    return await ctx.listen("go", type=str)

@workflow
async def other_chain(ctx: Context, steps: int) -> str:
    for number in range(steps):
        await ctx.activity(step, number)
    return await ctx.listen("go", type=str)
"""
EDIT: Final = """
        if number == steps - 1:
            await ctx.sleep(1)"""
BATCH: Final = 500


def history(name: str, length: int) -> list[events.Event]:
    """Return a history of *length* events, written by the code itself."""
    started = events.WorkflowStarted(
        seq=1,
        at=1,
        name=name,
        queue="default",
        entity_id="",
        execution_id="",
        run_id="run",
        tree_id="run",
        matching="location",
        python=".".join(map(str, sys.version_info[:2])),
        input=msgspec.Raw(json.dumps([(length - 2) // 2]).encode()),
    )
    log: list[events.Event] = [started]
    execution = Execution(default_registry.workflows.find(name), (started,))
    inbox: list[Entry] = []
    while len(log) < length:
        log += execution.advance(inbox, clock=len(log)).events
        answer = events.ActivityCompleted(ref=log[-1].seq, result=msgspec.Raw(b"1"))
        inbox = [Entry(None, answer)]
    execution.close()
    return log


async def fill(url: str, runs: int, length: int, diverging: float) -> None:
    """Fill a store with open runs; the share *diverging* are of the workflow that will be changed."""
    exec(compile(SHOP.format(edit=""), "shop.py", "exec"), {"__name__": "shop"})  # noqa: S102 -- our own source
    logs = {name: history(name, length) for name in ("chain", "other_chain")}
    store = open_store(url, SystemClock(), name="filling", lease=1000)
    changed = round(runs * diverging)
    for begin in range(0, runs, BATCH):
        numbers = range(begin, min(runs, begin + BATCH))
        copies = [copied(logs["chain" if n < changed else "other_chain"], n) for n in numbers]
        await store.transfer.adopt([Adoption(entity_id=copy.instance.entity_id, copies=(copy,)) for copy in copies])
    await store.close()


def copied(log: Sequence[events.Event], number: int) -> Copy:
    """Return a copy of a history with its own ids."""
    assert isinstance(log[0], events.WorkflowStarted)
    ids = {"entity_id": f"r-{number}", "execution_id": f"e-{number}", "run_id": f"u-{number}", "tree_id": f"u-{number}"}
    started = msgspec.structs.replace(log[0], **ids)
    instance = msgspec.structs.replace(Instance.of(started), last_seq=len(log))
    return Copy(instance=instance, log=(started, *log[1:]))


def measure(folder: Path, url: str, processes: int, edit: str) -> dict[str, object]:
    """Run the command, and return its duration and its summary."""
    (folder / "shop.py").write_text(SHOP.format(edit=edit))
    command = [sys.executable, "-m", "resurgam", "check", "shop.py", "--json", "--store", url]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--processes", str(processes)], cwd=folder, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began
    if not done.stdout:
        sys.exit(done.stderr)
    return {"seconds": round(seconds, 1), "exit": done.returncode, "summary": json.loads(done.stdout)["summary"]}


def main() -> None:
    """Fill a store and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--diverging", type=float, default=0.1)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="checking-") as temporary:
        folder = Path(temporary)
        url = f"sqlite:///{folder / 'runs.db'}?synchronous=off"
        began = time.monotonic()
        asyncio.run(fill(url, options.runs, options.events, options.diverging))
        filled = round(time.monotonic() - began, 1)
        found = {name: measure(folder, url, options.processes, edit) for name, edit in (("fits", ""), ("edited", EDIT))}
    print(
        json.dumps(
            {"runs": options.runs, "events": options.events, "processes": options.processes, "filled": filled, **found}
        )
    )


if __name__ == "__main__":
    main()
