"""Edits of workflow code, as values, that make the code fit a recorded history again.

An edit names a scope and a call in it. Calls are numbered from 0 over all kinds: ``call`` is the number of the call to
be changed, or before which a line is to be added; at the end of a scope it is the number of calls.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from resurgam.core.location import Location


class Insert(msgspec.Struct, frozen=True, kw_only=True):
    """Give a call a version, so that it is inserted before the recorded command: ``ctx.v(2).activity(...)``."""

    scope: Location
    call: int
    version: int
    verb: str
    name: str | None = None
    source: str = ""

    def __str__(self) -> str:
        written = f"ctx.v({self.version}).{self.verb}({self.name or ''}{', ' if self.name else ''}...)"
        return f"write {written}{_at(self.source)}"


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
