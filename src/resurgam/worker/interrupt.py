"""Raises an exception in another thread, which is all that can be done to one that does not look up by itself.

It comes when that thread next executes Python code: not while it sleeps, or waits for a lock or a socket.
"""

import ctypes
from typing import Final

_MOMENTS: Final = 1000
"""Steps within which Python surely raises what another thread has asked it to raise."""


def raise_in(thread: int, error: type[BaseException]) -> None:
    """Let *error* be raised in another thread at its next instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def take_what_is_to_come(error: type[BaseException]) -> None:
    """Let an interruption that has not arrived yet arrive here, where it does no harm.

    It could be taken back instead, but then Python 3.11 goes on looking for it at every step for as long as the process
    lives, and a profile function that is set later sends it into a loop that never ends.
    """
    try:
        for _ in range(_MOMENTS):
            pass
    except error:
        pass
