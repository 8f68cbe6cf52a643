"""Talk to the other stores that are open on the same file.

A store that waits has a named pipe in the folder of the owners, and reads the messages that the others write into it.
A message is a line: a letter that says what it is, and possibly a text. In its lock file a store says since when it
waits to write. A lost message costs time, not work: a store that waits for one also looks by itself. The path of a pipe
may have any length, unlike that of a socket.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from resurgam.store.sqlite.owner_lock import Owner

LONGEST: Final = 4096
"""Bytes that are written to a pipe together or not at all."""

_MUCH: Final = 65536
"""Bytes read at a time: all that a pipe can hold, so that no message is cut."""

_TICK: Final = 20_000_000
"""Nanoseconds. Two changes of a folder within a tick of the kernel's clock can leave the same time in it."""


class Peer:
    """Another store: its pipe, and its lock file."""

    def __init__(self, owner: Owner, name: str) -> None:
        self.name = name
        # For reading too, though it is not read here: a pipe whose reader has died would end this process by a signal
        # where that is not ignored.
        self._pipe = os.open(owner.pipe_of(name), os.O_RDWR | os.O_NONBLOCK)
        try:
            self._lock = os.open(owner.file_of(name), os.O_RDONLY)
        except OSError:
            os.close(self._pipe)
            raise

    def tell(self, messages: bytes) -> None:
        """Send some lines, at most `LONGEST` bytes; ignore a pipe that is full."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, messages)

    def waits_since(self) -> int:
        """Return since when it waits to write, as it has noted it; 0 if it does not, or that cannot be read."""
        try:
            return int.from_bytes(os.pread(self._lock, 8, 0), "little")
        except OSError:
            return 0

    def close(self) -> None:
        """Close what was opened."""
        os.close(self._pipe)
        os.close(self._lock)


class Peers:
    """The pipe of one store, and access to the others that have one."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._pipe: int | None = None
        self._handlers: dict[int, Callable[[Sequence[bytes]], None]] = {}
        self._others: list[Peer] = []
        self._changed: int | None = None
        self._settles_at = 0
        self._settled = False

    @property
    def heard(self) -> bool:
        """Whether other stores can send messages to this one; without a pipe it must look by itself."""
        return self._pipe is not None

    def heed(self, letter: bytes, handle: Callable[[Sequence[bytes]], None]) -> None:
        """Have *handle* called with the texts of the messages that begin with *letter* and have arrived together."""
        self._handlers[letter[0]] = handle

    def listen(self) -> None:
        """Receive messages on the running loop from now on."""
        pipe = self._owner.pipe
        with contextlib.suppress(OSError, NotImplementedError):
            os.mkfifo(pipe, 0o600)
            pipe.chmod(self._owner.mode)
            # For writing too: a pipe whose last writer has closed it would stay readable.
            file = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
            try:
                asyncio.get_running_loop().add_reader(file, self._read, file)
            except BaseException:
                os.close(file)
                raise
            self._pipe = file

    def others(self) -> Sequence[Peer]:
        """Return the other stores that listen; the folder is listed again only if it has changed."""
        changed, now = _changed_at(self._owner.folder), time.monotonic_ns()
        if changed is None or changed != self._changed:
            self._changed, self._settles_at, self._settled = changed, now + _TICK, False
        if not self._settled:
            self._settled = self._list() and now > self._settles_at
        return self._others

    def note_waiting(self, since: int) -> None:
        """Tell the other stores since when this one waits to write; 0 tells that it does not.

        If the disk is full the others do not learn of it, and this store must try by itself.
        """
        with contextlib.suppress(OSError):
            self._owner.note(since.to_bytes(8, "little"))

    def close(self) -> None:
        """Stop listening."""
        self._forget()
        if self._pipe is not None:
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = None
        with contextlib.suppress(FileNotFoundError):
            self._owner.pipe.unlink()

    def _list(self) -> bool:
        """Open the pipes in the folder; return False if one could not be opened, or the folder not be read."""
        self._forget()
        complete = True
        try:
            names = self._owner.others_with_pipe()
        except OSError:
            return False
        for name in names:
            try:
                self._others.append(Peer(self._owner, name))
            except OSError:
                complete = False
        return complete

    def _forget(self) -> None:
        while self._others:
            self._others.pop().close()

    def _read(self, file: int) -> None:
        try:
            messages = os.read(file, _MUCH)
        except BlockingIOError:
            return
        found: dict[int, list[bytes]] = {}
        for line in filter(None, messages.split(b"\n")):
            found.setdefault(line[0], []).append(line[1:])
        for letter, texts in found.items():
            if letter in self._handlers:
                self._handlers[letter](texts)


def _changed_at(folder: Path) -> int | None:
    """Return when names were last added to a folder or removed from it; None if that is not known."""
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116 -- a third of Path.stat, and it is called after commits
    except OSError:
        return None
