"""Check whether what a watch waits for is there, and when something becomes due by itself."""

from collections.abc import Iterator, Sequence
from typing import Final, assert_never

from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.sqlite import topics
from resurgam.store.sqlite.claimable import claimable_activities, claimable_instances, claimable_queries
from resurgam.store.sqlite.feed import last_position, position_of
from resurgam.store.sqlite.query_tasks import is_open
from resurgam.store.sqlite.rows import status_of
from resurgam.store.sqlite.session import Row, Session

_OF_INSTANCES: Final = (r.Closed, r.InboxChanged, r.LogGrown)


def are_met(session: Session, watches: Sequence[r.Watch], now: int) -> Iterator[bool]:
    """Yield for each watch whether what it waits for is there."""
    wanted = {watch.execution_id for watch in watches if isinstance(watch, _OF_INSTANCES)}
    found: dict[str, Row] = {}
    if wanted:
        rows = session.fetch("progress_of", execution_ids=encode(list(wanted)))
        found = {row["execution_id"]: row for row in rows}
    for watch in watches:
        yield _is_met(session, watch, found, now)


def _is_met(session: Session, watch: r.Watch, found: dict[str, Row], now: int) -> bool:
    match watch:
        case r.Work():
            return _is_work(session, watch, now)
        case r.QueryAnswered():
            return not is_open(session, watch.query_id, now)
        case r.FeedGrown():
            return last_position(session) > position_of(watch.after)
        case r.Published():
            return topics.has_grown(session, watch)
        case r.Closed() | r.InboxChanged() | r.LogGrown():
            return has_progressed(watch, found.get(watch.execution_id))
        case _:
            assert_never(watch)


def _is_work(session: Session, watch: r.Work, now: int) -> bool:
    if watch.instances and claimable_instances(session, watch.worker, watch.queues, 1, now):
        return True
    if watch.activities and claimable_activities(session, watch.queues, 1, now):
        return True
    return watch.queries and bool(claimable_queries(session, watch.queues, 1, now))


def has_progressed(watch: r.Closed | r.InboxChanged | r.LogGrown, row: Row | None) -> bool:
    """Whether the instance in *row* has come as far as a watch waits for; a purged one ends every wait."""
    if row is None:
        return True
    if isinstance(watch, r.InboxChanged):
        return bool(row["wake"] > watch.wake)
    grown = isinstance(watch, r.LogGrown) and row["last_seq"] > watch.last_seq
    return grown or status_of(row["status"]).terminal


def next_due(session: Session, now: int) -> int | None:
    """Return the next moment at which something becomes claimable by itself."""
    [row] = session.fetch("next_due", now=now)
    moment: int | None = row["moment"]
    return moment
