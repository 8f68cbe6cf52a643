"""Group commit: pieces of work that wait at the same time share one transaction.

A group is written in the event loop's own thread: each statement in another thread would have to win the interpreter
lock back from the loop, which costs more than the disk. If another process is writing, the pieces wait for their turn
(`Turns`), and those that come meanwhile go with them. Only a group that must be taken apart because a piece failed is
written by a thread.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeAlias, TypeVar

from resurgam.store.sqlite.connection import BUSY_TIMEOUT, Database, Locked
from resurgam.store.sqlite.session import Session
from resurgam.store.sqlite.turns import Turns

T = TypeVar("T")
W = TypeVar("W")

_Piece: TypeAlias = tuple[Callable[[W], Any], Callable[[Any], None] | asyncio.Future[Any]]
"""What to do in the transaction, and what to call or settle with the answer, which may be an exception."""

_Answers: TypeAlias = tuple[list[W], list[Any]]

_MOST: Final = 256
"""Pieces that share a transaction at most: others wait for the end of it, and so does the event loop."""

_TRUSTED: Final = 8
"""Pieces at most that are written at once, one after another, before it is looked again whether others come too."""

_RETRY: Final = 0.001
"""Seconds after which the thread tries again to begin to write."""


class Writer(Generic[W]):
    """Run pieces of work in transactions, one transaction at a time.

    *begin* makes the value that the pieces of a transaction work on; *changed* is called with it once it is durable.
    """

    def __init__(
        self,
        database: Database,
        begin: Callable[[Session], W],
        changed: Callable[[W], None],
        turns: Turns | None = None,
    ) -> None:
        self._database = database
        self._begin = begin
        self._changed = changed
        self._waiting: list[_Piece[W]] = []
        # How many pieces may still be written at once, and how many it were when it was last looked for others.
        self._at_once = 1
        self._trust = 1
        self._turns = Turns() if turns is None else turns
        self._turn: asyncio.Future[None] | None = None
        # The number of pieces that began to wait for their turn together, and when that will have been too long.
        self._patient = 0
        self._deadline = 0.0
        self._telling = False
        self._running: asyncio.Future[_Answers[W]] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="resurgam-writer")

    def write(self, work: Callable[[W], T]) -> asyncio.Future[T]:
        """Run a piece of work in a transaction, together with all other pieces that wait.

        If there were no others lately it runs at once; otherwise it waits for others until the next iteration of the
        loop.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.submit(work, done)
        return done

    def submit(self, work: Callable[[W], T], done: Callable[[T | Exception], None] | asyncio.Future[T]) -> None:
        """Run a piece of work as `write` does, and call *done* with its answer or its exception, perhaps at once."""
        waiting = self._waiting
        waiting.append((work, done))
        if len(waiting) > 1 or self._running is not None:
            return
        # Not from within a call of *done*: it would recurse, and the others of its group must be told first.
        if self._telling or not self._at_once:
            asyncio.get_running_loop().call_soon(self._flush_group)
            return
        self._at_once -= 1
        if not self._at_once:
            asyncio.get_running_loop().call_soon(self._look_for_others)
        self._flush()

    async def close(self) -> None:
        """Write the pieces that still wait, and end the thread."""
        while self._waiting or self._running is not None:
            self._flush()
            if (ending := self._running or self._turn) is not None:
                await asyncio.wait([ending])
        self._thread.shutdown()

    def _look_for_others(self) -> None:
        """Trust that pieces come alone if none waits, the longer the more: a look at each costs as much as a step."""
        if not self._waiting:
            self._trust_more()

    def _flush_group(self) -> None:
        alone = len(self._waiting) == 1
        if alone and isinstance(self._waiting[0][1], asyncio.Future):
            self._trust_more()
        else:
            # A lone commit of a worker has not waited in vain: it carries what its instance has received meanwhile.
            self._trust, self._at_once = 1, int(alone)
        self._flush()

    def _trust_more(self) -> None:
        self._at_once = self._trust = min(2 * self._trust, _TRUSTED)

    def _flush(self, *, told: bool = False) -> None:
        """Write the pieces that wait: now, or in a later turn if another store is writing or should go first.

        *told*: it is this store's turn.
        """
        if self._running is not None or self._turn is not None or not self._waiting:
            return
        turns = self._turns
        if turns.wanted and not told and turns.let_past():
            self._wait_for_turn()
            return
        group, self._waiting = self._waiting, []
        if len(group) > _MOST:
            group, self._waiting = group[:_MOST], group[_MOST:]
            asyncio.get_running_loop().call_soon(self._flush)
        try:
            answers = self._database.transact(self._work, group)
        except Locked as error:
            self._waiting = group + self._waiting
            self._wait_for_turn(error)
            return
        except Exception as error:  # noqa: BLE001 -- raised to the caller of the piece
            if len(group) > 1:
                self._hand_over(group)
                return
            answers = [], [error]
        if turns.wanted:
            self._end_turn()
        self._settle(group, answers)

    def _end_turn(self) -> None:
        self._patient = 0
        self._turns.pass_on()

    def _wait_for_turn(self, locked: Locked | None = None) -> None:
        """Try again later; pieces that have waited for too long fail."""
        late: list[_Piece[W]] = []
        now = time.monotonic()
        if self._patient and locked is not None and now >= self._deadline:
            late, self._waiting = self._waiting[: self._patient], self._waiting[self._patient :]
            self._patient = 0
        if not self._patient:
            self._patient, self._deadline = len(self._waiting), now + BUSY_TIMEOUT
        if self._waiting:
            self._turn = self._turns.ask()
            self._turn.add_done_callback(self._take_turn)
        else:
            self._turns.pass_on()
        self._settle(late, ([], [locked] * len(late)))

    def _take_turn(self, _: object) -> None:
        self._turn = None
        self._flush(told=True)

    def _hand_over(self, group: list[_Piece[W]]) -> None:
        deadline = time.monotonic() + BUSY_TIMEOUT
        self._running = asyncio.get_running_loop().run_in_executor(self._thread, self._attempt, group, deadline)
        self._running.add_done_callback(lambda ended: self._written(group, ended))

    def _written(self, group: list[_Piece[W]], ended: asyncio.Future[_Answers[W]]) -> None:
        self._running = None
        if self._turns.wanted:
            self._end_turn()
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
                return self._database.transact(self._work, group)
            except Locked:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY)

    # Called by both.

    def _work(self, session: Session, group: list[_Piece[W]]) -> _Answers[W]:
        begun = self._begin(session)
        answers: list[Any] = []
        try:
            for work, _ in group:  # not a comprehension: it is a call, which each lone piece would pay
                answers.append(work(begun))
            session.write_rows()
        except BaseException:
            session.forget_rows()
            raise
        return [begun], answers

    def _settle(self, group: list[_Piece[W]], answers: _Answers[W]) -> None:
        for begun in answers[0]:
            self._changed(begun)
        self._telling = True
        try:
            for (_, done), answer in zip(group, answers[1], strict=True):
                if not isinstance(done, asyncio.Future):
                    try:
                        done(answer)
                    except Exception as error:  # noqa: BLE001 -- the others of the group must be told all the same
                        _report(error)
                elif done.done():
                    continue  # its caller was cancelled
                elif isinstance(answer, Exception):
                    done.set_exception(answer)
                else:
                    done.set_result(answer)
        finally:
            self._telling = False


def _report(error: Exception) -> None:
    what = {"message": "what was to be done after a commit has failed", "exception": error}
    asyncio.get_running_loop().call_exception_handler(what)
