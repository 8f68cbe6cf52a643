"""The one place that reads the wall clock, draws randomness and makes ids."""

import asyncio
import os
import platform
import random
import time
from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]


class SystemClock:
    """The machine's clock; calls come through the running event loop."""

    def now(self) -> int:
        """Return the milliseconds since 1970."""
        return time.time_ns() // 1_000_000  # noqa: TID251 -- this is the one place

    def call_at(self, when: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* at *when*, on the running event loop."""
        return asyncio.get_running_loop().call_later(max(0, when - self.now()) / 1000, callback).cancel


def new_id(now: int) -> str:
    """Return a ULID: 48 bits of time and 80 of chance, sorting by time."""
    number = (now << 80) | int.from_bytes(os.urandom(10), "big")
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in range(120, -1, -10)])


def python() -> str:
    """Return the Python that a history is begun with: between two of them asyncio may order things differently."""
    return ".".join(platform.python_version_tuple()[:2])


def chance() -> float:
    """Return a number in [0, 1), to spread retries."""
    return random.random()  # noqa: TID251 -- as above
