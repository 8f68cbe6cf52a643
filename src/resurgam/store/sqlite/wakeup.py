"""Tell the other processes what a commit has changed, so that each looks only at what it waits for.

A lost message costs time, not work: every store also polls the file.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from resurgam.store.sqlite.peers import LONGEST, Peers
from resurgam.store.watches import WatchKey

_KEY: Final = b"k"
"""Message: this key was touched, as `watches` names it."""

_DUE: Final = b"d"
"""Message: something becomes claimable at this moment."""

_ANYTHING: Final = b".\n"
"""Message: the file has changed, more than fits into messages."""

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(str | tuple[str, str] | None).decode

_INTERVAL: Final = 0.002
"""Seconds between two rounds of messages; commits in between share the second round."""


class Wakeups:
    """Rounds of messages: the first is sent at once, those in short succession are one."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._pause: asyncio.TimerHandle | None = None
        self._keys: set[WatchKey] = set()
        self._due: int | None = None

    def heed(
        self, *, keys: Callable[[Collection[WatchKey]], None], due: Callable[[int], None], anything: Callable[[], None]
    ) -> None:
        """Have a function called for what other stores have changed: the *keys*, the next moment, or *anything*."""

        def hear_keys(texts: Sequence[bytes]) -> None:
            try:
                found = {_decode(text) for text in texts}
            except msgspec.MsgspecError:  # of another version
                anything()
            else:
                keys(found)

        self._peers.heed(_KEY, hear_keys)
        self._peers.heed(_DUE, lambda texts: due(min(map(int, texts))))
        self._peers.heed(_ANYTHING[:1], lambda _: anything())

    def wake_others(self, keys: Collection[WatchKey], due: int | None = None) -> None:
        """Tell all other stores, now or within a few milliseconds."""
        if self._pause is None and not self._peers.others():
            return
        self._keys.update(keys)
        if due is not None:
            self._due = due if self._due is None else min(due, self._due)
        if self._pause is None:
            self._tell()

    def close(self) -> None:
        """Tell what has not been told."""
        if self._pause is not None:
            self._end_pause()
        if self._pause is not None:
            self._pause.cancel()

    def _end_pause(self) -> None:
        assert self._pause is not None
        self._pause.cancel()
        self._pause = None
        if self._keys or self._due is not None:
            self._tell()

    def _tell(self) -> None:
        self._pause = asyncio.get_running_loop().call_later(_INTERVAL, self._end_pause)
        messages = b"".join([b"%b%b\n" % (_KEY, _encode(key)) for key in self._keys])
        if self._due is not None:
            messages += b"%b%d\n" % (_DUE, self._due)
        for peer in self._peers.others():
            peer.tell(messages if len(messages) <= LONGEST else _ANYTHING)
        self._keys.clear()
        self._due = None
