"""A printing press whose activities run in processes of their own, as a program: ``python process_activities.py URL WORKFLOW``.

Its functions are defined in the main program, and what they start themselves writes its process id down too.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from resurgam import Context, Engine, RetryPolicy, activity, workflow
from resurgam.errors import ActivityFailed
from resurgam.worker import processes

NOTES = Path(os.environ.get("PRESS_NOTES", "notes"))


class JamError(Exception):
    """Known to the main program only."""


def note(word: str) -> None:
    with NOTES.open("a") as notes:
        notes.write(f"{word} {os.getpid()}\n")


@activity(executor="process")
def fine(number: int) -> int:
    return number + 1


@activity(executor="process", retry=RetryPolicy(non_retryable=[JamError]))
def jams() -> None:
    raise JamError("paper")


@activity(executor="process")
def holds_the_interpreter() -> None:
    """Never come back from C code that no Python code can interrupt."""
    started = subprocess.Popen(["sleep", "600"])
    with NOTES.open("a") as notes:
        notes.write(f"started {started.pid}\n")
    note("begun")
    re.match(r"(a+)+b", "a" * 60)


@activity(executor="process")
def ignores() -> None:
    signal.signal(signal.SIGTERM, lambda *_: note("asked"))
    started = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600"])
    with NOTES.open("a") as notes:
        notes.write(f"started {started.pid}\n")
    note("begun")
    time.sleep(600)


@activity(executor="process")
def takes_a_second() -> str:
    note("begun")
    time.sleep(1)
    return "done"


@activity
def copies() -> object:
    activity.heartbeat({"row": 7})
    note("begun")
    time.sleep(600)
    return None


@workflow
async def copied(ctx: Context) -> object:
    return await ctx.activity(copies)


@workflow
async def prints(ctx: Context) -> list[object]:
    told: list[object] = [await ctx.activity(fine, 1)]
    try:
        await ctx.activity(jams)
    except ActivityFailed as failed:
        told += [isinstance(failed.cause, JamError), str(failed)]
    return told


@workflow
async def held(ctx: Context) -> None:
    await ctx.activity(holds_the_interpreter)


@workflow
async def ignored(ctx: Context) -> None:
    running = ctx.activity(ignores)
    await ctx.listen("stop")
    running.cancel()
    await ctx.listen("end")


@workflow
async def second(ctx: Context) -> str:
    return await ctx.activity(takes_a_second)


async def main(url: str, name: str) -> None:
    processes._GRACE = float(os.environ.get("PRESS_GRACE") or processes._GRACE)
    async with Engine(url, lease=float(os.environ.get("PRESS_LEASE", "10"))) as engine:
        handle = await engine.start(name, id=name)
        if name == "prints":
            print(await handle.result(timeout=120))
        else:
            await engine.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
