"""What the verbs of a SQL store are told on: a connection that runs named statements, and the questions of all claims."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from resurgam.store.encoding import encode

Row = Mapping[str, Any]


class Session(Protocol):
    """A connection within a transaction."""

    def all(self, query: str, **parameters: object) -> Sequence[Row]:
        """Run a named statement and return its rows."""
        ...

    def do(self, query: str, **parameters: object) -> int:
        """Run a named statement and return how many rows it changed."""
        ...

    def many(self, query: str, parameters: Sequence[Mapping[str, object]]) -> None:
        """Run a named statement for each set of parameters."""
        ...


def claimable_instances(session: Session, worker: str, queues: Sequence[str], limit: int, now: int) -> Sequence[Row]:
    """Return instances that a worker may claim, in the order in which they became claimable."""
    found = [
        row
        for queue in queues
        for row in session.all("claimable_instances", worker=worker, queue=queue, limit=limit, now=now)
    ]
    return found if len(queues) == 1 else sorted(found, key=_since)[:limit]


def claimable_activities(session: Session, queues: Sequence[str], limit: int, now: int) -> Sequence[Row]:
    """Return activities that may be claimed, those first whose time came first."""
    found = [row for queue in queues for row in session.all("claimable_activities", queue=queue, limit=limit, now=now)]
    return found if len(queues) == 1 else sorted(found, key=_turn)[:limit]


def open_questions(session: Session, queues: Sequence[str], limit: int, now: int) -> Sequence[Row]:
    """Return questions that nobody has in hand, oldest first."""
    return session.all("open_questions", queues=encode(queues), limit=limit, now=now)


def _turn(row: Row) -> tuple[int, str, int]:
    return row["available_at"], row["execution_id"], row["ref"]


def _since(row: Row) -> tuple[int, int]:
    return row["turn"], row["place"]
