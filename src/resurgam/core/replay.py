"""Given a scope's history and the code's next wish: replayed, new, or diverged here.

Rule 1: only the command at the cursor is looked at; nothing is searched for.
Rule 2: matching decides, it does not act. `match` is a pure function; `Cursor.take` moves on.

    history at the cursor        the code's wish          verdict
    -------------------------    ---------------------    -------------------------------------
    nothing                      any                      New, after the last place of the scope
    same kind, same name         that                     Replayed
    another kind or name         any                      Diverged

Inputs are not compared: changing an argument of a step that is done is a harmless edit.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from resurgam.core import event as events
from resurgam.core.command import Wish
from resurgam.core.errors import CorruptHistory
from resurgam.core.location import Coordinate, after


class Replayed(msgspec.Struct, gc=False, frozen=True):
    """The history holds this command; nothing is written."""

    event: events.Command


class New(msgspec.Struct, gc=False, frozen=True):
    """The history holds nothing here; the command takes this coordinate."""

    coordinate: Coordinate


class Diverged(msgspec.Struct, gc=False, frozen=True):
    """The history holds another command here than the code asks for."""

    event: events.Command
    field: str
    code_value: str
    history_value: str


Verdict: TypeAlias = Replayed | New | Diverged
Matcher: TypeAlias = "Callable[[Cursor, Wish], Verdict]"


class Cursor:
    """How far the code of one scope has come in the scope's recorded commands."""

    __slots__ = ("_commands", "_index", "_last")

    def __init__(self, commands: Sequence[events.Command]) -> None:
        self._commands = commands
        self._index = 0
        self._last: Coordinate | None = None

    @property
    def next(self) -> events.Command | None:
        """The recorded command that the code's next wish must fit, if there is one."""
        return self._commands[self._index] if self._index < len(self._commands) else None

    @property
    def last(self) -> Coordinate | None:
        """The coordinate of the newest command of the scope, recorded or taken."""
        return self._last

    @property
    def rest(self) -> Sequence[events.Command]:
        """The recorded commands that the code has not asked for yet."""
        return self._commands[self._index :]

    def take(self, verdict: Replayed | New) -> None:
        """Move past the place that the verdict gave."""
        if isinstance(verdict, Replayed):
            self._index += 1
            self._last = verdict.event.location.last
        else:
            self._last = verdict.coordinate


def match(cursor: Cursor, wish: Wish) -> Verdict:
    """Decide by location what the next wish of a scope is."""
    found = cursor.next
    if found is None:
        return New(after(cursor.last))
    if type(found) is not wish.kind:
        return Diverged(found, "type", str(wish.kind.__struct_config__.tag), found.type)
    if not _same_name(found, wish):
        return Diverged(found, "name", str(wish.name), str(found.name))
    return Replayed(found)


MATCHERS: Final[dict[str, Matcher]] = {"location": match}
"""The rules by which code is matched with a history; which one is recorded in its first entry."""


def matcher(name: str) -> Matcher:
    """Return the rule that a history was recorded under."""
    if name not in MATCHERS:
        raise CorruptHistory(f"the history was recorded under matching {name!r}; this version knows {list(MATCHERS)}")
    return MATCHERS[name]


def _same_name(found: events.Command, wish: Wish) -> bool:
    """Compare names; that of a branch only where both sides gave one."""
    if wish.kind is events.BranchStarted and None in (found.name, wish.name):
        return True
    return found.name == wish.name
