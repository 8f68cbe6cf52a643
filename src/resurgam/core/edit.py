"""Edits of workflow code, as values, that make the code fit a recorded history again.

An edit names a scope and a call in it. Calls are numbered from 0 over all kinds: ``call`` is the number of the call to
be changed, or before which a line is to be added; at the end of a scope it is the number of calls.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from resurgam.core.location import Location

_OF_FUNCTIONS: Final = frozenset({"activity", "branch", "map", "run", "workflow"})
"""The verbs that take a function, whose name the history has."""


class Insert(msgspec.Struct, frozen=True, kw_only=True):
    """Give a call a version, so that it is inserted before the recorded command: ``ctx.v(2).activity(...)``."""

    scope: Location
    call: int
    version: int
    verb: str
    name: str | None = None
    source: str = ""

    def __str__(self) -> str:
        return f"write ctx.v({self.version}).{self.verb}({self._arguments()}){_at(self.source)}"

    def _arguments(self) -> str:
        """Return the arguments as far as the call tells them; a function is given by its name, anything else as text."""
        if not self.name:
            return "..."
        if self.verb == "signal":  # the id of the target comes first
            return f"..., {self.name!r}"
        return f"{self.name if self.verb in _OF_FUNCTIONS and self.name.isidentifier() else repr(self.name)}, ..."


class Remove(msgspec.Struct, frozen=True, kw_only=True):
    """Add a note of a removed call where it was: ``await ctx.removed.activity("old")``."""

    scope: Location
    call: int
    kind: str
    verb: str
    name: str | None = None
    source: str = ""

    def __str__(self) -> str:
        given = "" if self.name is None else repr(self.name)
        return f"put back await ctx.removed.{self.verb}({given}){_before(self.source)}"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Restore a version check where the history holds its answer: ``await ctx.check_version(2)``."""

    scope: Location
    call: int
    version: int
    name: str | None = None
    source: str = ""

    def __str__(self) -> str:
        named = "" if self.name is None else f", {self.name!r}"
        return f"put back await ctx.check_version({self.version}{named}){_before(self.source)}"


Edit: TypeAlias = Insert | Remove | Check


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A ``ctx.removed`` in the code. *holds*: a history holds the removed call itself, not only the note's mark."""

    source: str
    verb: str
    name: str | None
    holds: bool = False

    def __str__(self) -> str:
        given = "" if self.name is None else repr(self.name)
        return f"ctx.removed.{self.verb}({given}){_at(self.source)}"


def merge_edits(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Reduce edits to one for each line of code; of several versions the highest, which implies the others."""
    found: dict[object, Edit] = {}
    for edit in edits:
        line = edit.source or (edit.scope, edit.call)
        kind = edit.kind if isinstance(edit, Remove) else edit.verb if isinstance(edit, Insert) else ""
        key = (type(edit), line, kind, edit.name)

        known = found.get(key)
        if known is None or (not isinstance(edit, Remove) and edit.version > getattr(known, "version", 0)):
            found[key] = edit
    return tuple(found.values())


def _at(source: str) -> str:
    return f" at {source}" if source else ""


def _before(source: str) -> str:
    return f" before {source}" if source else " at the end"
