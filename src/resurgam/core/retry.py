"""When to try again, as a pure function."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import msgspec

from resurgam.core.typename import type_name

Duration: TypeAlias = float | int | timedelta
"""Seconds or a timedelta, wherever a length of time is asked for."""


_FOREVER = 1e11
"""Seconds, three thousand years: what lies beyond has no date any more."""

_LONGEST_PAUSE = 10 * 365 * 86400 * 1000


def is_whole(value: object, least: int) -> bool:
    """Whether this is a whole number, and no less; True and False are written as something else, and so are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def milliseconds(duration: Duration) -> int:
    """Return a length of time as whole milliseconds, refusing what is not one."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not -_FOREVER < seconds < _FOREVER:
        raise ValueError(f"not a length of time: {duration!r}; give seconds or a timedelta")
    return round(seconds * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a failed attempt is repeated, and after what pause.

    *max_attempts* counts all tries, ``None`` is no limit. The pause before try *k + 1* is
    ``initial_interval * backoff ** (k - 1)``, at most *max_interval*, spread by *jitter* (a share of it, both ways).
    *non_retryable* names errors that end it at once, as types or by name. With ``redeliver=False`` a worker that dies
    or loses its lease has spent an attempt; by default that is no attempt at all.
    """

    max_attempts: int | None = 5
    initial_interval: float = 1.0
    backoff: float = 2.0
    max_interval: float = 100.0
    jitter: float = 0.1
    non_retryable: Sequence[type[BaseException] | str] = ()
    redeliver: bool = True

    def __post_init__(self) -> None:
        if self.max_attempts is not None and not is_whole(self.max_attempts, 1):
            raise ValueError(f"max_attempts is {self.max_attempts}; it counts all tries, so it is at least 1, or None")
        # Written so that NaN, which is less than nothing and more than nothing, is refused too.
        if not (self.initial_interval >= 0 and self.max_interval >= 0 and self.backoff >= 1):
            raise ValueError("intervals are 0 or more and backoff is 1 or more")
        listed = self.non_retryable if isinstance(self.non_retryable, list | tuple | set | frozenset) else [None]
        if not all(isinstance(one, str | type) for one in listed):
            raise TypeError(f"non_retryable is {self.non_retryable!r}; it is a list of types or names")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter is {self.jitter}; it is a share between 0 and 1")

    def non_retryable_names(self) -> tuple[str, ...]:
        """Return *non_retryable* as names, which is how they travel."""
        return tuple(t if isinstance(t, str) else type_name(t) for t in self.non_retryable)

    def rule(self) -> "RetryRule":
        """Return the policy in the form in which it travels with an activity."""
        return RetryRule(
            max_attempts=self.max_attempts,
            initial_interval=self.initial_interval,
            backoff=self.backoff,
            max_interval=self.max_interval,
            jitter=self.jitter,
            non_retryable=self.non_retryable_names(),
            redeliver=self.redeliver,
        )


class RetryRule(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """A `RetryPolicy` as it is written down: errors are named."""

    max_attempts: int | None = 5
    initial_interval: float = 1.0
    backoff: float = 2.0
    max_interval: float = 100.0
    jitter: float = 0.1
    non_retryable: tuple[str, ...] = ()
    redeliver: bool = True

    def policy(self) -> RetryPolicy:
        """Return the policy that was written down."""
        return RetryPolicy(**msgspec.structs.asdict(self))

    def delay_after(self, attempt: int, chance: float) -> int | None:
        """Return the milliseconds to wait after failed try number *attempt*, or None if it was the last.

        *chance* is a number in [0, 1) that somebody else drew.
        """
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return None
        try:
            base = min(self.max_interval, self.initial_interval * float(self.backoff) ** (attempt - 1))
        except OverflowError:  # 2.0 ** 1100 is no float any more; the cap has long been reached
            base = self.max_interval if self.initial_interval else 0.0
        return round(min(base * 1000 * (1 + self.jitter * (2 * chance - 1)), _LONGEST_PAUSE))

    def excludes(self, type_names: Sequence[str]) -> bool:
        """Whether an error with these names (its type and the types it derives from) is not to be retried."""
        listed = set(self.non_retryable)
        return any(name in listed or name.rsplit(".", 1)[-1] in listed for name in type_names)
