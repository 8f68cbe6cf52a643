"""Run the replays: in this process, or in several others, each with its own import of the code and its own store."""

import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from resurgam.check.open_runs import OpenRuns
from resurgam.runtime.registry import default_registry

P = TypeVar("P")
T = TypeVar("T")


class Pool(Protocol):
    """Call a function for each part of the work, with the open runs of a store."""

    def map(self, work: Callable[[OpenRuns, P], T], parts: Iterable[P]) -> Iterator[T]:
        """Return the results of *work* for all parts, in any order."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


class LocalPool:
    """Do the work in this process, one part after the other."""

    def __init__(self, open_runs: OpenRuns) -> None:
        self._open_runs = open_runs

    def map(self, work: Callable[[OpenRuns, P], T], parts: Iterable[P]) -> Iterator[T]:
        """Return the results of *work*, in the order of the parts."""
        for part in parts:
            with _no_output():
                done = work(self._open_runs, part)
            yield done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        pass


class ProcessPool:
    """Do the work in several processes; parts are taken from the iterable as needed, a few ahead."""

    def __init__(self, number: int, url: str, module: str, load: Callable[[str], object]) -> None:
        self._ahead = 2 * number
        # Spawned, not forked: this process may have threads, and the user's module must be imported again.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(number, context, _start_process, (url, module, load))

    def map(self, work: Callable[[OpenRuns, P], T], parts: Iterable[P]) -> Iterator[T]:
        """Return the results of *work* as they are done."""
        remaining = iter(parts)
        pending: set[Future[T]] = set()
        while True:
            room = self._ahead - len(pending)
            pending |= {self._pool.submit(_call, work, part) for part in islice(remaining, room)}
            if not pending:
                return
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # terminate without waiting: a process may run code that never ends
            for process in list((getattr(self._pool, "_processes", None) or {}).values()):
                process.terminate()
        self._pool.shutdown(cancel_futures=True)


_opened: list[OpenRuns] = []
"""In a process of a `ProcessPool`: its own open runs."""


def _start_process(url: str, module: str, load: Callable[[str], object]) -> None:
    """Import the code and open the store in a new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    logging.disable(logging.WARNING)
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 -- open until the process ends
    load(module)
    gc.freeze()
    _opened.append(OpenRuns(url, default_registry))


def _call(work: Callable[[OpenRuns, Any], T], part: object) -> T:
    return work(_opened[0], part)


@contextlib.contextmanager
def _no_output() -> Iterator[None]:
    """Discard the output and the log of replayed code."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with Path(os.devnull).open("w", encoding="utf-8") as devnull, contextlib.redirect_stdout(devnull):
            yield
    finally:
        logging.disable(level)
