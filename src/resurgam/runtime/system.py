"""The only module that reads the wall clock, draws random numbers and generates ids."""

import asyncio
import functools
import os
import platform
import random
import time
from collections.abc import Callable
from typing import Final

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_DIGITS: Final = "".join(_ALPHABET[byte % 32] for byte in range(256)).encode()
"""The digit that each random byte becomes: all 32 are equally likely."""

_STRIDE: Final = 3.0
"""Seconds after which a longer wait reads the wall clock again."""


class SystemClock:
    """The machine's clock; callbacks run on the running event loop."""

    is_system: Final = True

    def now(self) -> int:
        """Return the milliseconds since 1970."""
        return time.time_ns() // 1_000_000  # noqa: TID251 -- this module is the source of time

    def call_at(self, when: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* at *when*, on the running event loop."""
        delay = max(0, when - self.now()) / 1000
        if delay <= _STRIDE:
            return asyncio.get_running_loop().call_later(delay, callback).cancel
        return _LongWait(self, when, callback, delay).cancel


class _LongWait:
    """A wait in strides: after each, the wall clock is read again, which may have been set forward meanwhile.

    The loop's monotonic clock stops while a machine is suspended, and does not follow a step of the wall clock. If the
    wall clock is set back, the wait ends by the loop's clock.
    """

    def __init__(self, clock: SystemClock, when: int, callback: Callable[[], None], delay: float) -> None:
        self._clock = clock
        self._when = when
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + delay
        self._handle = self._loop.call_later(_STRIDE, self._check)

    def cancel(self) -> None:
        """Cancel the callback."""
        self._handle.cancel()

    def _check(self) -> None:
        left = min(self._end - self._loop.time(), (self._when - self._clock.now()) / 1000)
        if left <= 0:
            self._callback()
        else:
            self._handle = self._loop.call_later(min(left, _STRIDE), self._check)


def new_id(now: int) -> str:
    """Return a ULID: 48 bits of time and 80 random bits, sorting by time."""
    return _digits_of(now) + os.urandom(16).translate(_DIGITS).decode()


def new_ids(now: int) -> tuple[str, str, str]:
    """Return three ULIDs of one moment, as a start needs: by one call of the system, which costs more than the rest."""
    moment, digits = _digits_of(now), os.urandom(48).translate(_DIGITS).decode()
    return moment + digits[:16], moment + digits[16:32], moment + digits[32:]


@functools.lru_cache(maxsize=4)  # many ids are made in one moment
def _digits_of(now: int) -> str:
    return "".join([_ALPHABET[(now >> shift) & 31] for shift in range(45, -1, -5)])


@functools.cache
def python() -> str:
    """Return the Python minor that a history starts with: asyncio may order things differently on another one."""
    return ".".join(platform.python_version_tuple()[:2])


def chance() -> float:
    """Return a random number in [0, 1), to spread retries."""
    return random.random()  # noqa: TID251 -- as above
