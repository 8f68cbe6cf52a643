"""The raw limit: write the rows of a recorded history again, commit by commit, from one thread without an engine.

Each commit of the engine is one here: update the instance, append its events, insert and delete activities. The schema,
the bytes of the events and the level of ``synchronous`` are those of the store.
"""

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from resurgam.core import event as events
from resurgam.core import flow_event
from resurgam.core.event import encode_event
from resurgam.core.outcome import ActivityRequest
from resurgam.store.sqlite.connection import Database

_MOVE = "UPDATE instances SET last_seq = ?, ready = 0 WHERE execution_id = ?"
_ANSWER = "DELETE FROM activities WHERE execution_id = ? AND ref = ?"
_INSTANCE = (
    "execution_id", "entity_id", "run_id", "tree_id", "first_run", "generation", "attempt", "kind", "name", "queue",
    "status", "created_at", "last_seq", "position",
)  # fmt: skip
_EVENT = ("execution_id", "seq", "body")
_ACTIVITY = ("execution_id", "ref", "queue", "request", "visible_at", "available_at")
_EMPTY: Mapping[str, str] = {"TEXT": "''", "BLOB": "x''", "INTEGER": "0", "REAL": "0.0"}
"""The least that a column of each type can hold, in SQL."""


def commits_of(history: Sequence[events.Event]) -> list[list[events.Event]]:
    """Split a history into commits: commands, and what a flow decides, go with the answer that led to them."""
    commits: list[list[events.Event]] = []
    before: events.Event | None = None
    for entry in history:
        next_answer = isinstance(before, events.Command) and not isinstance(entry, events.Command)
        next_answer = next_answer or isinstance(entry, flow_event.WorkSucceeded)
        if before is None or isinstance(before, events.WorkflowStarted) or next_answer:
            commits.append([])
        commits[-1].append(entry)
        before = entry
    return commits


class RawFile:
    """A file with the schema of the store, written to by plain statements."""

    def __init__(self, path: Path, level: str) -> None:
        Database(path, synchronous=level).close()
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {level}")
        self._create = self._insertion("instances", _INSTANCE)
        self._append = self._insertion("events", _EVENT)
        self._queue = self._insertion("activities", _ACTIVITY)
        self._instances = 0

    def write(self, history: Sequence[events.Event], instances: int = 1) -> list[float]:
        """Write a history for some new instances together; return the seconds of each of its commits."""
        ids = [f"raw-{self._instances + number:020d}" for number in range(instances)]
        prepared = [self._statements(commit, ids) for commit in commits_of(history)]
        self._instances += instances
        return [self._commit(statements) for statements in prepared]

    def counts(self) -> dict[str, int]:
        """Return the number of rows in each written table."""
        return {
            table: self._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 -- our own names
            for table in ("instances", "events", "activities")
        }

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _insertion(self, table: str, columns: Sequence[str]) -> str:
        """Return the statement that inserts some columns, and something empty into the others that need a value."""
        values = dict.fromkeys(columns, "?")
        for _, name, kind, required, default, _ in self._connection.execute(f"PRAGMA table_info({table})"):
            if required and default is None and name not in values:
                values[name] = _EMPTY[kind]
        return f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(values.values())})"  # noqa: S608 -- as above

    def _commit(self, statements: Iterable[tuple[str, Sequence[Sequence[object]]]]) -> float:
        begin = time.perf_counter()
        self._connection.execute("BEGIN IMMEDIATE")
        for statement, rows in statements:
            self._connection.executemany(statement, rows)
        self._connection.execute("COMMIT")
        return time.perf_counter() - begin

    def _statements(
        self, commit: Sequence[events.Event], ids: Sequence[str]
    ) -> list[tuple[str, Sequence[Sequence[object]]]]:
        """Return the statements of one commit, each with its rows."""
        bodies = [(entry.seq, encode_event(entry).decode()) for entry in commit]
        first = commit[0]
        if isinstance(first, events.WorkflowStarted):
            moved: Sequence[Sequence[object]] = [
                (one, one, one, one, one, 1, 1, first.kind, first.name, first.queue, "running", first.at, 1, position)
                for position, one in enumerate(ids, self._instances)
            ]
        else:
            moved = [(commit[-1].seq, one) for one in ids]
        answered = [entry.ref for entry in commit if isinstance(entry, events.ActivityCompleted)]
        scheduled = [_activity(entry) for entry in commit if isinstance(entry, events.ActivityScheduled)]
        statements: list[tuple[str, Sequence[Sequence[object]]]] = [
            (self._create if isinstance(first, events.WorkflowStarted) else _MOVE, moved),
            (self._append, [(one, *body) for one in ids for body in bodies]),
            (_ANSWER, [(one, ref) for one in ids for ref in answered]),
            (self._queue, [(one, *row) for one in ids for row in scheduled]),
        ]
        return [(statement, rows) for statement, rows in statements if rows]


def _activity(entry: events.ActivityScheduled) -> tuple[object, ...]:
    request = ActivityRequest(ref=entry.seq, name=entry.name, queue=entry.queue, input=entry.input, entity_id="0" * 26)
    return entry.seq, entry.queue, msgspec.json.encode(request).decode(), entry.at, entry.at
