"""Wake other processes after a commit: each waiting store reads from a named pipe in the folder of the owners.

A byte in the pipe means that the file may have changed. A lost byte costs time, not work: every store also polls the
file. The path of a pipe may have any length, unlike that of a socket.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from resurgam.store.sqlite.owner_lock import PIPE

_INTERVAL: Final = 0.01
"""Seconds between two rounds of wake-ups; commits in between share the second round."""

_MUCH: Final = 4096
"""Bytes read at a time: more than the wake-ups that can have accumulated."""


class Wakeups:
    """The pipe of one store, and access to the pipes of the others."""

    def __init__(self, pipe: Path, mode: int) -> None:
        self._pipe = pipe
        self._mode = mode
        self._file: int | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._again = False

    @property
    def heard(self) -> bool:
        """Whether other stores can wake this one; without a pipe it must poll."""
        return self._file is not None

    def listen(self, wake: Callable[[], None]) -> None:
        """Call *wake* on the running loop whenever another store has written."""
        with contextlib.suppress(OSError, NotImplementedError):
            os.mkfifo(self._pipe, 0o600)
            self._pipe.chmod(self._mode)
            # For writing too: a pipe whose last writer has closed it would stay readable.
            file = os.open(self._pipe, os.O_RDWR | os.O_NONBLOCK)
            try:
                asyncio.get_running_loop().add_reader(file, self._read, file, wake)
            except BaseException:
                os.close(file)
                raise
            self._file = file

    def wake_others(self) -> None:
        """Wake all other stores, now or within a few milliseconds."""
        if self._pause is not None:
            self._again = True
            return
        self._pause = asyncio.get_running_loop().call_later(_INTERVAL, self._end_pause)
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._pipe.parent):  # noqa: PTH208 -- names are all that is needed
                if name.startswith(PIPE) and name != self._pipe.name:
                    _write(self._pipe.with_name(name))

    def close(self) -> None:
        """Send the wake-ups that are due, and stop listening."""
        if self._pause is not None:
            self._pause.cancel()
            self._end_pause()
        if self._pause is not None:
            self._pause.cancel()
        if self._file is not None:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)
            self._file = None
        with contextlib.suppress(FileNotFoundError):
            self._pipe.unlink()

    def _end_pause(self) -> None:
        self._pause = None
        if self._again:
            self._again = False
            self.wake_others()

    def _read(self, file: int, wake: Callable[[], None]) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(file, _MUCH)
        wake()


def _write(pipe: Path) -> None:
    """Write a byte; ignore a reader that is gone or whose pipe is full."""
    with contextlib.suppress(OSError):
        file = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(file, b".")
        finally:
            os.close(file)
