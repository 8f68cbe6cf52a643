"""Distinguish the user's Ctrl-C from a `KeyboardInterrupt` raised by workflow or activity code.

Both are the same exception. One caused by a signal is raised between two instructions of the main thread, or by the
signal handler; one raised by code has a ``raise`` instruction at the end of its traceback.
"""

import dis
import inspect
import signal
import threading
from types import CodeType
from typing import Final

_RAISE: Final = dis.opmap["RAISE_VARARGS"]


def reraise_ctrl_c(error: BaseException) -> None:
    """Raise *error* again if it is the user's Ctrl-C, which must end the program; otherwise return."""
    if isinstance(error, KeyboardInterrupt) and _is_by_signal(error):
        raise error


def _is_by_signal(error: KeyboardInterrupt) -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False  # signals are handled in the main thread only
    entry, handler = error.__traceback__, _handler()
    while entry is not None:
        if entry.tb_frame.f_code is handler:
            return True
        if entry.tb_next is None:
            return entry.tb_frame.f_code.co_code[entry.tb_lasti] != _RAISE
        entry = entry.tb_next
    return True


def _handler() -> CodeType | None:
    """Return the code of the Ctrl-C handler; None for Python's own."""
    handler = signal.getsignal(signal.SIGINT)
    handler = getattr(handler, "func", handler)  # asyncio sets a functools.partial
    return getattr(inspect.unwrap(handler), "__code__", None) if callable(handler) else None
