"""What all verbs that write have in common: a transaction at one moment, and what it changes for those who wait."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from resurgam.core import event as events
from resurgam.core.event import decode_event, encode_event
from resurgam.core.outcome import Entry
from resurgam.store.sqlite.session import Row, Session
from resurgam.store.watches import Place


@dataclass(slots=True)
class Changes:
    """What a transaction changed that somebody may wait for.

    *touched*: where that was, as `waiting` names it. *grown*: the executions whose log has grown. *work*: something may be claimable now. *moment*: the earliest
    moment at which something becomes so by itself.
    """

    touched: set[Place] = field(default_factory=set)
    grown: list[str] = field(default_factory=list)
    work: bool = False
    moment: int | None = None

    def due(self, moment: int | None) -> None:
        """Note that something becomes claimable at *moment*."""
        if moment is not None and (self.moment is None or moment < self.moment):
            self.moment = moment


_STEP_BACK: Final = 1_000_000
"""Microseconds by which a clock that was set back is followed; within them turns keep their order."""


class Turns:
    """Numbers those that become ready, by the moment in microseconds: what comes later has a higher number.

    The clock counts milliseconds, so what comes within one of them is counted beyond it. What is due at a moment, a
    thousand times that moment, comes before what becomes ready in it.
    """

    def __init__(self) -> None:
        self._last = 0

    def next(self, now: int) -> int:
        """Return the next number at the moment *now*."""
        first = now * 1000 + 1
        ahead = self._last - first
        self._last = self._last + 1 if 0 <= ahead < _STEP_BACK else first
        return self._last


class Writing:
    """Parts are written one at a time, at one moment, by one owner of leases."""

    def __init__(self, session: Session, *, now: int, lease: int, owner: str, turns: Turns) -> None:
        self._session = session
        self.now = self._now = now
        self._until = now + lease
        self._owner = owner
        self._turns = turns
        self._queues_with_work: set[str] | None = None
        self.changes = Changes()

    @property
    def session(self) -> Session:
        """The connection, for what belongs into the same transaction."""
        return self._session

    def turn(self) -> int:
        """Return the turn of what becomes ready now."""
        return self._turns.next(self._now)

    def _append(self, execution_id: str, entries: Sequence[events.Event]) -> None:
        rows = [{"execution_id": execution_id, "seq": e.seq, "body": encode_event(e).decode()} for e in entries]
        self._session.many("append_event", rows)

    def _put(self, execution_id: str, event: events.Event) -> None:
        [raised] = self._session.all("raise_wake", execution_id=execution_id, turn=self.turn())
        body = encode_event(event).decode()
        self._session.do("put_into_inbox", execution_id=execution_id, wake=raised["wake"], body=body)
        self.changes.touched.add(execution_id)
        self.changes.work = True

    def _dead_letter(self, execution_id: str, what: str, error: ValueError) -> None:
        """Hand an instance out no more because *what* of it cannot be decoded: its neighbours must go on."""
        self._session.do("bury_instance", execution_id=execution_id, dead=undecodable(what, error))
        self.changes.touched.add(execution_id)

    def _news(self, execution_id: str, since: int) -> tuple[Entry, ...] | None:
        """Return what came into an inbox after the counter had this value; None if it is a dead letter now."""
        rows = self._session.all("inbox_since", execution_id=execution_id, wake=since)
        try:
            return tuple([entry_of(row) for row in rows])
        except Undecodable as error:
            self._dead_letter(execution_id, error.what, error)
            return None


class Undecodable(ValueError):
    """An entry of an inbox that this version cannot decode, such as one that a newer version has written."""

    def __init__(self, what: str, error: ValueError) -> None:
        super().__init__(str(error))
        self.what = what


def entry_of(row: Row) -> Entry:
    """Return the entry of an inbox that a row holds."""
    try:
        return Entry(row["id"], decode_event(row["body"]))
    except ValueError as error:
        raise Undecodable(f"inbox entry {row['id']}", error) from error


def undecodable(what: str, error: ValueError) -> str:
    """Return why something is a dead letter that this version cannot decode."""
    reason = f"{what} cannot be decoded by this version of Resurgam: {error}"
    return f"{reason}; start workers of the version that wrote it, then retry the run"
