"""Wake the other processes after a commit, by a message to each store that listens.

A lost message costs time, not work: every store also polls the file.
"""

import asyncio
from typing import Final

from resurgam.store.sqlite.peers import CHANGED, Peers

_INTERVAL: Final = 0.01
"""Seconds between two rounds of wake-ups; commits in between share the second round."""


class Wakeups:
    """Rounds of wake-ups, of which those in short succession are one."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._pause: asyncio.TimerHandle | None = None
        self._again = False

    def wake_others(self) -> None:
        """Wake all other stores, now or within a few milliseconds."""
        if self._pause is not None:
            self._again = True
            return
        self._pause = asyncio.get_running_loop().call_later(_INTERVAL, self._end_pause)
        for peer in self._peers.others():
            peer.tell(CHANGED)

    def close(self) -> None:
        """Send the wake-ups that are due."""
        if self._pause is not None:
            self._pause.cancel()
            self._end_pause()
        if self._pause is not None:
            self._pause.cancel()

    def _end_pause(self) -> None:
        self._pause = None
        if self._again:
            self._again = False
            self.wake_others()
