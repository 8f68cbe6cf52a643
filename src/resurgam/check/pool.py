"""Who replays: this process, or several beside it, each with the code and the store open for itself."""

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

from resurgam.check.open_runs import Desk
from resurgam.runtime.definitions.registry import default_registry

P = TypeVar("P")
T = TypeVar("T")


class Pool(Protocol):
    """Does pieces of work at a desk."""

    def map(self, work: Callable[[Desk, P], T], parts: Iterable[P]) -> Iterator[T]:
        """Return what *work* gives for each part, in any order."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


class Here:
    """Does it in this process, one piece after the other."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def map(self, work: Callable[[Desk, P], T], parts: Iterable[P]) -> Iterator[T]:
        """Return what *work* gives for each part, in their order."""
        for part in parts:
            with _silence():
                done = work(self._desk, part)
            yield done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        pass


class Processes:
    """Does it in several processes; parts are taken as they are needed, a few ahead."""

    def __init__(self, number: int, url: str, module: str, load: Callable[[str], object]) -> None:
        self._ahead = 2 * number
        # By exec, not by fork: this process may have threads, and the user's module is imported afresh.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(number, context, _prepare, (url, module, load))

    def map(self, work: Callable[[Desk, P], T], parts: Iterable[P]) -> Iterator[T]:
        """Return what *work* gives for each part, as it is done."""
        coming = iter(parts)
        waiting: set[Future[T]] = set()
        while True:
            waiting |= {self._pool.submit(_do, work, part) for part in islice(coming, self._ahead - len(waiting))}
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # not waited for: one may be caught in code that never ends
            for process in list((getattr(self._pool, "_processes", None) or {}).values()):
                process.terminate()
        self._pool.shutdown(cancel_futures=True)


_desks: list[Desk] = []
"""The desk of a process that was started for it."""


def _prepare(url: str, module: str, load: Callable[[str], object]) -> None:
    """Begin a process: import the code and open the store."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started it
    logging.disable(logging.WARNING)
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 -- as long as the process lives
    load(module)
    gc.freeze()
    _desks.append(Desk(url, default_registry))


def _do(work: Callable[[Desk, Any], T], part: object) -> T:
    return work(_desks[0], part)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Let nothing be heard of the code that is replayed: it has said it all before."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            yield
    finally:
        logging.disable(level)
