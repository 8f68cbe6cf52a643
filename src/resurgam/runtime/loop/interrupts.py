"""Tell the user's Ctrl-C from a `KeyboardInterrupt` that workflow or activity code raises by itself.

Both are the same exception. One that a signal brings comes between two instructions of whatever runs in the main thread,
or out of the function that handles the signal; one that code raises has a ``raise`` where its traceback begins.
"""

import dis
import inspect
import signal
import threading
from types import CodeType
from typing import Final

_RAISE: Final = dis.opmap["RAISE_VARARGS"]


def reraise_ctrl_c(error: BaseException) -> None:
    """Raise *error* again if it is the user's Ctrl-C, which must end the program; otherwise the caller records it."""
    if isinstance(error, KeyboardInterrupt) and _is_by_signal(error):
        raise error


def _is_by_signal(error: KeyboardInterrupt) -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False  # signals are handled in the main thread alone
    place, handler = error.__traceback__, _handler()
    while place is not None:
        if place.tb_frame.f_code is handler:
            return True
        if place.tb_next is None:
            return place.tb_frame.f_code.co_code[place.tb_lasti] != _RAISE
        place = place.tb_next
    return True


def _handler() -> CodeType | None:
    """Return the code of the function that handles Ctrl-C; Python's own has none."""
    handler = signal.getsignal(signal.SIGINT)
    handler = getattr(handler, "func", handler)  # of a functools.partial, as asyncio sets one
    return getattr(inspect.unwrap(handler), "__code__", None) if callable(handler) else None
