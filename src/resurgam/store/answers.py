"""Answers of the stores on servers, as far as they are the same: what a commit has claimed, what cannot be decoded."""

from collections.abc import Sequence

from resurgam.store import records as r
from resurgam.store.rules import COVERED


class Undecodable(ValueError):
    """Something that a newer version wrote; *reason* is that of a dead letter."""

    def __init__(self, what: str, error: ValueError) -> None:
        self.reason = (
            f"{what} cannot be decoded by this version of Resurgam: {error}; "
            "start workers of the version that wrote it, then retry the run"
        )
        super().__init__(self.reason)


def eager_tasks(part: r.Commit, refs: Sequence[int]) -> tuple[r.ActivityTask, ...]:
    """Return the tasks of the activities that a commit has claimed; the lease covers the first of them."""
    if not refs:
        return ()
    requests = {request.ref: request for request in part.outcome.activities}
    room = COVERED - len(part.running) if part.covers else 0
    return tuple(
        [
            r.ActivityTask(
                entity_id=part.entity_id,
                execution_id=part.execution_id,
                epoch=0 if number < room else 1,
                attempt=1,
                deliveries=0,
                request=requests[ref],
            )
            for number, ref in enumerate(refs)
        ]
    )
