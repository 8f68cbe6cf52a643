"""The options that all workers of a store share, whichever command runs them: `resurgam worker` and `resurgam serve`."""

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any

import msgspec

from resurgam import Retain
from resurgam.cli.archive import archive_after_option, archive_option, check_archive_after
from resurgam.cli.process import outbound_option, queue_option
from resurgam.cli.retention import retain_option, rule_text

if TYPE_CHECKING:
    from resurgam import Outbound


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker serves, removes, archives and calls."""

    queues: tuple[str, ...]
    retain: tuple[Retain, ...] | None
    archive: str | None
    archive_after: timedelta | None
    outbound: "Outbound | None"

    def for_engine(self) -> dict[str, Any]:
        """Return them as arguments of an engine."""
        return msgspec.structs.asdict(self)

    def for_command(self) -> list[str]:
        """Return them as arguments of a command."""
        return [
            *(f"--queue={queue}" for queue in self.queues),
            *(f"--retain={rule_text(rule)}" for rule in self.retain or ()),
            *([] if self.archive is None else [f"--archive={self.archive}"]),
            *([] if self.archive_after is None else [f"--archive-after={self.archive_after.total_seconds():f}s"]),
            *(() if self.outbound is None else (f"--outbound={entry}" for entry in self.outbound.allow)),
        ]


def with_worker_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options; *function* gets them as one argument, *options*, once they are checked together."""

    @wraps(function)
    def call(
        *,
        queues: tuple[str, ...],
        retain: tuple[Retain, ...],
        archive: str | None,
        archive_after: timedelta | None,
        outbound: "Outbound | None",
        **others: Any,
    ) -> None:
        check_archive_after(archive, archive_after, retain)
        options = WorkerOptions(
            queues=queues, retain=retain or None, archive=archive, archive_after=archive_after, outbound=outbound
        )
        function(options=options, **others)

    return queue_option(retain_option(archive_option(archive_after_option(outbound_option(call)))))
