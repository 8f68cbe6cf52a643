"""Locations of commands in a history: their order, and the location between two neighbours.

Rule 1: a location never changes once assigned.
Rule 2: between any two neighbours there is always another location.

A *coordinate* is a tuple of ordinates, printed ``1.0.2``; a *location* is a tuple of coordinates, printed
``{2, 11, 4.1}``; the root of a workflow is the empty location ``{}``. Order is plain tuple order on both levels,
a prefix sorting before its extensions::

    0.0.1 < 0.1 < 0.2 < 1 < 1.0.1 < 1.0.2 < 1.1 < 1.1.1 < 1.2 < 2 < 10
    {2} < {2, 1} < {2, 1, 1} < {2.1} < {3}

A coordinate never ends in 0: appended ones are a single ordinate (1, 2, 3, ...), inserted ones come from `between`,
and the bare ``0`` is only the left bound that allows inserting before the first.
"""

import functools
import re
from collections.abc import Iterator
from typing import Final, TypeAlias

Coordinate: TypeAlias = tuple[int, ...]

BEFORE_FIRST: Coordinate = (0,)
"""The left bound of every scope; never the coordinate of an event."""

_TEXT = re.compile(r"\{(?:\s*\d+(?:\.\d+)*\s*(?:,\s*\d+(?:\.\d+)*\s*)*)?\s*\}", re.ASCII)


@functools.total_ordering
class Location:
    """The coordinates of an event, from the root of the workflow down."""

    __slots__ = ("_text", "coordinates")

    coordinates: tuple[Coordinate, ...]

    def __init__(self, *coordinates: Coordinate) -> None:
        for coordinate in coordinates:
            _check(coordinate)
        self.coordinates = coordinates
        self._text: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Location":
        """Parse the text form of a location: ``Location.parse("{2, 1.1}")``."""
        if text[:1] == "{" and text[1:-1].isascii() and text[1:-1].isdecimal() and text[-1] == "}":
            coordinate = (int(text[1:-1]),)  # fast path: most locations are a single number
            return _shared.get(coordinate) or _top(coordinate)
        if not _TEXT.fullmatch(text.strip()):
            raise ValueError(f"a location must be text such as {{2, 1.1}}, got {text!r}")
        inner = text.strip()[1:-1].strip()
        parts = inner.split(",") if inner else []
        return cls(*(tuple(int(ordinate) for ordinate in part.strip().split(".")) for part in parts))

    @classmethod
    def from_key(cls, key: bytes) -> "Location":
        """Return the location with this `key`."""
        return cls(*_read_key(key))

    def child(self, coordinate: Coordinate) -> "Location":
        """Return the location of a direct child."""
        if not self.coordinates:
            shared = _shared.get(coordinate)
            if shared is not None:
                return shared
        if len(coordinate) != 1 or coordinate[0] <= 0:
            _check(coordinate)
        elif not self.coordinates:
            return _top(coordinate)
        child = _new(Location)  # skips __init__: the parent's coordinates are already checked
        child.coordinates = (*self.coordinates, coordinate)
        child._text = None
        return child

    @property
    def scope(self) -> "Location":
        """The scope that this location is a direct child of."""
        if not self.coordinates:
            raise ValueError("the root of a workflow has no enclosing scope")
        return Location(*self.coordinates[:-1])

    @property
    def last(self) -> Coordinate:
        """The coordinate of this location within its scope."""
        if not self.coordinates:
            raise ValueError("the root of a workflow has no coordinate")
        return self.coordinates[-1]

    def contains(self, other: "Location") -> bool:
        """Whether *other* is this location or lies anywhere below it."""
        return other.coordinates[: len(self.coordinates)] == self.coordinates

    def key(self) -> bytes:
        """Return bytes that sort as locations do; a subtree is exactly the range of keys with this prefix.

        Each ordinate is its length in one byte followed by its big-endian bytes; a 0 byte terminates each coordinate. A
        length is never 0, so the terminator sorts before any further ordinate, as a prefix must.
        """
        parts = bytearray()
        for coordinate in self.coordinates:
            for ordinate in coordinate:
                raw = ordinate.to_bytes(max(1, (ordinate.bit_length() + 7) // 8), "big")
                parts += bytes((len(raw),)) + raw
            parts.append(0)
        return bytes(parts)

    def __str__(self) -> str:
        if self._text is None:
            inner = ", ".join(".".join(map(str, coordinate)) for coordinate in self.coordinates)
            self._text = "{" + inner + "}"
        return self._text

    def __repr__(self) -> str:
        return f"Location.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self.coordinates == other.coordinates if isinstance(other, Location) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self.coordinates < other.coordinates if isinstance(other, Location) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.coordinates)


ROOT = Location()
_new: Final = Location.__new__

_SHARED: Final = 10_000
"""Locations ``{n}`` up to this number are made once: they are the same in every history."""

_shared: Final[dict[Coordinate, Location]] = {}
_shared_by_text: Final[dict[str, Location]] = {}
shared_location: Final = _shared_by_text.get
"""Return the shared location with this text, if there is one already: a look-up, where parsing is much more."""


def _top(coordinate: Coordinate) -> Location:
    """Make the location in the root of a coordinate with one ordinate, which must not be negative."""
    # Without `__init__` and `__str__`: there is nothing to check, and the text is known.
    location, text = _new(Location), f"{{{coordinate[0]}}}"
    location.coordinates, location._text = (coordinate,), text
    if coordinate[0] <= _SHARED:
        _shared[coordinate] = _shared_by_text[text] = location
    return location


def text_of(value: object) -> str:
    """Return the text of a location, for an encoder that asks for every value which it cannot write itself."""
    if type(value) is not Location:
        raise TypeError(f"event fields must be JSON values or locations, got {type(value).__name__}")
    return value._text or str(value)


def between(left: Coordinate, right: Coordinate) -> Coordinate:
    """Return the coordinate of a step inserted between two neighbours: strictly between them and never ending in 0.

    Where *right* extends *left* by zeros, the result needs one zero more: comparing lengths alone would give *right*
    itself, and the new step would overwrite the one it was inserted before.
    """
    if not left < right:
        raise ValueError(f"left must come before right, got {left} and {right}")
    if right[: len(left)] == left:
        rest = right[len(left) :]
        zeros = next(i for i, ordinate in enumerate(rest) if ordinate)
        return (*left, *(0,) * (zeros + 1), 1)
    if len(left) > len(right):
        return (*left[:-1], left[-1] + 1)
    return (*left, 1)


def after(last: Coordinate | None) -> Coordinate:
    """Return the coordinate of a step appended to a scope that ends with *last*."""
    return (1,) if last is None else (last[0] + 1,)


def _check(coordinate: Coordinate) -> None:
    if not coordinate or min(coordinate) < 0:
        raise ValueError(f"a coordinate must be one or more integers from 0, got {coordinate!r}")
    if coordinate[-1] == 0 and coordinate != BEFORE_FIRST:
        raise ValueError(f"a coordinate must not end in 0, got {coordinate!r}")


def _read_key(key: bytes) -> Iterator[Coordinate]:
    position = 0
    coordinate: list[int] = []
    while position < len(key):
        length = key[position]
        position += 1
        if length == 0:
            yield tuple(coordinate)
            coordinate = []
        else:
            coordinate.append(int.from_bytes(key[position : position + length], "big"))
            position += length
    if coordinate or position > len(key):
        raise ValueError(f"a location key must consist of terminated coordinates, got {key!r}")
