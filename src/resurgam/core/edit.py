"""Edits of a workflow's code that let a recorded history fit it again, as values.

An edit is about one strand of the code, and about the number of the call in it, counted from 0 over all kinds: ``call``
is the number that the call has which is to be changed, or before which something is to be put; at the end of a strand,
the number of its calls.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from resurgam.core.location import Location


class Insert(msgspec.Struct, frozen=True, kw_only=True):
    """Give a call a version, so that it is put before what the history goes on with: ``ctx.v(2).activity(...)``."""

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
    """Leave a note of a call that is gone, where it was: ``await ctx.removed.activity("old")``."""

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
    """Ask for the version again where the history holds the answer: ``await ctx.check_version(2)``."""

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
    """A ``ctx.removed`` in the code, and whether a history *holds* the call that was removed, not only the note's mark."""

    source: str
    verb: str
    name: str | None
    holds: bool = False

    def __str__(self) -> str:
        given = "" if self.name is None else repr(self.name)
        return f"ctx.removed.{self.verb}({given}){_at(self.source)}"


def merged(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Return edits with one for each line of code: of several versions the highest, which out-ranks what the others do."""
    found: dict[object, Edit] = {}
    for edit in edits:
        place = edit.source or (edit.scope, edit.call)
        kind = edit.kind if isinstance(edit, Remove) else edit.verb if isinstance(edit, Insert) else ""
        key = (type(edit), place, kind, edit.name)
        known = found.get(key)
        if known is None or (not isinstance(edit, Remove) and edit.version > getattr(known, "version", 0)):
            found[key] = edit
    return tuple(found.values())


def _at(source: str) -> str:
    return f" at {source}" if source else ""


def _before(source: str) -> str:
    return f" before {source}" if source else " at the end"
