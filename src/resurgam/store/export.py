"""Executions as lines of JSON, the form in which they leave one store and enter another.

An execution is a head line, every event of its log as it is on disk, then its inbox in order, then the activities that
are not answered, then its promises. An entry that is forgotten stands where it stood, with the location that it is kept
under::

    {"type":"instance","format":1,"events":4,"inbox":1,"activities":1,"instance":{"entity_id":"o-1", ...}}
    {"type":"workflow_started","seq":1, ...}
    {"type":"activity_scheduled","seq":2, ...}
    {"type":"forgotten","location":"{2, 5}","event":{"type":"timer_started","seq":3, ...}}
    {"type":"timer_started","seq":4, ...}
    {"type":"inbox","event":{"type":"signal_received", ...}}
    {"type":"activity","pending":{"request":{"ref":2, ...},"visible_at":1700000000000}}
    {"type":"promise","promise":{"promise_id":"p-1","name":"approval","settled":false,"schema":null}}
    {"type":"answer","event":{"type":"child_completed", ...}}

The head says how many lines of each kind follow (of promises, if there are any), so that a truncated file is
detected, and whether the execution is paused. No event has one of the six types. In an archive file a header goes before
the executions, and each ends with the event that says that it is archived; it has the digest of the lines before. Entries that are kept no longer leave
gaps in the log; whether what is there can be replayed without them, its `Outline` says. Whatever is wrong is a
`SerializationError` that names the line.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, NoReturn, TypeVar

import msgspec

from resurgam.core import event as events
from resurgam.core import flow_event
from resurgam.core.errors import CorruptHistory, SerializationError
from resurgam.core.event import decode_event
from resurgam.core.location import Location
from resurgam.core.outcome import Forgotten
from resurgam.core.outline import Outline, awaits_activity, outline_of
from resurgam.core.state import InstanceState, Status
from resurgam.store import records as r
from resurgam.store.encoding import decode, encode

FORMAT: Final = 1
"""The version of the format, raised when an older reader would misread it."""

HEADER: Final = "archive"
"""The type of the first line of an archive file, which says what the file holds."""

_AGAIN: Final = "export it again, and give every line as it is"
_LARGEST: Final = 2**63 - 1
"""The largest number that every store can keep."""

_WIDEST: Final = 60
"""Characters of a wrong location that an error repeats."""

_FIXED: Final = ("entity_id", "execution_id", "run_id", "tree_id", "generation", "attempt", "kind", "name", "parent")
"""Fields that the head of an execution and its first event must agree on."""

_TOLD: Final = (
    *(events.Answer, events.SignalReceived, events.UpdateAccepted, events.CancelRequested),
    *(events.WorkflowBegun, events.WorkflowPaused, events.WorkflowResumed),
    *(flow_event.Registration, flow_event.WorkStarted),
)
"""Events that an inbox can hold."""

_ARCHIVED: Final = tuple(str(kind.__struct_config__.tag) for kind in (events.WorkflowArchived, flow_event.FlowArchived))
_NOTHING: Final = msgspec.Raw()

L = TypeVar("L")


class Head(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="instance",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """The first line of an execution."""

    format: int
    events: int
    inbox: int
    activities: int
    promises: int = 0
    answer: bool = False
    paused: r.Pause | None = None
    instance: r.Instance


class ForgottenEvent(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="forgotten", forbid_unknown_fields=True
):
    """A forgotten entry of the log."""

    location: str
    event: msgspec.Raw


class InInbox(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="inbox", forbid_unknown_fields=True):
    """An unread event of the inbox."""

    event: msgspec.Raw


class Wanted(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="activity", forbid_unknown_fields=True):
    """An activity without an answer."""

    pending: r.Pending
    # Beside it and not in it, as long as msgspec cannot read a value that may be missing or anything.
    details: msgspec.Raw = _NOTHING


class Promised(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="promise", forbid_unknown_fields=True):
    """A promise, open or settled."""

    promise: r.Promise


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="answer", forbid_unknown_fields=True):
    """The answer that a closed child has sent to its parent."""

    event: msgspec.Raw


class _Kind(msgspec.Struct, frozen=True):
    """The fields of a line that say how to decode it."""

    type: str
    format: object = None
    active: object = True

    @property
    def kind(self) -> str:
        """The type of the line; ``event`` for every type of event."""
        if self.active is False:  # so `resurgam history --forgotten --json` marks an event that is forgotten
            return "forgotten"
        return (
            self.type
            if self.type in ("instance", "forgotten", "inbox", "activity", "promise", "answer", HEADER)
            else "event"
        )


def write(copies: Iterable[r.Copy]) -> list[str]:
    """Return the lines of executions, in their order."""
    return [line for copy in copies for line in _written(copy)]


def _written(copy: r.Copy) -> Iterator[str]:
    log, inbox, activities = copy.log, copy.inbox, copy.activities
    counts = {"events": len(log), "inbox": len(inbox), "activities": len(activities), "promises": len(copy.promises)}
    answered = copy.answer is not None
    yield encode(Head(format=FORMAT, **counts, answer=answered, paused=copy.paused, instance=copy.instance))
    locations = {entry.seq: entry.location for entry in copy.forgotten}
    yield from (_entry(event, locations.get(event.seq)) for event in log)
    yield from (encode(InInbox(event=msgspec.Raw(event.to_json().encode()))) for event in inbox)
    yield from (_wanted(pending) for pending in activities)
    yield from (encode(Promised(promise=promise)) for promise in copy.promises)
    if copy.answer is not None:
        yield encode(Answer(event=msgspec.Raw(copy.answer.to_json().encode())))


def _entry(event: events.Event, location: Location | None) -> str:
    if location is None:
        return event.to_json()
    return encode(ForgottenEvent(location=str(location), event=msgspec.Raw(event.to_json().encode())))


def _wanted(pending: r.Pending) -> str:
    line = {"type": "activity", "pending": msgspec.structs.replace(pending, details=None)}
    return encode(line if pending.details is None else {**line, "details": pending.details})


def digest_of(lines: Sequence[str]) -> str:
    """Return the digest of the lines of an execution, as an archive keeps it."""
    return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def read(lines: str | Iterable[str]) -> tuple[r.Copy, ...]:
    """Return the executions that the lines hold; at least one."""
    reader = _Reader(lines.split("\n") if isinstance(lines, str) else lines)
    found: dict[str, r.Copy] = {}
    while not found or reader.more:
        reader.skip_header()
        copy = reader.archived()
        if copy.instance.execution_id in found:
            reader.refuse(f"execution {copy.instance.execution_id} ends here for the second time; give it only once")
        found[copy.instance.execution_id] = copy
    return tuple(found.values())


def newest_history(lines: Iterable[str | events.Event]) -> list[events.Event]:
    """Return the active log of the last execution among lines; lines without a head are one log."""
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
    """Return the kind of a line; ``event`` if it is none of the others."""
    try:
        return msgspec.json.decode(line, type=_Kind).kind
    except msgspec.MsgspecError:
        return "event"


class _Reader:
    """Read lines once, in order, and name the line in errors."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = [(number, line) for number, line in enumerate(lines, 1) if not _blank(line)]
        self._at = 0

    @property
    def more(self) -> bool:
        """Whether there are lines that have not been read."""
        return self._at < len(self._lines)

    def refuse(self, reason: str) -> NoReturn:
        """Raise `SerializationError` about the line that was read last."""
        number = self._lines[self._at - 1][0] if self._at else 1
        raise SerializationError(f"line {number}", reason)

    def skip_header(self) -> None:
        """Skip the first line of an archive file."""
        if self._next_type() == HEADER:
            self._at += 1

    def archived(self) -> r.Copy:
        """Read one execution, and the last line of it if it comes from an archive."""
        start = self._at
        copy = self.execution()
        body = [line for _, line in self._lines[start : self._at]]
        if self._next_type() in _ARCHIVED:
            end = self._decode_event(self._lines[self._at][1])
            self._at += 1
            if not isinstance(end, events.Archived) or end.digest != digest_of(body):
                self.refuse(f"the digest does not fit the lines before it; {_AGAIN}")
        return copy

    def _next_type(self) -> str | None:
        """Return the type of the next line; None if there is none, or it cannot be read."""
        if not self.more:
            return None
        try:
            return msgspec.json.decode(self._lines[self._at][1], type=_Kind).type
        except msgspec.MsgspecError:
            return None

    def execution(self) -> r.Copy:
        """Read one execution, from its head on."""
        head = self._head()
        of = f"of execution {head.instance.execution_id}"
        log, forgotten, state = self._log(head, of)
        if log:
            self._compare(head, state, log[-1].seq)
        inbox = [self._inbox(f"inbox line {n} of {head.inbox} {of}") for n in range(1, head.inbox + 1)]
        wanted: dict[int, r.Pending] = {}
        for n in range(1, head.activities + 1):
            pending = self._activity(state, f"activity {n} of {head.activities} {of}")
            if pending.request.ref in wanted:
                self.refuse(f"entry {pending.request.ref} has an activity already; {_AGAIN}")
            wanted[pending.request.ref] = pending
        promises = self._promises(head, of)
        answer = self._answer(head, of)
        return r.Copy(
            instance=msgspec.structs.replace(head.instance, activity_dead_letters=()),
            log=tuple(log),
            forgotten=tuple(forgotten),
            inbox=tuple(inbox),
            activities=tuple(wanted.values()),
            promises=promises,
            answer=answer,
            paused=head.paused,
        )

    def _head(self) -> Head:
        line, kind = self._take(("instance",), "the head of an execution (type 'instance')")
        if kind.format != FORMAT:
            self.refuse(
                f"the line has format {kind.format!r}, this Resurgam reads {FORMAT}; export and import with one version"
            )
        head = self._decode(line, Head)
        self._check_numbers(head.instance)
        # Only the row of an execution whose log is in an archive has no event.
        least = 1 if head.instance.archived is None else 0
        if head.events < least or min(head.inbox, head.activities, head.promises) < 0:
            self.refuse(f"counts must not be negative, and there must be an event; {_AGAIN}")
        return head

    def _log(self, head: Head, of: str) -> tuple[list[events.Event], list[Forgotten], Outline]:
        """Return the entries, those of them that are forgotten, and the state that the others fold to."""
        log: list[events.Event] = []
        forgotten: list[Forgotten] = []
        state = outline_of(head.instance.kind)
        missing = 0
        for n in range(1, head.events + 1):
            event, location = self._event(f"entry {n} of {head.events} {of}")
            before = log[-1].seq if log else 0
            if event.seq <= before:
                self.refuse(f"entry {event.seq} follows entry {before}; {_AGAIN}")
            log.append(event)
            if location is None:
                missing += state.skip_to(event.seq)
                self._apply(state, event)
            else:
                forgotten.append(Forgotten(event.seq, location))
        gone = state.forgotten if isinstance(state, InstanceState) else len(forgotten)
        # The catalog does not say how much of its old health it has forgotten for good.
        if missing != gone and not (head.instance.kind == flow_event.CATALOG and missing > gone):
            self.refuse(f"{missing} entries are missing in the log, and {gone} are forgotten; {_AGAIN}")
        return log, forgotten, state

    def _event(self, what: str) -> tuple[events.Event, Location | None]:
        """Return an entry of the log, and the location that it is kept under if it is forgotten."""
        line, found = self._take(("event", "forgotten"), what)
        if found.kind == "event":
            return self._decode_event(line), None
        kept = self._decode(line, ForgottenEvent)
        try:
            location = Location.parse(kept.location)
            location.key()  # which an ordinate may be too large for
        except ValueError:
            self.refuse(f"{kept.location[:_WIDEST]!r} is not a location that an entry can be kept under; {_AGAIN}")
        return self._decode_event(bytes(kept.event)), location

    def _apply(self, state: Outline, event: events.Event) -> None:
        try:
            state.apply(event)
        except CorruptHistory as error:
            self.refuse(f"{error}; {_AGAIN}")

    def _compare(self, head: Head, state: Outline, last_seq: int) -> None:
        """Refuse a head that contradicts its log."""
        instance, started = head.instance, state.started
        # Of a log that is forgotten from its first entry on nothing is known.
        wrong = [name for name in _FIXED if getattr(instance, name) != getattr(started, name, None)]
        # A run may be parked without an entry, and be taken up again without one; its end always has one.
        ends = [status for status in (instance.status, state.status) if status is not None and status.terminal]
        if len(ends) == 1 or len(set(ends)) > 1 or instance.deactivated != state.deactivated:
            wrong.append("status")
        # What was put off may have been begun without an entry, but not the other way round; a pause is no status.
        late = instance.status is Status.SCHEDULED and state.status is not Status.SCHEDULED
        if late or instance.status is Status.PAUSED:
            wrong.append("status")
        if head.paused is not None and instance.status.terminal:
            wrong.append("paused")
        if instance.status.terminal != (instance.closed_at is not None):
            wrong.append("closed_at")
        if instance.last_seq != last_seq:
            wrong.append("last_seq")
        if wrong:
            self.refuse(f"the log ends here, and its head says otherwise about {', '.join(wrong)}; {_AGAIN}")

    def _inbox(self, what: str) -> events.Event:
        line, _ = self._take(("inbox",), what)
        event = self._decode_event(bytes(self._decode(line, InInbox).event))
        if not isinstance(event, _TOLD):
            self.refuse(f"{event.type} is nothing that can wait in an inbox; {_AGAIN}")
        return event

    def _activity(self, state: Outline, what: str) -> r.Pending:
        line, _ = self._take(("activity",), what)
        wanted = self._decode(line, Wanted)
        details = wanted.details if bytes(wanted.details) else None
        pending = msgspec.structs.replace(wanted.pending, details=details)
        self._check_numbers(pending)
        if not awaits_activity(state, pending.request.ref):
            self.refuse(f"entry {pending.request.ref} is no activity that waits for an answer; {_AGAIN}")
        return pending

    def _promises(self, head: Head, of: str) -> tuple[r.Promise, ...]:
        found: dict[str, r.Promise] = {}
        for n in range(1, head.promises + 1):
            line, _ = self._take(("promise",), f"promise {n} of {head.promises} {of}")
            promise = self._decode(line, Promised).promise
            if promise.promise_id in found:
                self.refuse(f"promise {promise.promise_id} occurs twice; {_AGAIN}")
            found[promise.promise_id] = promise
        return tuple(found.values())

    def _answer(self, head: Head, of: str) -> events.Event | None:
        if not head.answer:
            return None
        line, _ = self._take(("answer",), f"the answer {of}")
        event = self._decode_event(bytes(self._decode(line, Answer).event))
        if not isinstance(event, events.ChildAnswer):
            self.refuse(f"{event.type} must be the answer of a child; {_AGAIN}")
        return event

    def _take(self, kinds: tuple[str, ...], what: str) -> tuple[str, _Kind]:
        """Return the next line, which must be of one of these kinds."""
        if not self.more:
            self.refuse(f"the lines end here, but {what} is to follow; {_AGAIN}")
        line = self._lines[self._at][1]
        self._at += 1
        found = self._decode(line, _Kind)
        if found.kind not in kinds:
            self.refuse(f"expected {what}, found type {found.type!r}; {_AGAIN}")
        return line, found

    def _decode(self, line: str, kind: type[L]) -> L:
        try:
            return decode(line, kind)
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
