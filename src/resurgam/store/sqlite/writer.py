"""Group commit: pieces of work that wait at the same time share one transaction.

A group is written in the event loop's own thread: each statement in another thread would have to win the interpreter
lock back from the loop, which costs more than the disk. Only if another process is writing, or the group must be taken
apart because a piece failed, does a thread do the work and wait for its turn.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeAlias, TypeVar

from resurgam.store.sqlite.connection import BUSY_TIMEOUT, Database, Locked
from resurgam.store.sqlite.session import Session

T = TypeVar("T")
W = TypeVar("W")

_Piece: TypeAlias = tuple[Callable[[W], Any], asyncio.Future[Any]]
_Answers: TypeAlias = tuple[list[W], list[Any]]

_RETRY: Final = 0.001
"""Seconds after which the thread tries again to begin to write."""


class Writer(Generic[W]):
    """Run pieces of work in transactions, one transaction at a time.

    *begin* makes the value that the pieces of a transaction work on; *changed* is called with it once it is durable.
    """

    def __init__(self, database: Database, begin: Callable[[Session], W], changed: Callable[[W], None]) -> None:
        self._database = database
        self._begin = begin
        self._changed = changed
        self._waiting: list[_Piece[W]] = []
        self._alone = True
        self._running: asyncio.Future[_Answers[W]] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="resurgam-writer")

    def write(self, work: Callable[[W], T]) -> asyncio.Future[T]:
        """Run a piece of work in a transaction, together with all other pieces that wait.

        If there were no others lately it runs at once; otherwise it waits for others until the next iteration of the
        loop.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._waiting.append((work, done))
        if self._running is None and len(self._waiting) == 1:
            if self._alone:
                self._alone = False
                loop.call_soon(self._check_alone)
                self._flush()
            else:
                loop.call_soon(self._flush_group)
        return done

    async def close(self) -> None:
        """Write the pieces that still wait, and end the thread."""
        self._flush()
        while self._running is not None:
            await asyncio.wait([self._running])
        self._thread.shutdown()

    def _check_alone(self) -> None:
        self._alone = not self._waiting

    def _flush_group(self) -> None:
        self._alone = len(self._waiting) == 1
        self._flush()

    def _flush(self) -> None:
        """Write the pieces that wait: in this thread, or in the other if another connection is writing."""
        if self._running is not None or not self._waiting:
            return
        group, self._waiting = self._waiting, []
        try:
            answers = self._transact(group)
        except Exception as error:  # noqa: BLE001 -- raised to the caller of the piece
            if isinstance(error, Locked) or len(group) > 1:
                self._hand_over(group)
                return
            answers = [], [error]
        self._settle(group, answers)

    def _hand_over(self, group: list[_Piece[W]]) -> None:
        deadline = time.monotonic() + BUSY_TIMEOUT
        self._running = asyncio.get_running_loop().run_in_executor(self._thread, self._attempt, group, deadline)
        self._running.add_done_callback(lambda ended: self._written(group, ended))

    def _written(self, group: list[_Piece[W]], ended: asyncio.Future[_Answers[W]]) -> None:
        self._running = None
        self._settle(group, ended.result())
        self._flush()

    # Called by the thread.

    def _attempt(self, group: list[_Piece[W]], deadline: float) -> _Answers[W]:
        """Return the result of each piece, or its exception: one that fails must not fail the others."""
        try:
            return self._wait_and_transact(group, deadline)
        except Exception as error:  # noqa: BLE001 -- as above
            if isinstance(error, Locked) or len(group) == 1:
                return [], [error] * len(group)
            alone = [self._attempt([piece], deadline) for piece in group]
            return [done for dones, _ in alone for done in dones], [
                answer for _, answers in alone for answer in answers
            ]

    def _wait_and_transact(self, group: list[_Piece[W]], deadline: float) -> _Answers[W]:
        while True:
            try:
                return self._transact(group)
            except Locked:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY)

    # Called by both.

    def _transact(self, group: list[_Piece[W]]) -> _Answers[W]:
        return self._database.transact(lambda session: self._work(session, group))

    def _work(self, session: Session, group: list[_Piece[W]]) -> _Answers[W]:
        begun = self._begin(session)
        return [begun], [work(begun) for work, _ in group]

    def _settle(self, group: list[_Piece[W]], answers: _Answers[W]) -> None:
        for begun in answers[0]:
            self._changed(begun)
        for (_, done), answer in zip(group, answers[1], strict=True):
            if done.done():
                continue
            if isinstance(answer, Exception):
                done.set_exception(answer)
            else:
                done.set_result(answer)
