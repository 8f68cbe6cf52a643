"""The read side: what is there, without touching it."""

from collections.abc import Sequence

import msgspec

from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory
from resurgam.core.event import decode_event
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.sql.transactions import Row, Session, instance_of


class Reading:
    """What an `Inspector` answers, and whether what is watched for is there."""

    def __init__(self, session: Session, *, now: int) -> None:
        self._session = session
        self._now = now

    def get(self, entity_id: str, run_id: str | None) -> r.Instance | None:
        """Return the newest execution of an entity, or of one of its runs."""
        rows = self._session.all("instance_of_run", entity_id=entity_id, run_id=run_id)
        return self._seen(rows[0]) if rows else None

    def list(self, query: r.Query) -> r.Page:
        """Return a page of instances, newest first."""
        rows = self._session.all(
            "listed_instances",
            status=None if query.status is None else query.status.value,
            name=query.name,
            since=query.since,
            cursor=query.cursor,
            tags=msgspec.json.encode(query.tags).decode(),
            limit=query.limit + 1,
        )
        page = tuple(self._seen(row) for row in rows[: query.limit])
        return r.Page(instances=page, cursor=page[-1].cursor if len(rows) > len(page) > 0 else None)

    def events(self, execution_id: str, after: int) -> Sequence[events.Event]:
        """Return the log of an execution beyond a point."""
        found = []
        for row in self._session.all("events_after", execution_id=execution_id, after=after):
            try:
                found.append(decode_event(row["body"]))
            except ValueError as error:
                seq = after + len(found) + 1
                raise CorruptHistory(f"entry {seq} of execution {execution_id} cannot be read: {error}") from error
        return found

    def stats(self) -> r.Stats:
        """Return the counts."""
        statuses = {row["status"]: row["number"] for row in self._session.all("count_statuses")}
        ready = {row["queue"]: row["number"] for row in self._session.all("count_ready", now=self._now)}
        activities = {row["queue"]: row for row in self._session.all("count_activities")}
        [dead] = self._session.all("count_dead")
        return r.Stats(
            instances={str(Status(status)): number for status, number in statuses.items()},
            queues={
                queue: r.QueueStats(
                    instances=ready.get(queue, 0),
                    activities=activities[queue]["waiting"] if queue in activities else 0,
                    claimed_activities=activities[queue]["claimed"] if queue in activities else 0,
                )
                for queue in sorted(ready.keys() | activities.keys())
            },
            dead_activities=sum(row["dead"] for row in activities.values()),
            dead_instances=dead["number"],
        )

    def is_there(self, watch: r.Watch) -> bool:
        """Whether what is watched for is there now."""
        if isinstance(watch, r.Work):
            return self._is_work(watch)
        rows = self._session.all("instance_by_execution", execution_id=watch.execution_id)
        if not rows:
            return True
        if isinstance(watch, r.Closing):
            return Status(rows[0]["status"]).terminal
        return bool(rows[0]["wake"] > watch.wake)

    def _is_work(self, watch: r.Work) -> bool:
        queues = msgspec.json.encode(watch.queues).decode()
        asked = {"queues": queues, "now": self._now, "limit": 1}
        return bool(
            (watch.instances and self._session.all("claimable_instances", worker=watch.worker, **asked))
            or (watch.activities and self._session.all("claimable_activities", **asked))
        )

    def next_due(self) -> int | None:
        """Return the next moment at which something becomes claimable by itself."""
        [row] = self._session.all("next_due", now=self._now)
        moment: int | None = row["moment"]
        return moment

    def owners(self) -> Sequence[str]:
        """Return who holds leases."""
        return [row["lease_owner"] for row in self._session.all("owners")]

    def _seen(self, row: Row) -> r.Instance:
        dead = self._session.all("troubles", execution_id=row["execution_id"])
        return instance_of(row, tuple(trouble["dead"] for trouble in dead))
