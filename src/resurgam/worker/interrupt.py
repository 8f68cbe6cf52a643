"""Raise an exception in another thread: the only way to stop one that does not check for cancellation.

It is raised when that thread next executes Python code: not while it sleeps, or waits for a lock or a socket.
"""

from typing import Final

_STEPS: Final = 1000
"""Steps within which Python surely raises a pending asynchronous exception."""


def raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise *error* in another thread at its next instruction."""
    import ctypes  # noqa: PLC0415 -- only a worker that abandons an attempt in a thread pays for the import

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def absorb_pending(error: type[BaseException]) -> None:
    """Let a pending interruption be raised here, where it does no harm.

    It could be revoked instead, but then Python 3.11 keeps checking for it at every step for as long as the process
    lives, and a profile function that is set later sends it into an endless loop.
    """
    try:
        for _ in range(_STEPS):
            pass
    except error:
        pass
