"""Find the work that may be claimed now, in the order in which it became claimable."""

from collections.abc import Sequence

from resurgam.store.encoding import encode
from resurgam.store.sqlite.session import Row, Session


def claimable_instances(session: Session, worker: str, queues: Sequence[str], limit: int, now: int) -> Sequence[Row]:
    """Return instances that a worker may claim, in the order in which they became claimable."""
    found = [
        row
        for queue in queues
        for row in session.fetch("claimable_instances", worker=worker, queue=queue, limit=limit, now=now)
    ]
    return found if len(queues) == 1 else sorted(found, key=_instance_order)[:limit]


def claimable_activities(session: Session, queues: Sequence[str], limit: int, now: int) -> Sequence[Row]:
    """Return activities that may be claimed, in the order in which they became claimable."""
    found = [
        row for queue in queues for row in session.fetch("claimable_activities", queue=queue, limit=limit, now=now)
    ]
    return found if len(queues) == 1 else sorted(found, key=_activity_order)[:limit]


def claimable_queries(session: Session, queues: Sequence[str], limit: int, now: int) -> Sequence[Row]:
    """Return unanswered queries that no worker has leased, oldest first."""
    return session.fetch("claimable_queries", queues=encode(queues), limit=limit, now=now)


def _activity_order(row: Row) -> tuple[int, str, int]:
    return row["available_at"], row["execution_id"], row["ref"]


def _instance_order(row: Row) -> tuple[int, int]:
    return row["ready_at"], row["position"]
