"""Executions as lines of JSON, the form in which they leave one store and enter another.

An execution is a head line, every event of its log as it is on disk, then its inbox in order, then the activities that
are not answered::

    {"type":"instance","format":1,"events":3,"inbox":1,"activities":1,"instance":{"entity_id":"o-1", ...}}
    {"type":"workflow_started","seq":1, ...}
    {"type":"activity_scheduled","seq":2, ...}
    {"type":"timer_started","seq":3, ...}
    {"type":"inbox","event":{"type":"signal_received", ...}}
    {"type":"activity","pending":{"request":{"ref":2, ...},"visible_at":1700000000000}}

The head says how many lines of each kind follow, so that a file that was cut off is found out. No event has one of the
three types. Whatever is wrong is a `SerializationError` that names the line.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NoReturn, TypeVar

import msgspec

from resurgam.core import event as events
from resurgam.core.errors import CorruptHistory, SerializationError
from resurgam.core.event import decode_event
from resurgam.core.state import InstanceState
from resurgam.store import records as r

FORMAT: Final = 1
"""Raised when a reader of before would misread what is written now."""

_AGAIN: Final = "export it again, and give every line as it is"
_LARGEST: Final = 2**63 - 1
"""The largest number that every store can keep."""

_FIXED: Final = ("entity_id", "execution_id", "run_id", "tree_id", "generation", "attempt", "name")
"""What the head of an execution and its first event both say."""

L = TypeVar("L")


class Head(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="instance", forbid_unknown_fields=True):
    """The first line of an execution."""

    format: int
    events: int
    inbox: int
    activities: int
    instance: r.Instance


class InInbox(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="inbox", forbid_unknown_fields=True):
    """An event that is not told yet."""

    event: msgspec.Raw


class Wanted(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="activity", forbid_unknown_fields=True):
    """An activity that is not answered yet."""

    pending: r.Pending


class _Kind(msgspec.Struct, frozen=True):
    """As much of a line as says how to read the rest."""

    type: str
    format: object = None

    @property
    def kind(self) -> str:
        """Its own type, or ``event`` for all that an event can be."""
        return self.type if self.type in ("instance", "inbox", "activity") else "event"


def write(copies: Iterable[r.Copy]) -> list[str]:
    """Return the lines of executions, in their order."""
    return [line for copy in copies for line in _written(copy)]


def _written(copy: r.Copy) -> Iterator[str]:
    log, inbox, activities = copy.log, copy.inbox, copy.activities
    counts = {"events": len(log), "inbox": len(inbox), "activities": len(activities)}
    yield _encode(Head(format=FORMAT, **counts, instance=copy.instance))
    yield from (event.to_json() for event in log)
    yield from (_encode(InInbox(event=msgspec.Raw(event.to_json().encode()))) for event in inbox)
    yield from (_encode(Wanted(pending=pending)) for pending in activities)


def _encode(line: Head | InInbox | Wanted) -> str:
    return msgspec.json.encode(line).decode()


def read(lines: str | Iterable[str]) -> tuple[r.Copy, ...]:
    """Return the executions that the lines hold; at least one."""
    reader = _Reader(lines.split("\n") if isinstance(lines, str) else lines)
    found: dict[str, r.Copy] = {}
    while not found or reader.more:
        copy = reader.execution()
        if copy.instance.execution_id in found:
            reader.refuse(f"execution {copy.instance.execution_id} ends here for the second time; give it only once")
        found[copy.instance.execution_id] = copy
    return tuple(found.values())


def newest_history(lines: Iterable[str | events.Event]) -> list[events.Event]:
    """Return the log of the last execution among lines; those of one without a head are all of it."""
    found: list[events.Event] = []
    for line in lines:
        if isinstance(line, events.Event):
            found.append(line)
        elif line.strip():
            kind = _kind_of(line)
            if kind == "instance":
                found = []
            elif kind == "event":
                found.append(decode_event(line))
    return found


def _kind_of(line: str) -> str:
    """Return ``instance``, ``inbox`` or ``activity``; whatever else it may be is an event."""
    try:
        return msgspec.json.decode(line, type=_Kind).kind
    except msgspec.MsgspecError:
        return "event"


class _Reader:
    """Goes through lines once, and knows where it is."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = [(number, line) for number, line in enumerate(lines, 1) if not _blank(line)]
        self._at = 0

    @property
    def more(self) -> bool:
        """Whether there are lines that have not been read."""
        return self._at < len(self._lines)

    def refuse(self, reason: str) -> NoReturn:
        """Say what is wrong with the line that was read last."""
        number = self._lines[self._at - 1][0] if self._at else 1
        raise SerializationError(f"line {number}", reason)

    def execution(self) -> r.Copy:
        """Read an execution from its head to its last activity."""
        head = self._head()
        state = InstanceState()
        of = f"of execution {head.instance.execution_id}"
        log = [self._event(state, f"entry {n} of {head.events} {of}") for n in range(1, head.events + 1)]
        self._compare(head, state)
        inbox = [self._inbox(f"inbox line {n} of {head.inbox} {of}") for n in range(1, head.inbox + 1)]
        wanted: dict[int, r.Pending] = {}
        for n in range(1, head.activities + 1):
            pending = self._activity(state, f"activity {n} of {head.activities} {of}")
            if pending.request.ref in wanted:
                self.refuse(f"entry {pending.request.ref} has an activity already; {_AGAIN}")
            wanted[pending.request.ref] = pending
        instance = msgspec.structs.replace(head.instance, troubles=())
        return r.Copy(instance=instance, log=tuple(log), inbox=tuple(inbox), activities=tuple(wanted.values()))

    def _head(self) -> Head:
        line, kind = self._take("instance", "the head of an execution (type 'instance')")
        if kind.format != FORMAT:
            self.refuse(
                f"the line has format {kind.format!r}, this Resurgam reads {FORMAT}; export and import with one version"
            )
        head = self._decode(line, Head)
        self._check_numbers(head.instance)
        if head.events < 1 or min(head.inbox, head.activities) < 0:
            self.refuse(f"the line counts less than nothing, or no event; {_AGAIN}")
        return head

    def _event(self, state: InstanceState, what: str) -> events.Event:
        line, _ = self._take("event", what)
        event = self._decode_event(line)
        try:
            state.apply(event)
        except CorruptHistory as error:
            self.refuse(f"{error}; {_AGAIN}")
        return event

    def _compare(self, head: Head, state: InstanceState) -> None:
        """Refuse a head that is not that of this log."""
        instance, started = head.instance, state.started
        wrong = [name for name in _FIXED if getattr(instance, name) != getattr(started, name)]
        # A run may be parked without an entry, and be taken up again without one; its end always has one.
        ends = [status for status in (instance.status, state.status) if status is not None and status.terminal]
        if len(ends) == 1 or len(set(ends)) > 1 or instance.deactivated != state.deactivated:
            wrong.append("status")
        if instance.last_seq != state.last_seq:
            wrong.append("last_seq")
        if wrong:
            self.refuse(f"the log ends here, and its head says otherwise about {', '.join(wrong)}; {_AGAIN}")

    def _inbox(self, what: str) -> events.Event:
        line, _ = self._take("inbox", what)
        event = self._decode_event(bytes(self._decode(line, InInbox).event))
        if not isinstance(event, events.Answer | events.SignalReceived | events.CancelRequested):
            self.refuse(f"{event.type} is nothing that can wait in an inbox; {_AGAIN}")
        return event

    def _activity(self, state: InstanceState, what: str) -> r.Pending:
        line, _ = self._take("activity", what)
        pending = self._decode(line, Wanted).pending
        self._check_numbers(pending)
        if not isinstance(state.open.get(pending.request.ref), events.ActivityScheduled):
            self.refuse(f"entry {pending.request.ref} is no activity that waits for an answer; {_AGAIN}")
        return pending

    def _take(self, kind: str, what: str) -> tuple[str, _Kind]:
        """Return the next line, which must be of this kind."""
        if not self.more:
            self.refuse(f"the lines end here, but {what} is to follow; {_AGAIN}")
        line = self._lines[self._at][1]
        self._at += 1
        found = self._decode(line, _Kind)
        if found.kind != kind:
            self.refuse(f"expected {what}, found type {found.type!r}; {_AGAIN}")
        return line, found

    def _decode(self, line: str, kind: type[L]) -> L:
        try:
            return msgspec.json.decode(line, type=kind)
        except (msgspec.ValidationError, TypeError) as error:
            self.refuse(f"not a line of an export: {error}; {_AGAIN}")
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self.refuse(f"not JSON: {error}; {_AGAIN}")

    def _decode_event(self, text: str | bytes) -> events.Event:
        try:
            return decode_event(text)
        except (ValueError, RecursionError) as error:
            self.refuse(f"{error}; {_AGAIN}")

    def _check_numbers(self, record: r.Record) -> None:
        for name, value in msgspec.structs.asdict(record).items():
            if isinstance(value, int) and not 0 <= value <= _LARGEST:
                self.refuse(f"{name} is {value}; it is from 0 to {_LARGEST}")


def _blank(line: object) -> bool:
    return isinstance(line, str) and not line.strip()
