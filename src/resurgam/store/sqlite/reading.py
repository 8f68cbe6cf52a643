"""The read side: what is there, without touching it."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, assert_never

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory
from resurgam.core.event import decode_event
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.sqlite.activities import open_activity_of
from resurgam.store.sqlite.queries import is_open, reply_of
from resurgam.store.sqlite.rows import instance_of, promise_of
from resurgam.store.sqlite.session import Row, Session, claimable_activities, claimable_instances, open_questions

logger = logging.getLogger("resurgam.store")

_EVER: Final = -(2**63)
_NEVER: Final = 2**63 - 1
_OF_INSTANCES = (r.Closed, r.InboxChanged, r.LogGrown)


class Reading:
    """What an `Inspector` answers, and whether what is watched for is there."""

    def __init__(self, session: Session, *, now: int) -> None:
        self._session = session
        self._now = now

    def get(self, entity_id: str, run_id: str | None, execution_id: str | None) -> r.Instance | None:
        """Return the newest execution of an entity or of one of its runs, or the one with this id."""
        if execution_id is None:
            statement = "newest_execution" if run_id is None else "newest_of_run"
            rows = self._session.all(statement, entity_id=entity_id, run_id=run_id)
        else:
            found = self._session.all("instance_by_execution", execution_id=execution_id)
            rows = [row for row in found if row["entity_id"] == entity_id and run_id in (None, row["run_id"])]
        return self._seen(rows[0]) if rows else None

    def list(self, query: r.Query) -> r.Page:
        """Return a page of instances, newest first."""
        before, before_id = _beginning(query)
        rows = self._session.all(
            _listing(query),
            status=None if query.status is None else query.status.value,
            kind=query.kind,
            name=query.name,
            since=_EVER if query.since is None else query.since,
            before=before,
            before_id=before_id,
            failure=query.failure,
            newest_only=query.newest_only,
            parent=query.parent,
            tree_id=query.tree_id,
            tags=encode(query.tags),
            limit=query.limit + 1,
        )
        page = tuple(self._listed(rows[: query.limit]))
        return r.Page(instances=page, cursor=page[-1].cursor if len(rows) > query.limit and page else None)

    def _listed(self, rows: Sequence[Row]) -> Iterator[r.Instance]:
        """Yield the instances of a page; one that this version cannot decode is logged, and hides no other."""
        for row in rows:
            try:
                yield self._seen(row)
            except ValueError as error:
                logger.warning("execution %s is not listed: %s (a newer version wrote it)", row["execution_id"], error)

    def open_work(self, execution_id: str) -> r.OpenWork | None:
        """Return what an execution has under way that its log does not show."""
        rows = self._session.all("instance_by_execution", execution_id=execution_id)
        if not rows:
            return None
        activities = self._session.all("activities_of", execution_id=execution_id)
        inbox = self._session.all("inbox_since", execution_id=execution_id, wake=-1)
        held = rows[0]["leased_until"] is not None
        return r.OpenWork(
            activities=tuple(_decodable_activities(activities)),
            inbox=tuple(_decodable(inbox)),
            worker=rows[0]["lease_owner"] if held else None,
            leased_until=rows[0]["leased_until"],
            deliveries=rows[0]["deliveries"],
        )

    def ended(self, query: r.EndedQuery) -> Sequence[r.Instance]:
        """Return ended executions, those first that ended first."""
        closed_at, execution_id = query.after or (-1, "")
        rows = self._session.all(
            "ended_instances",
            before=query.before,
            status=None if query.status is None else query.status.value,
            name=query.name,
            closed_at=closed_at,
            execution_id=execution_id,
            limit=query.limit,
        )
        return list(_readable(rows))

    def promise(self, to: r.Delivery) -> r.HeldPromise | None:
        """Return the promise that a delivery is addressed to."""
        if to.promise_id is not None:
            rows = self._session.all("promise", promise_id=to.promise_id)
        else:
            execution_id = to.execution_id
            if execution_id is None:
                newest = self._session.all("newest_execution", entity_id=to.entity_id)
                execution_id = newest[0]["execution_id"] if newest else None
            rows = self._session.all("promises_named", execution_id=execution_id, name=to.promise)
        if not rows:
            return None
        [holder] = self._session.all("instance_by_execution", execution_id=rows[0]["execution_id"])
        return r.HeldPromise(promise=promise_of(rows[0]), instance=self._seen(holder))

    def stats(self) -> r.Stats:
        """Return the counts."""
        statuses = {row["shown"]: row["number"] for row in self._session.all("count_statuses")}
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

    def are_there(self, watches: Sequence[r.Watch]) -> Iterator[bool]:
        """Whether what is watched for is there now, for each."""
        wanted = {watch.execution_id for watch in watches if isinstance(watch, _OF_INSTANCES)}
        found: dict[str, Row] = {}
        if wanted:
            rows = self._session.all("progress_of", execution_ids=encode(list(wanted)))
            found = {row["execution_id"]: row for row in rows}
        for watch in watches:
            yield self._is_there(watch, found)

    def _is_there(self, watch: r.Watch, found: dict[str, Row]) -> bool:
        match watch:
            case r.Work():
                return self._is_work(watch)
            case r.QueryAnswered():
                return not is_open(self._session, watch.question_id, self._now)
            case r.Publishing():
                return bool(self._session.all("messages_after", topic=watch.topic, after=watch.after, limit=1))
            case r.Closed() | r.InboxChanged() | r.LogGrown():
                return has_come(watch, found.get(watch.execution_id))
            case _:
                assert_never(watch)

    def _is_work(self, watch: r.Work) -> bool:
        session, queues = self._session, watch.queues
        if watch.instances and claimable_instances(session, watch.worker, queues, 1, self._now):
            return True
        if watch.activities and claimable_activities(session, queues, 1, self._now):
            return True
        return watch.questions and bool(open_questions(session, queues, 1, self._now))

    def reply(self, question_id: str) -> r.QueryResult | None:
        """Return what was answered to a question."""
        return reply_of(self._session, question_id, self._now)

    def messages(self, topic: str, after: int | None) -> r.Messages:
        """Return what was published on a topic lately."""
        [last] = self._session.all("last_message")
        rows = [] if after is None else self._session.all("messages_after", topic=topic, after=after, limit=-1)
        return r.Messages(last=last["number"], values=tuple(Raw(row["body"].encode()) for row in rows))

    def next_due(self) -> int | None:
        """Return the next moment at which something becomes claimable by itself."""
        [row] = self._session.all("next_due", now=self._now)
        moment: int | None = row["moment"]
        return moment

    def _seen(self, row: Row) -> r.Instance:
        dead = self._session.all("troubles", execution_id=row["execution_id"])
        return instance_of(row, tuple(trouble["dead"] for trouble in dead))


def _listing(query: r.Query) -> str:
    """Return the statement for a list: each has an index of its own, which one statement for all could not use."""
    if query.parent is not None:
        return "listed_children"
    if query.tree_id is not None:
        return "listed_tree"
    return "listed_instances" if query.failure is None else "listed_failed"


def _beginning(query: r.Query) -> tuple[int, str]:
    """Return the place before which a page begins: the cursor or *until*, whichever is earlier."""
    until = (_NEVER if query.until is None else query.until, "")
    if query.cursor is None:
        return until
    moment, _, execution_id = query.cursor.partition("-")
    return min(until, (int(moment), execution_id))


def _decodable(rows: Sequence[Row]) -> Iterator[events.Event]:
    """Yield the events of an inbox; one that this version cannot decode must not hide the others."""
    for row in rows:
        with suppress(ValueError):
            yield decode_event(row["body"])


def _readable(rows: Sequence[Row]) -> Iterator[r.Instance]:
    """Yield the ended executions that rows hold; one that this version cannot decode is kept, and hides no other."""
    for row in rows:
        with suppress(ValueError):
            yield instance_of(row)


def _decodable_activities(rows: Sequence[Row]) -> Iterator[r.OpenActivity]:
    """Yield the activities of an execution; one that this version cannot decode is among its troubles."""
    for row in rows:
        with suppress(ValueError):
            yield open_activity_of(row)


def log_of(rows: Sequence[Row], execution_id: str) -> Sequence[events.Event]:
    """Return the entries that rows hold."""
    found: list[events.Event] = []
    try:
        found.extend(decode_event(row["body"]) for row in rows)
    except ValueError as error:
        seq = rows[len(found)]["seq"]
        raise CorruptHistory(f"entry {seq} of execution {execution_id} cannot be read: {error}") from error
    return found


def has_come(watch: r.Closed | r.InboxChanged | r.LogGrown, row: Row | None) -> bool:
    """Whether an instance has ended, has grown or has news; one that is gone has nothing to be waited for."""
    if row is None:
        return True
    if isinstance(watch, r.InboxChanged):
        return bool(row["wake"] > watch.wake)
    grown = isinstance(watch, r.LogGrown) and row["last_seq"] > watch.last_seq
    return grown or Status(row["status"]).terminal
