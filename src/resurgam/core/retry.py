"""Retry policies, and the delay before the next attempt as a pure function."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeAlias

import msgspec

from resurgam.core.typename import type_name

Duration: TypeAlias = float | int | timedelta
"""Seconds or a timedelta; accepted wherever a length of time is an argument."""


_FOREVER = 10**11
"""Seconds, three thousand years: later dates cannot be represented."""

_LONGEST_DELAY = 10 * 365 * 86400 * 1000


def is_whole(value: object, least: int) -> bool:
    """Whether *value* is an integer of at least *least*; booleans do not count as integers."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def milliseconds(duration: Duration) -> int:
    """Convert a duration to whole milliseconds; raise ``ValueError`` if it is none."""
    if type(duration) is int and -_FOREVER < duration < _FOREVER:
        return duration * 1000
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not -_FOREVER < seconds < _FOREVER:
        raise ValueError(f"a duration must be seconds or a timedelta, got {duration!r}")
    return round(seconds * 1000)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often a failed attempt is retried, and after which delay.

    *max_attempts* counts all attempts; ``None`` means no limit. The delay before attempt *k + 1* is
    ``initial_interval * backoff ** (k - 1)``, if *linear* ``initial_interval * k``, varied by *jitter* (a fraction, both
    ways). It is never longer than *max_interval*, so *initial_interval* must not be longer either.
    *non_retryable* lists errors that are not retried, as types or by name. With ``redeliver=False`` an attempt counts
    even if its worker dies or loses its lease; by default such an attempt does not count.
    """

    max_attempts: int | None = 5
    initial_interval: float = 1.0
    backoff: float = 2.0
    max_interval: float = 100.0
    jitter: float = 0.1
    non_retryable: Sequence[type[BaseException] | str] = ()
    redeliver: bool = True
    linear: bool = False

    def __post_init__(self) -> None:
        if self.max_attempts is not None and not is_whole(self.max_attempts, 1):
            raise ValueError(
                f"max_attempts must be None or at least 1, got {self.max_attempts}; it counts all attempts"
            )
        # "not >=" refuses NaN too.
        if not (self.initial_interval >= 0 and self.max_interval >= 0 and self.backoff >= 1):
            limits = {"initial_interval": 0, "max_interval": 0, "backoff": 1}
            name = next(name for name, least in limits.items() if not getattr(self, name) >= least)
            raise ValueError(f"{name} must be at least {limits[name]}, got {getattr(self, name)}")
        if self.initial_interval > self.max_interval:
            raise ValueError(_too_long(self.initial_interval, self.max_interval))
        listed = self.non_retryable if isinstance(self.non_retryable, list | tuple | set | frozenset) else [None]
        if not all(isinstance(one, str | type) for one in listed):
            raise TypeError(f"non_retryable must be a list of types or names, got {self.non_retryable!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be between 0 and 1, got {self.jitter}")

    def non_retryable_names(self) -> tuple[str, ...]:
        """Return *non_retryable* as names, the form in which they are stored."""
        return tuple(t if isinstance(t, str) else type_name(t) for t in self.non_retryable)

    def rule(self) -> "RetryRule":
        """Return the policy in the form stored with an activity."""
        return RetryRule(
            max_attempts=self.max_attempts,
            initial_interval=self.initial_interval,
            backoff=self.backoff,
            max_interval=self.max_interval,
            jitter=self.jitter,
            non_retryable=self.non_retryable_names(),
            redeliver=self.redeliver,
            linear=self.linear,
        )


def _too_long(initial: float, longest: float) -> str:
    """Return the error of an initial interval that is longer than the maximum; name the one that was left out."""
    usual = RetryPolicy()
    remedy = ""
    if longest == usual.max_interval:
        remedy = "; give max_interval too"
    elif initial == usual.initial_interval:
        remedy = "; give initial_interval too"
    return f"initial_interval must not be longer than max_interval, got {initial} and {longest}{remedy}"


class RetryRule(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """The stored form of a `RetryPolicy`, with errors given by name."""

    max_attempts: int | None = 5
    initial_interval: float = 1.0
    backoff: float = 2.0
    max_interval: float = 100.0
    jitter: float = 0.1
    non_retryable: tuple[str, ...] = ()
    redeliver: bool = True
    linear: bool = False

    def policy(self) -> RetryPolicy:
        """Return the stored policy, with the same delays.

        A stored *initial_interval* may be longer than *max_interval*, which a new policy must not have.
        """
        fields = msgspec.structs.asdict(self)
        fields["initial_interval"] = min(self.initial_interval, self.max_interval)
        return RetryPolicy(**fields)

    def delay_after(self, attempt: int, chance: float) -> int | None:
        """Return the milliseconds to wait after failed attempt number *attempt*, or None if it was the last.

        *chance* is a random number in [0, 1), drawn by the caller. Jitter does not exceed *max_interval*.
        """
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return None
        try:
            growth = attempt if self.linear else float(self.backoff) ** (attempt - 1)
            base = min(self.max_interval, self.initial_interval * growth)
        except OverflowError:  # 2.0 ** 1100 exceeds float; the cap was reached long before
            base = self.max_interval if self.initial_interval else 0.0
        varied = base * 1000 * (1 + self.jitter * (2 * chance - 1))
        return round(min(varied, self.max_interval * 1000, _LONGEST_DELAY))

    def excludes(self, type_names: Sequence[str]) -> bool:
        """Whether an error with these names (its type and its base types) is not retried."""
        listed = set(self.non_retryable)
        return any(name in listed or name.rsplit(".", 1)[-1] in listed for name in type_names)
