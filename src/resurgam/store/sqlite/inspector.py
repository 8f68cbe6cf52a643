"""The read side of a SQLite file."""

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.core.event import decode_event
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.sqlite.activities import open_activity_of
from resurgam.store.sqlite.connection import BUSY_TIMEOUT, explain
from resurgam.store.sqlite.covered import by_ref, open_ones
from resurgam.store.sqlite.history import decode_log
from resurgam.store.sqlite.instances import find, newest
from resurgam.store.sqlite.listing import ended, listed
from resurgam.store.sqlite.migrate import check_ours, check_readable, newest_version
from resurgam.store.sqlite.rows import instance_of, promise_of, unpack
from resurgam.store.sqlite.session import Row, Session, Snapshots
from resurgam.store.sqlite.topics import messages_on

logger = logging.getLogger("resurgam.store")

T = TypeVar("T")


class SqliteInspector:
    """Read instances, their logs and their open work; writes nothing."""

    def __init__(self, file: Snapshots, clock: Clock) -> None:
        self._file = file
        self._clock = clock

    async def get(
        self, entity_id: str, run_id: str | None = None, *, execution_id: str | None = None
    ) -> r.Instance | None:
        """Return the newest execution of an entity, or the newest of a run, or the one with this id."""
        if execution_id is not None:
            rows = self._file.fetch("shown_execution", entity_id=entity_id, run_id=run_id, execution_id=execution_id)
        elif run_id is not None:
            rows = self._file.fetch("shown_newest_of_run", entity_id=entity_id, run_id=run_id)
        else:
            rows = self._file.fetch("shown_newest", entity_id=entity_id)
        return unpack(*rows[0]) if rows else None

    async def list(self, query: r.Query) -> r.Page:
        """Return a page of instances, newest first."""
        return self._file.read(lambda session: _page(session, query))

    async def ended(self, query: r.EndedQuery) -> Sequence[r.Instance]:
        """Return complete executions in the order in which they ended."""
        rows = self._file.read(lambda session: ended(session, query))
        return [instance for row in rows for instance in _decodable(instance_of, row)]

    async def dead_letters(self, cursor: str | None = None, limit: int = 100) -> r.Page:
        """Return executions that are dead letters, or have activities that are, in the order of their ids."""

        def look(session: Session) -> r.Page:
            rows = session.fetch("dead_letters", after=cursor or "", limit=limit + 1)
            more = rows[limit - 1]["execution_id"] if len(rows) > limit else None
            return r.Page(instances=tuple(_decoded(session, rows[:limit])), cursor=more)

        return self._file.read(look)

    async def history(
        self,
        execution: r.Addressed,
        last: int | None = None,
        *,
        forgotten: bool = False,
        after: int = 0,
        limit: int | None = None,
    ) -> Sequence[events.Event]:
        """Return the log of an execution, a page of it, or its last entries."""
        which = {"execution_id": execution.execution_id, "forgotten": int(forgotten)}
        if last is not None:
            rows = self._file.fetch("last_events", last=last, **which)[::-1]
        else:
            rows = self._file.fetch("shown_events", after=after, limit=-1 if limit is None else limit, **which)
        return decode_log(rows, execution.execution_id)

    async def open_work(self, execution: r.Addressed) -> r.OpenWork | None:
        """Return the open work of an execution that its log does not show."""
        return self._file.read(lambda session: _open_work(session, execution.execution_id))

    async def promise(self, to: r.Delivery) -> r.HeldPromise | None:
        """Return the promise that a delivery is addressed to."""
        return self._file.read(lambda session: _promise(session, to))

    async def stats(self) -> r.Stats:
        """Return the counts."""
        now = self._clock.now()
        return self._file.read(lambda session: _stats(session, now))

    async def messages(self, topic: str, after: str | None = None) -> r.Messages:
        """Return the recent messages on a topic."""
        return self._file.read(lambda session: messages_on(session, topic, after))

    async def close(self) -> None:
        """Close the file."""
        self._file.close()


