"""Match the code's next intent with a scope's recorded commands: replayed, new, inserted, or diverged.

Rule 1: matchers decide and do not act. A matcher is a pure function; `Cursor.take` moves on.
Rule 2: matchers do not search. Each considers exactly one recorded command.

By *location*, that is the command at the cursor::

    recorded at the cursor       the code's intent          match
    -------------------------    -----------------------    ------------------------------------------
    nothing                      any                        New, after the last location of the scope
    lower version                any                        Inserted, between the last location and this one
    higher version               any                        Diverged
    same version, kind, name     the same                   Replayed
    another kind or name         any                        Diverged

A mark of a removed call (`step_removed`) has no effect of its own: once its note is gone from the code, matchers skip
the mark and consider the command after it. So a note can be deleted later.

By *sequence*, it is the next command of the intent's type (``Task``, ``Timer``, ...), anywhere in the scope; commands
left over at the end are orphans, not errors. *Keyed*, it is the command with the intent's key. Neither compares
versions.

Inputs are not compared: changing an argument of a completed step is a harmless edit, unless the workflow opts in to
comparing inputs (`differs`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final, TypeAlias, TypeGuard

import msgspec

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS, Intent
from resurgam.core.errors import CorruptHistory
from resurgam.core.location import BEFORE_FIRST, Coordinate, Location, between


class Replayed(msgspec.Struct, gc=False, frozen=True):
    """The history holds this command, after *marks* whose notes are gone from the code; nothing is written."""

    event: events.Command
    marks: int = 0


class New(msgspec.Struct, gc=False, frozen=True):
    """The history holds no command here; the new one gets this coordinate, after all others."""

    coordinate: Coordinate


class Inserted(msgspec.Struct, gc=False, frozen=True):
    """The recorded command has a lower version; the new one gets this coordinate before it."""

    coordinate: Coordinate


class Diverged(msgspec.Struct, gc=False, frozen=True):
    """The recorded command differs from the intent, in *field*."""

    event: events.Command
    field: str
    code_value: str
    history_value: str


class Ignored(msgspec.Struct, gc=False, frozen=True):
    """The recorded command is not the removed call; the note has no effect."""

    event: events.Command


class Peeked(msgspec.Struct, gc=False, frozen=True):
    """No version check is recorded here; the next recorded command decides the version."""

    version: int


Taken: TypeAlias = Replayed | New | Inserted
Match: TypeAlias = Replayed | New | Inserted | Diverged
Matcher: TypeAlias = "Callable[[Cursor, Intent], Match]"


class Cursor:
    """The position of a scope's code within the scope's recorded commands."""

    __slots__ = ("_ahead", "_by_key", "_by_type", "_commands", "_count", "_end", "_index", "_last")

    def __init__(self, commands: Sequence[events.Command]) -> None:
        self._commands = commands
        self._count = len(commands)
        self._index = 0
        self._ahead: dict[int, None] = {}
        self._last = BEFORE_FIRST
        self._end = commands[-1].location.last[0] if commands else 0
        # Built on first use: matching by location never needs them.
        self._by_type: dict[str, deque[events.Command]] | None = None
        self._by_key: dict[str | None, events.Command] | None = None

    @property
    def next(self) -> events.Command | None:
        """The first recorded command that is not matched yet."""
        return self._commands[self._index] if self._index < len(self._commands) else None

    @property
    def step(self) -> events.Command | None:
        """The first recorded command that is not matched yet and is not the mark of a removal."""
        if self._index == self._count:
            return None
        return next((left for left in self.rest if type(left) is not events.StepRemoved), None)

    @property
    def marks(self) -> Sequence[events.StepRemoved]:
        """The marks of removals before the next other recorded command."""
        return list(filter(_is_mark, takewhile(_is_mark, self._commands[self._index :])))

    @property
    def rest(self) -> Sequence[events.Command]:
        """The recorded commands that are not matched yet."""
        return [command for command in self._commands[self._index :] if command.seq not in self._ahead]

    @property
    def appended(self) -> Coordinate:
        """The coordinate after all others of the scope."""
        return (self._end + 1,)

    @property
    def inserted(self) -> Coordinate:
        """The coordinate between the last one taken and the next recorded one."""
        return between(self._last, self._commands[self._index].location.last)

    def next_of(self, kind: str) -> events.Command | None:
        """Return the first recorded command of a type that is not matched yet."""
        if self._by_type is None:
            self._by_type = {}
            for command in self.rest:
                self._by_type.setdefault(COMMANDS[type(command)].type, deque()).append(command)
        left = self._by_type.get(kind)
        while left and not self._is_left(left[0]):
            left.popleft()
        return left[0] if left else None

    def with_key(self, key: str | None) -> events.Command | None:
        """Return the recorded command with this key, if it is not matched yet."""
        if self._by_key is None:
            self._by_key = {command.key: command for command in self.rest}
        found = self._by_key.get(key)
        return found if found is not None and self._is_left(found) else None

    def take_obvious(
        self, kind: type[events.Command], name: str | None, version: int, *, in_order: bool
    ) -> events.Command | Coordinate | None:
        """Take what any matcher would, and return the recorded command or the coordinate of a new one.

        The fast path of most calls: where nothing recorded is left, every matcher says New; *in_order*, that is by
        location, the same call at the cursor is Replayed. None, and nothing is taken, if a matcher has to be asked.
        """
        index = self._index
        if index == self._count:
            self._end = end = self._end + 1
            self._last = coordinate = (end,)
            return coordinate
        found = self._commands[index]
        if in_order and type(found) is kind and found.name == name and found.version == version:
            self._last = found.location.coordinates[-1]
            self._index = index + 1
            return found
        return None

    def take(self, match: Taken) -> None:
        """Move past a match."""
        if isinstance(match, Replayed):
            self._last = match.event.location.last
            if match.marks:
                self._index += match.marks
            if match.event is not self.next:
                self._ahead[match.event.seq] = None
                return
            self._index += 1
            while self._ahead and (follower := self.next) is not None and follower.seq in self._ahead:
                del self._ahead[follower.seq]
                self._index += 1
        else:
            self._last = match.coordinate
            self._end = max(self._end, self._last[0])

    def _is_left(self, command: events.Command) -> bool:
        following = self.next
        return following is not None and command.location >= following.location and command.seq not in self._ahead


def by_location(cursor: Cursor, intent: Intent) -> Match:
    """Match with the command at the cursor, skipping marks whose notes are gone."""
    found, marks = cursor.next, 0
    if type(found) is events.StepRemoved:
        found, marks = cursor.step, len(cursor.marks)
    if found is None:
        return New(cursor.appended)
    if intent.version > found.version:
        return Inserted(cursor.inserted)
    if type(found) is intent.kind and intent.version < found.version:
        return Diverged(found, "version", str(intent.version), str(found.version))
    return _compared(found, intent, marks)


def by_sequence(cursor: Cursor, intent: Intent) -> Match:
    """Match with the next command of the same type; for a child, the kind is its workflow and the name its id."""
    found = cursor.next_of(intent.type)
    if found is None:
        return New(cursor.appended)
    if isinstance(found, events.ChildCommand):
        if intent.target not in (None, found.entity_id):
            return Diverged(found, "name", str(intent.target), found.entity_id)
        if intent.name != found.name:
            return Diverged(found, "kind", str(intent.name), found.name)
    return _compared(found, intent)


def by_key(cursor: Cursor, intent: Intent) -> Match:
    """Match with the command that has the same key."""
    found = cursor.with_key(intent.key)
    return New(cursor.appended) if found is None else _compared(found, intent)


def _compared(found: events.Command, intent: Intent, marks: int = 0) -> Match:
    if type(found) is not intent.kind:
        return Diverged(found, "type", str(intent.kind.__struct_config__.tag), found.type)
    if not _same_name(found, intent):
        return Diverged(found, "name", str(intent.name), str(found.name))
    return Replayed(found, marks)


MATCHERS: Final[dict[str, Matcher]] = {"location": by_location, "sequence": by_sequence, "keyed": by_key}
"""The matchers by name. The entry that opens a scope records which one it uses."""


def matcher(name: str) -> Matcher:
    """Return the matcher that a history was recorded with."""
    if name not in MATCHERS:
        raise CorruptHistory(f"the history was recorded under matching {name!r}; this version knows {list(MATCHERS)}")
    return MATCHERS[name]


def removal(cursor: Cursor, removed: Intent, *, by_type: bool) -> Replayed | New | Ignored:
    """Match a removed call: skip it if it is recorded, mark it if no command is left, ignore it otherwise."""
    if by_type:
        marks = [left for left in cursor.rest if type(left) is events.StepRemoved]
        candidates: list[events.Command | None] = [cursor.next_of(removed.type), *marks]
    else:
        marks = list(cursor.marks)
        candidates = [*marks, cursor.step]
    fitting = [found for found in candidates if found is not None and _is_removed(found, removed)]
    if fitting:
        # The mark of this removal comes before a later call of the same name.
        first = min(fitting, key=_location)
        return Replayed(first, 0 if by_type else sum(mark.location < first.location for mark in marks))
    left = cursor.step
    return New(cursor.appended) if left is None or by_type else Ignored(left)


def version_check(
    cursor: Cursor, name: str | None, *, by_type: bool, command: str | None = None
) -> Replayed | New | Peeked | Diverged:
    """Match a version check: answered by its own entry, by the next recorded command, or new.

    By type, *command* is the check's own id: checks answered by another command wrote nothing, but are counted.
    """
    found = cursor.next_of(COMMANDS[events.VersionChecked].type) if by_type else cursor.next
    if isinstance(found, events.VersionChecked) and command in (None, found.command):
        if name == found.name or None in (name, found.name):
            return Replayed(found)
        if by_type:
            return Diverged(found, "name", str(name), str(found.name))
    # By location, this check was inserted before a check of another name; that one decides the version as any step does.
    following = cursor.next
    if following is None:
        return New(cursor.appended)
    return Peeked(following.version if following.gate is None else following.gate)


def differs(found: events.Command, intent: Intent, digest: str | None) -> Diverged | None:
    """Compare fingerprints: the input, the names of a listener, the name of a branch."""
    if found.name != intent.name:
        return Diverged(found, "name", str(intent.name), str(found.name))
    if None not in (found.digest, digest) and found.digest != digest:
        field = "duration" if intent.kind is events.TimerStarted else "input"
        return Diverged(found, field, str(digest), str(found.digest))
    return None


def _is_mark(command: events.Command) -> TypeGuard[events.StepRemoved]:
    return type(command) is events.StepRemoved


def _location(command: events.Command) -> Location:
    return command.location


def _is_removed(found: events.Command, removed: Intent) -> bool:
    """Whether *found* is the removed call or the mark of its removal; without a name, any of its kind is."""
    tag = found.removed if isinstance(found, events.StepRemoved) else found.type
    kind = COMMANDS[removed.kind]
    any_name = removed.name is None and kind.compares_name != "always"
    return tag == kind.tag and (any_name or found.name == removed.name)


def _same_name(found: events.Command, intent: Intent) -> bool:
    """Compare names: of a branch only where both sides have one; of a listener never, its names may change."""
    if found.name == intent.name:
        return True
    compared = COMMANDS[intent.kind].compares_name
    return compared == "never" or (compared == "given" and None in (found.name, intent.name))
