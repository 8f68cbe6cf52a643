"""What `tests/integration/test_instructions.py` runs under callgrind: ``count_instructions.py FOLDER STEPS``.

A chain of activities runs live, and its history is replayed, each at two lengths, so that their difference is what
further steps cost and nothing else. Between them stands a mark, a call of the C library that nothing else makes, at
which callgrind writes down what it has counted.
"""

import asyncio
import gc
import os
import sys
from collections.abc import Sequence

from resurgam import Engine
from resurgam.bench import programs
from resurgam.core.event import decode_event, encode_event
from resurgam.runtime.execution.execution import Execution

MARK = "getpriority"
"""A function of the C library: callgrind knows it by name even where Python is stripped of its own."""


def mark() -> None:
    """Let callgrind write down what it has counted."""
    os.getpriority(os.PRIO_PROCESS, 0)


class SlowLoop(asyncio.SelectorEventLoop):
    """A loop for which a thousandth of the time passes.

    Callgrind makes everything fifty times slower, but the engine would look after other processes every 10 ms all the
    same, and what that costs would be counted as the steps', more on a slow machine than on a fast one.
    """

    def time(self) -> float:
        return super().time() / 1000


def replay(written: Sequence[bytes]) -> None:
    """Do what a worker does with a history that it reads."""
    history = [decode_event(entry) for entry in written]
    execution = Execution(programs.chain, history)
    execution.replay()
    execution.close()


async def live(folder: str, steps: int) -> list[list[bytes]]:
    """Run a chain of each length, after one that fills every cache; return their histories up to the last activity."""
    histories = []
    async with Engine(f"sqlite:///{folder}/counted.db", registry=programs.registry) as engine:
        await engine.execute(programs.chain, 20)
        for length in (steps, 2 * steps):
            handle = await engine.start(programs.chain, length)
            mark()
            await handle.result()
            mark()
            known = [
                entry for entry in await handle.history() if not entry.type.startswith(("workflow_c", "workflow_d"))
            ]
            histories.append([encode_event(entry) for entry in known])
    return histories


def main(folder: str, steps: int) -> None:
    """Run both at both lengths. The replays come when no engine is there, whose watchdog would find them too long.

    Without the garbage collector: when it runs, and what that costs, depends on all modules that are imported.
    """
    gc.disable()
    with asyncio.Runner(loop_factory=SlowLoop) as runner:
        histories = runner.run(live(folder, steps))
    replay(histories[0])
    for written in histories:
        mark()
        replay(written)
        mark()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
