"""Take turns at writing with the other stores of a file.

SQLite has one writer at a time and no queue: the store that tries at the right moment gets the lock. So a store that finds
the file locked notes in its lock file since when it waits, and the store that has written tells the one that has waited
longest. No thread sleeps, and a store that waits collects more work for its transaction. It also tries by itself from time
to time: the other may have died, be stopped, or be a program that knows nothing of turns.

Only stores that have lately heard of one that waits (`wanted`) look for it, so a store that is alone pays nothing.
"""

import asyncio
import time
from typing import Final

from resurgam.store.sqlite.peers import Peer, Peers

TURN: Final = b"t\n"
"""Message: the file is free, and you have waited longest."""

WANTED: Final = b"w\n"
"""Message: a store waits; tell it when you have written."""

_RETRY: Final = 0.005
"""Seconds after which a store that waits tries by itself."""

_RETRY_UNTOLD: Final = 0.001
"""The same if it has no pipe, so that no other store can tell it."""

_LATELY: Final = 1_000_000_000
"""Nanoseconds for which a store looks for others that wait. Those say so anew in half that time."""

_PATIENCE: Final = 20_000_000
"""Nanoseconds for which one that waits may be overtaken: waiting for it while it computes would leave the file idle."""


class Turns:
    """The place of one store in the queue of those that wait to write."""

    def __init__(self, peers: Peers | None = None) -> None:
        self._peers = peers
        self.wanted = False
        self._wanted_until = 0
        self._since = 0
        self._said_at = 0
        # By their names, since when those waited that this store has let go first, and those that it has told.
        self._let_past: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self._waiting: asyncio.Future[None] | None = None
        if peers is not None:
            peers.heed(TURN, self._come)
            peers.heed(WANTED, self._note_wanted)

    def ask(self) -> "asyncio.Future[None]":
        """Return a future that is done when this store should try to write."""
        loop = asyncio.get_running_loop()
        self._waiting = waiting = loop.create_future()
        self._note_wanted()  # the others are busy too, and may come to wait for this one
        told = self._peers is not None and self._peers.heard
        if told:
            self._join_queue()
        timer = loop.call_later(_RETRY if told else _RETRY_UNTOLD, _end, waiting)
        waiting.add_done_callback(lambda _: timer.cancel())
        return waiting

    def let_past(self) -> bool:
        """Let the store go first that has waited longest, if that is too long; return whether there is one.

        That store is told, since no other might while this one waits too. It goes first once each time: it may be stopped, or dead.
        """
        if self._peers is None:
            return False
        latest = time.monotonic_ns() - _PATIENCE
        late = [
            (peer, since) for peer, since in self._queue() if since < latest and not self._was_let_past(peer, since)
        ]
        if not late:
            return False
        peer, since = min(late, key=lambda entry: entry[1])
        self._let_past[peer.name] = since
        self._tell(peer, since)
        return True

    def pass_on(self) -> None:
        """Leave the queue, and tell the store that has waited longest."""
        if self._peers is None:
            self.wanted = False
            return
        if self._since:
            self._since = 0
            self._peers.note_waiting(0)
        if not self._tell_next() and time.monotonic_ns() > self._wanted_until:
            self.wanted = False
            self._let_past.clear()
            self._told.clear()

    def _tell_next(self) -> bool:
        """Tell the next store of the queue; return False if there is none.

        One that was told and has not come, because it is stopped or computing, comes after those that were not told.
        """
        queue = self._queue()
        if not queue:
            return False
        peer, since = min(queue, key=lambda entry: (self._told.get(entry[0].name) == entry[1], entry[1]))
        self._tell(peer, since)
        self._wanted_until = time.monotonic_ns() + _LATELY
        return True

    def _queue(self) -> list[tuple[Peer, int]]:
        """Return the other stores that wait, and since when."""
        assert self._peers is not None
        return [(peer, since) for peer in self._peers.others() if (since := peer.waits_since())]

    def _was_let_past(self, peer: Peer, since: int) -> bool:
        return self._let_past.get(peer.name) == since

    def _tell(self, peer: Peer, since: int) -> None:
        self._told[peer.name] = since
        peer.tell(TURN)

    def _join_queue(self) -> None:
        assert self._peers is not None
        now = time.monotonic_ns()
        if not self._since:
            self._since = now
            self._peers.note_waiting(now)
        if now - self._said_at > _LATELY // 2:
            self._said_at = now
            for peer in self._peers.others():
                peer.tell(WANTED)

    def _note_wanted(self, _: object = None) -> None:
        self.wanted = True
        self._wanted_until = time.monotonic_ns() + _LATELY

    def _come(self, _: object = None) -> None:
        if self._waiting is not None:
            _end(self._waiting)


def _end(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
