"""The options of a worker, checked before anything is opened."""

from typing import TYPE_CHECKING

import msgspec

from resurgam.store.retention_rules import Retain

if TYPE_CHECKING:
    from resurgam.flows.http.outbound import Outbound


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The queues that a worker serves, and its limits. *lease* is in milliseconds, other times are in seconds.

    *retain* are the rules of retention, *archive_after* is the age in milliseconds at which runs are archived beside; *outbound*
    are the rules for calls of HTTP steps.
    """

    name: str
    queues: tuple[str, ...] = ("default",)
    lease: int = 10_000
    grace: float = 10.0
    max_activities: int = 1000
    max_instances: int = 100
    cache_size: int = 1000
    tick_limit: float = 10.0
    retain: tuple[Retain, ...] = ()
    archive_after: int | None = None
    outbound: "Outbound | None" = None

    def __post_init__(self) -> None:
        for option in ("max_activities", "cache_size"):
            if not isinstance(getattr(self, option), int):
                raise TypeError(f"{option} must be a whole number, got {getattr(self, option)!r}")
        if self.max_activities < 1 or self.cache_size < 0 or self.lease < 1:
            raise ValueError(
                "max_activities must be at least 1, cache_size at least 0 and lease longer than 0, "
                f"got {self.max_activities}, {self.cache_size} and {self.lease / 1000:g} s"
            )
        if self.grace < 0:
            raise ValueError(f"grace must be at least 0, got {self.grace:g}")
        if self.tick_limit <= 0:
            raise ValueError(f"tick_limit must be more than 0, got {self.tick_limit:g}")