class ReadOnlyFile:
    """A SQLite file opened with ``mode=ro``: SQLite itself refuses to write, and no lock is held beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._connection = sqlite3.connect(
                f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=BUSY_TIMEOUT, isolation_level=None
            )
        except sqlite3.Error as error:
            raise explain(path, error) from error
        try:
            self._connection.row_factory = sqlite3.Row
            check_ours(self._connection, path)
            self._check_version()
        except sqlite3.Error as error:
            self._connection.close()
            raise explain(path, error) from error
        except StoreError:
            self._connection.close()
            raise
        self._session = Session(self._connection)

    def _check_version(self) -> None:
        [version] = self._connection.execute("PRAGMA user_version").fetchone()
        check_readable(version, self._path)
        if version < newest_version():
            raise StoreError(
                f"{self._path}: the file has schema version {version}, this Resurgam knows {newest_version()}; "
                "open it with a worker of this version first"
            )

    def read(self, look: Callable[[Session], T]) -> T:
        """Return what *look* finds in one consistent state."""
        try:
            self._connection.execute("BEGIN")
            try:
                return look(self._session)
            finally:
                self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise explain(self._path, error) from error

    def fetch(self, query: str, **parameters: object) -> Sequence[Row]:
        """Run one statement and return its rows."""
        try:
            return self._session.fetch(query, **parameters)
        except sqlite3.Error as error:
            raise explain(self._path, error) from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _page(session: Session, query: r.Query) -> r.Page:
    rows = listed(session, query, query.limit + 1)
    page = tuple(_decoded(session, rows[: query.limit]))
    return r.Page(instances=page, cursor=page[-1].cursor if len(rows) > query.limit and page else None)


def _decoded(session: Session, rows: Sequence[Row]) -> Iterator[r.Instance]:
    """Yield the instances of a page; log and leave out those that this version cannot decode."""
    for row in rows:
        try:
            yield _with_dead_letters(session, row)
        except ValueError as error:
            logger.warning("execution %s is not listed: %s (a newer version wrote it)", row["execution_id"], error)


def _with_dead_letters(session: Session, row: Row) -> r.Instance:
    dead = session.fetch("activity_dead_letters", execution_id=row["execution_id"])
    return instance_of(row, tuple(letter["dead_letter"] for letter in dead))


def _open_work(session: Session, execution_id: str) -> r.OpenWork | None:
    row = find(session, execution_id)
    if row is None:
        return None
    activities = session.fetch("activities_of", execution_id=execution_id)
    inbox = session.fetch("inbox_since", execution_id=execution_id, wake=-1)
    held = row["leased_until"] is not None
    return r.OpenWork(
        activities=by_ref(
            [activity for found in activities for activity in _decodable(open_activity_of, found)],
            open_ones(session, row),
        ),
        inbox=tuple(event for entry in inbox for event in _decodable(decode_event, entry["body"])),
        worker=row["lease_owner"] if held else None,
        leased_until=row["leased_until"],
        deliveries=row["deliveries"],
    )


def _promise(session: Session, to: r.Delivery) -> r.HeldPromise | None:
    if to.promise_id is not None:
        rows = session.fetch("promise", promise_id=to.promise_id)
    else:
        execution_id = to.execution_id
        if execution_id is None:
            current = newest(session, to.entity_id)
            execution_id = None if current is None else current["execution_id"]
        rows = session.fetch("promises_named", execution_id=execution_id, name=to.promise)
    if not rows:
        return None
    [holder] = session.fetch("instance_by_execution", execution_id=rows[0]["execution_id"])
    return r.HeldPromise(promise=promise_of(rows[0]), instance=_with_dead_letters(session, holder))


def _stats(session: Session, now: int) -> r.Stats:
    statuses = {row["shown"]: row["number"] for row in session.fetch("count_statuses")}
    ready = {row["queue"]: row["number"] for row in session.fetch("count_ready", now=now)}
    activities = {row["queue"]: row for row in session.fetch("count_activities")}
    covered = {row["queue"]: row["claimed"] for row in session.fetch("count_covered")}
    [dead] = session.fetch("count_dead_letters")
    return r.Stats(
        instances={str(Status(status)): number for status, number in statuses.items()},
        queues={
            queue: r.QueueStats(
                instances=ready.get(queue, 0),
                activities=activities[queue]["waiting"] if queue in activities else 0,
                claimed_activities=(activities[queue]["claimed"] if queue in activities else 0) + covered.get(queue, 0),
            )
            for queue in sorted(ready.keys() | activities.keys() | covered.keys())
        },
        dead_activities=sum(row["dead_letters"] for row in activities.values()),
        dead_instances=dead["number"],
    )


S = TypeVar("S")


def _decodable(decode: Callable[[S], T], stored: S) -> Iterator[T]:
    """Yield what was stored, unless this version cannot decode it: one that it cannot must not hide the others."""
    with suppress(ValueError):
        yield decode(stored)
