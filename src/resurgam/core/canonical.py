"""Canonical JSON: one form per value, equal in every process.

msgspec writes sets in hash order, which differs between processes, and datetimes without the name of their zone.
`ValueScan` detects whether a value holds either, and refuses values that cannot be restored; `canonical` then builds
the tree to be encoded: sets in the order of their members' JSON, datetimes as ``{"$datetime": ...}``.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from resurgam.core.errors import SerializationError
from resurgam.core.objects import field_names, is_pydantic, is_root_model, parts_of

TYPE_KEY: Final = "$type"
"""The key that holds the class name of an object whose hint is a union of classes."""
DATETIME_KEY: Final = "$datetime"
DATETIME_KEY_BYTES: Final = b'"$datetime"'

_ATOMS: Final = frozenset({str, int, bool, type(None), bytes})
_MINUTE: Final = timedelta(minutes=1)


class ValueScan:
    """Detects data that plain JSON would lose. *untyped*: the hint does not tell where datetimes occur."""

    __slots__ = ("has_sets", "needs_marks", "untyped")

    def __init__(self, *, untyped: bool) -> None:
        self.untyped = untyped
        self.needs_marks = False
        self.has_sets = False

    def scan(self, value: object, where: str) -> None:
        """Walk a value; raise `SerializationError` with the path to a part that has no JSON form."""
        try:
            self._scan(value)
        except SerializationError as error:
            raise SerializationError(where + error.path, error.reason) from None

    def _scan(self, value: object) -> None:
        # One stack frame per level, so that a value may be nested as deeply as Python allows.
        if type(value) in _ATOMS:
            return
        if isinstance(value, float):
            if not math.isfinite(value):
                raise SerializationError("", f"{value} has no JSON form; use None, a string or Decimal")
            return
        if isinstance(value, datetime | time):
            self._scan_moment(value)
            return
        parts: Iterable[object]
        if isinstance(value, Mapping):
            _check_keys(value)
            parts = value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            self.has_sets = self.has_sets or (len(value) > 1 and isinstance(value, set | frozenset))
            parts = value
        else:
            parts = [part for _, part in parts_of(value)]
        index = 0
        try:
            for index, part in enumerate(parts):  # noqa: B007 -- it says which part was refused
                if type(part) not in _ATOMS:
                    self._scan(part)
        except SerializationError as error:
            step, _ = list(parts_of(value))[index]
            raise SerializationError(step + error.path, error.reason) from None

    def _scan_moment(self, value: datetime | time) -> None:
        if isinstance(value, time):
            _check_time(value)
            return
        if value.tzinfo is None:
            raise SerializationError("", f"{value.isoformat()} has no time zone; use aware datetimes")
        zoned = isinstance(value.tzinfo, ZoneInfo)
        if zoned:
            _check_zoned(value)
        self.needs_marks = self.needs_marks or self.untyped or zoned or _has_seconds(value)


def _check_zoned(value: datetime) -> None:
    if value.astimezone(UTC).astimezone(value.tzinfo) != value:  # within one zone, wall-clock times are compared
        raise SerializationError("", f"{value.isoformat()} does not exist in {value.tzinfo}: the clocks skip it")


def _check_time(value: time) -> None:
    if isinstance(value.tzinfo, ZoneInfo):
        raise SerializationError("", f"{value} has a named zone, which a time alone cannot keep")
    if _has_seconds(value):
        raise SerializationError("", f"{value} has an offset with seconds, which JSON cannot keep; use whole minutes")


def _has_seconds(value: datetime | time) -> bool:
    offset = value.utcoffset()
    return offset is not None and bool(offset % _MINUTE)


def _check_keys(value: Mapping[object, object]) -> None:
    if all(type(key) is str for key in value):
        return
    names: dict[str, object] = {}
    for key in value:
        if isinstance(key, datetime):
            _check_key(key)
        name = _key_name(key)
        if name in names:
            raise SerializationError(
                "", f"the keys {names[name]!r} and {key!r} are both written as {name!r}; use keys of one type"
            )
        names[name] = key


def _check_key(key: datetime) -> None:
    reason = None
    if key.tzinfo is None:
        reason = "has no time zone; use aware datetimes"
    elif isinstance(key.tzinfo, ZoneInfo):
        reason = "has a named zone, which a key cannot keep; use value.astimezone(UTC)"
    elif _has_seconds(key):
        reason = "has an offset with seconds, which a key cannot keep; use value.astimezone(UTC)"
    if reason is not None:
        raise SerializationError(f"[{key!r}]", f"{key.isoformat()} {reason}")


def _key_name(key: object) -> str:
    if type(key) is str:
        return key
    return str(key) if type(key) is int else next(iter(msgspec.to_builtins({key: None}, str_keys=True)))


def canonical(value: object, tree: object, named: frozenset[type] = frozenset()) -> object:
    """Return *tree*, the builtins form of *value*, with its sets sorted and the names of *named* classes added.

    Set members are sorted by their JSON. Only the value shows which lists were sets and which class an object has, so
    both are walked side by side. A part to which a custom serializer gave another shape is left unchanged.
    """
    if is_pydantic(type(value)):
        # Unions inside a model are pydantic's business.
        return _named_as(value, _canonical_model(value, tree), named)
    if isinstance(tree, list | tuple):
        parts = _items(value)
        if len(parts) != len(tree):
            return tree
        items = [canonical(part, item, named) for part, item in zip(parts, tree, strict=True)]
        return sorted(items, key=msgspec.json.encode) if isinstance(value, set | frozenset) else items
    if isinstance(tree, dict):
        tree.update({key: canonical(part, tree[key], named) for key, part in _named_parts(value, tree) if key in tree})
        return _named_as(value, tree, named)
    return tree


def _canonical_model(model: object, tree: object) -> object:
    if is_root_model(type(model)):  # written as its only value
        return canonical(model.root, tree)  # type: ignore[attr-defined]  # checked in the line above
    if isinstance(tree, dict):
        tree.update({key: canonical(part, tree[key]) for key, part in _named_parts(model, tree) if key in tree})
    return tree


def _named_as(value: object, tree: object, named: frozenset[type]) -> object:
    return {TYPE_KEY: type(value).__name__, **tree} if type(value) in named and isinstance(tree, dict) else tree


def _named_parts(value: object, tree: dict[str, object]) -> Iterable[tuple[str, object]]:
    if isinstance(value, Mapping):
        return zip(tree, value.values(), strict=False)
    return ((key, getattr(value, name, None)) for name, key in field_names(value))


def _items(value: object) -> Sequence[object]:
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(value)
    parts = [getattr(value, name) for name, _ in field_names(value)]
    if isinstance(value, msgspec.Struct):  # array-like; its tag, if any, comes first
        return parts if value.__struct_config__.tag is None else [None, *parts]
    return parts


def marked(tree: object) -> object:
    """Return *tree* with datetimes as ``{"$datetime": ...}``; a dict with only that key is wrapped in another."""
    if isinstance(tree, datetime):
        zone = f"[{tree.tzinfo.key}]" if isinstance(tree.tzinfo, ZoneInfo) else ""
        return {DATETIME_KEY: tree.isoformat() + zone}
    if isinstance(tree, dict):
        plain = {key: marked(item) for key, item in tree.items()}
        return {DATETIME_KEY: plain} if plain.keys() == {DATETIME_KEY} else plain
    if isinstance(tree, list | tuple):
        return [marked(item) for item in tree]
    return tree


def unmarked(tree: object) -> object:
    """Invert `marked`."""
    if isinstance(tree, dict):
        if tree.keys() == {DATETIME_KEY}:
            if isinstance(tree[DATETIME_KEY], dict):
                return {DATETIME_KEY: unmarked(tree[DATETIME_KEY][DATETIME_KEY])}
            text, _, zone = str(tree[DATETIME_KEY]).partition("[")
            moment = datetime.fromisoformat(text)
            # The offset selects one of two equal wall-clock hours, so convert rather than replace.
            return moment.astimezone(ZoneInfo(zone.rstrip("]"))) if zone else moment
        return {key: unmarked(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [unmarked(item) for item in tree]
    return tree
