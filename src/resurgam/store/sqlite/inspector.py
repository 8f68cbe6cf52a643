"""A SQLite file that is only looked at: opened read-only, with no lock beside it, while others may write."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.store import records as r
from resurgam.store.sqlite.connection import BUSY_TIMEOUT, Session, check_ours, explain
from resurgam.store.sqlite.copies import Moving
from resurgam.store.sqlite.reading import Reading, log_of
from resurgam.store.sqlite.statements import migrations

T = TypeVar("T")


class SqliteInspector:
    """The read side of a file. SQLite itself refuses to write anything through it."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        try:
            self._connection = sqlite3.connect(
                f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=BUSY_TIMEOUT, isolation_level=None
            )
        except sqlite3.Error as error:
            raise explain(path, error) from error
        try:
            self._connection.row_factory = sqlite3.Row
            check_ours(self._connection, path)
            [version] = self._connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.Error as error:
            self._connection.close()
            raise explain(path, error) from error
        except StoreError:
            self._connection.close()
            raise
        known = len(migrations())
        if version != known:
            self._connection.close()
            remedy = "use a newer one" if version > known else "open it with a worker of this version first"
            raise StoreError(f"{path}: the file has schema version {version}, this Resurgam knows {known}; {remedy}")

    async def get(
        self, entity_id: str, run_id: str | None = None, *, execution_id: str | None = None
    ) -> r.Instance | None:
        """Return the newest execution of an entity, or the newest of a run, or the one with this id."""
        return self._look(lambda session: self._reading(session).get(entity_id, run_id, execution_id))

    async def list(self, query: r.Query) -> r.Page:
        """Return a page of instances, newest first."""
        return self._look(lambda session: self._reading(session).list(query))

    async def ended(self, query: r.EndedQuery) -> Sequence[r.Instance]:
        """Return ended executions, those first that ended first."""
        return self._look(lambda session: self._reading(session).ended(query))

    async def history(
        self, execution_id: str, last: int | None = None, *, forgotten: bool = False
    ) -> Sequence[events.Event]:
        """Return the log of an execution, or its last entries."""
        wanted = {"execution_id": execution_id, "last": -1 if last is None else last, "forgotten": forgotten}
        return log_of(self._look(lambda session: session.all("last_events", **wanted)), execution_id)

    async def open_work(self, execution_id: str) -> r.OpenWork | None:
        """Return what an execution has under way that its log does not show."""
        return self._look(lambda session: self._reading(session).open_work(execution_id))

    async def promise(self, to: r.Delivery) -> r.HeldPromise | None:
        """Return the promise that a delivery is addressed to."""
        return self._look(lambda session: self._reading(session).promise(to))

    async def copies(self, entity_id: str, run_id: str | None = None) -> Sequence[r.Copy]:
        """Return everything that is kept of an entity's executions, oldest first."""
        return self._look(lambda session: Moving(session).copies(entity_id, run_id))

    async def stats(self) -> r.Stats:
        """Return the counts."""
        return self._look(lambda session: self._reading(session).stats())

    async def reply(self, question_id: str) -> r.QueryResult | None:
        """Return what was answered to a question."""
        return self._look(lambda session: self._reading(session).reply(question_id))

    async def messages(self, topic: str, after: int | None = None) -> r.Messages:
        """Return what was published on a topic lately."""
        return self._look(lambda session: self._reading(session).messages(topic, after))

    async def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _reading(self, session: Session) -> Reading:
        return Reading(session, now=self._clock.now())

    def _look(self, look: Callable[[Session], T]) -> T:
        """Look at one consistent state."""
        try:
            self._connection.execute("BEGIN")
            try:
                return look(Session(self._connection))
            finally:
                self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise explain(self._path, error) from error
