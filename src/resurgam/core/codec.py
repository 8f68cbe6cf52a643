"""Values to the JSON that a history holds, and back, by type hint.

Rule 1: what is read is what was written. Every value that crosses a durable boundary is decoded from its recorded
bytes, live as on replay, so a hot run and a replayed one can never see different things.
Rule 2: a value that cannot be written fails where it is passed, with the path to the field at fault.

msgspec does the work. Four things it would lose or let through are handled here:

- the zone of an aware datetime: if any datetime of a value has a named zone, or may stand where the hint says Any, all
  of that value's datetimes are written as ``{"$datetime": "2026-03-29T03:00:00+02:00[Europe/Berlin]"}``; otherwise
  they are plain ISO strings. A dict of the user's own with that one key is wrapped in another;
- naive datetimes, which mean a different moment on another machine, are refused, and so is what has a named zone but
  cannot keep it: a time, or a datetime that is a key;
- NaN and infinity, which msgspec writes as null, are refused;
- pydantic models, paths, IP addresses, complex numbers, fractions and zones go through small hooks.
"""

import functools
import ipaddress
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, time
from fractions import Fraction
from typing import Final, Generic, TypeAlias, TypeVar, cast
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Raw, inspect

from resurgam.core.errors import PayloadTooLarge, SerializationError

T = TypeVar("T")
TypeForm: TypeAlias = object
"""Anything that may stand in an annotation: ``int``, ``list[Order]``, ``int | None``."""

MAX_PAYLOAD: Final = 2 * 1024 * 1024
"""Bytes that one value may have as JSON unless the engine is told otherwise: a history is read whole, again and again."""

_MARK = "$datetime"
_MARK_BYTES = b'"$datetime"'

_HOOKS: dict[type, Callable[[object], object]] = {
    pathlib.PurePath: str,
    ipaddress.IPv4Address: str,
    ipaddress.IPv6Address: str,
    ipaddress.IPv4Network: str,
    ipaddress.IPv6Network: str,
    ZoneInfo: str,
    Fraction: str,
    complex: str,
}
"""Types beside msgspec's own that are written as a string and read by calling the type with it."""


class Codec(Generic[T]):
    """Writes and reads the values of one type hint. Build it once, at registration: a bad hint fails here."""

    __slots__ = ("_anything", "_careful", "_decoder", "_hint")

    def __init__(self, hint: TypeForm) -> None:
        self._hint = hint
        try:
            self._decoder = msgspec.json.Decoder(hint, dec_hook=_read_hook)
            parts = list(_parts(inspect.type_info(hint)))
        except (TypeError, NotImplementedError) as error:
            raise SerializationError(_show(hint), f"{error}. {_REMEDY}") from error
        customs = [part for part in parts if isinstance(part, inspect.CustomType)]
        for custom in customs:
            if not _is_hooked(custom.cls):
                raise SerializationError(
                    _show(hint), f"values of type {_show(custom.cls)} cannot be written. {_REMEDY}"
                )
        kinds = {type(part) for part in parts}
        self._anything = inspect.AnyType in kinds or any(custom.cls is object for custom in customs)
        self._careful = self._anything or bool(customs or kinds & {inspect.DateTimeType, inspect.TimeType})

    def encode(self, value: object, where: str = "value") -> Raw:
        """Return the JSON of *value*; on failure say which field of *where* is at fault."""
        try:
            marked = self._careful and _must_be_marked(value, where, anything=self._anything)
            data = _encoder.encode(value)
            if marked or _MARK_BYTES in data:
                data = _encoder.encode(
                    _mark(msgspec.to_builtins(value, builtin_types=(datetime,), str_keys=True, enc_hook=_write_hook))
                )
        except SerializationError:
            raise
        except Exception as error:  # properties of the user's own classes may raise anything
            raise _locate(value, where, error) from error
        if b"null" in data:
            _refuse_nan(value, where)
        return Raw(data)

    def decode(self, data: bytes | Raw, where: str = "value") -> T:
        """Return the value that *data* holds, checked against the type hint."""
        try:
            if _MARK_BYTES in bytes(data):
                return cast("T", self._convert(_revive(msgspec.json.decode(data))))
            value: T = self._decoder.decode(data)
        except Exception as error:  # a __post_init__ or a validator of the user's may raise anything
            path, reason = _explain(str(error) or type(error).__name__, where)
            raise SerializationError(path, reason) from error
        return value

    def _convert(self, tree: object) -> object:
        return msgspec.convert(tree, self._hint, builtin_types=(datetime,), str_keys=True, dec_hook=_read_hook)

    def check(self, value: object, where: str = "value") -> Raw:
        """Encode *value* and make sure that it can be read back as the type hint says."""
        data = self.encode(value, where)
        self.decode(data, where)
        return data


_REMEDY = (
    "Use dataclasses, msgspec structs, pydantic models, enums or plain JSON types; "
    "for a union of classes use tagged msgspec structs (`class A(Struct, tag=True)`)"
)


@functools.lru_cache(maxsize=1024)
def _cached(hint: TypeForm) -> Codec[object]:
    return Codec(hint)


def codec_for(hint: TypeForm) -> Codec[object]:
    """Return the codec of a type hint, built once per hint where the hint can be remembered."""
    try:
        return _cached(hint)
    except TypeError:  # an unhashable hint, such as Annotated with a list in it
        return Codec(hint)


def tree_of(data: bytes | Raw) -> tuple[object, bool]:
    """Return what *data* holds without a type hint, and whether its datetimes are marked; if so they are datetimes here."""
    tree = msgspec.json.decode(data)
    return (_revive(tree), True) if _MARK_BYTES in bytes(data) else (tree, False)


def within(limit: int, written: Raw, where: str) -> Raw:
    """Return what is to be recorded as it is; `PayloadTooLarge` if it has more bytes than *limit*."""
    size = len(bytes(written))
    if size > limit:
        raise PayloadTooLarge(where, size, limit)
    return written


def _show(hint: TypeForm) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)


def _parts(info: inspect.Type, seen: set[type] | None = None) -> Iterator[inspect.Type]:
    """Walk a type and everything inside it once."""
    seen = set() if seen is None else seen
    yield info
    if isinstance(info, inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType):
        if info.cls in seen:
            return
        seen.add(info.cls)
        for field in info.fields:
            yield from _parts(field.type, seen)
        return
    for name in ("types", "item_types", "item_type", "key_type", "value_type", "type"):
        inner = getattr(info, name, None)
        for part in inner if isinstance(inner, tuple) else (inner,):
            if isinstance(part, inspect.Type):
                yield from _parts(part, seen)


def _is_pydantic(kind: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)


def _is_hooked(kind: type) -> bool:
    # `object` as a hint says no more than Any does.
    return isinstance(kind, type) and (
        kind is object or any(issubclass(kind, known) for known in _HOOKS) or _is_pydantic(kind)
    )


def _write_hook(value: object) -> object:
    if _is_pydantic(type(value)):
        return value.model_dump(mode="json")  # type: ignore[attr-defined]  # checked in the line above
    for known, write in _HOOKS.items():
        if isinstance(value, known):
            return write(value)
    raise NotImplementedError(f"values of type {type(value).__qualname__} cannot be written")


def _read_hook(kind: type, value: object) -> object:
    if kind is object:
        return value
    if _is_pydantic(kind):
        return kind.model_validate(value)  # type: ignore[attr-defined]  # checked in the line above
    if isinstance(value, str):
        return kind(value)
    raise ValueError(f"expected the text of a {kind.__qualname__}, got {value!r}")


_encoder = msgspec.json.Encoder(enc_hook=_write_hook)


def _must_be_marked(value: object, where: str, *, anything: bool) -> bool:
    """Whether a value has datetimes that plain ISO strings would not bring back; refuse what nothing would."""
    marked = False
    for path, leaf in _leaves(value, where):
        if isinstance(leaf, time) and isinstance(leaf.tzinfo, ZoneInfo):
            raise SerializationError(path, f"{leaf} has a named zone, which a time alone cannot keep")
        if isinstance(leaf, datetime):
            if leaf.tzinfo is None:
                raise SerializationError(path, f"{leaf.isoformat()} has no time zone; use aware datetimes")
            marked = marked or anything or isinstance(leaf.tzinfo, ZoneInfo)
    return marked


def _mark(tree: object) -> object:
    if isinstance(tree, datetime):
        zone = f"[{tree.tzinfo.key}]" if isinstance(tree.tzinfo, ZoneInfo) else ""
        return {_MARK: tree.isoformat() + zone}
    if isinstance(tree, dict):
        plain = {key: _mark(item) for key, item in tree.items()}
        return {_MARK: plain} if plain.keys() == {_MARK} else plain
    if isinstance(tree, list | tuple):
        return [_mark(item) for item in tree]
    return tree


def _revive(tree: object) -> object:
    if isinstance(tree, dict):
        if tree.keys() == {_MARK}:
            if isinstance(tree[_MARK], dict):
                return {_MARK: _revive(tree[_MARK][_MARK])}
            text, _, zone = str(tree[_MARK]).partition("[")
            moment = datetime.fromisoformat(text)
            # The offset says which of two equal wall-clock hours was meant, so convert rather than replace.
            return moment.astimezone(ZoneInfo(zone.rstrip("]"))) if zone else moment
        return {key: _revive(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_revive(item) for item in tree]
    return tree


def _children(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"[{key!r}]", item
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    else:
        for name in _field_names(value):
            yield f".{name}", getattr(value, name)


def _field_names(value: object) -> Iterable[str]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if is_dataclass(value) and not isinstance(value, type):
        return [field.name for field in fields(value)]
    return vars(value) if _is_pydantic(type(value)) else ()


def _check_key(key: object, path: str) -> None:
    if isinstance(key, datetime) and key.tzinfo is None:
        raise SerializationError(path, f"{key.isoformat()} has no time zone; use aware datetimes")
    if isinstance(key, datetime) and isinstance(key.tzinfo, ZoneInfo):
        raise SerializationError(path, f"{key.isoformat()} has a named zone, which a key cannot keep")


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Walk a value down to what has no parts, with the path to each; NaN and infinity end it."""
    if isinstance(value, float) and not math.isfinite(value):
        raise SerializationError(path, f"{value} has no JSON form; use None, a string or Decimal")
    if isinstance(value, Mapping):
        for key in value:
            _check_key(key, f"{path}[{key!r}]")
    empty = True
    for step, item in _children(value):
        empty = False
        yield from _leaves(item, path + step)
    if empty:
        yield path, value


def _refuse_nan(value: object, where: str) -> None:
    for _ in _leaves(value, where):
        pass


def _locate(value: object, where: str, error: Exception) -> SerializationError:
    """Find the innermost part of a value that cannot be written, and name it."""
    if isinstance(error, RecursionError):
        return SerializationError(where, "the value contains itself, or is nested too deeply")
    for step, item in _children(value):
        try:
            _encoder.encode(item)
        except Exception as inner:  # noqa: BLE001 -- as in `Codec.encode`
            return _locate(item, where + step, inner)
    reason = str(error) or f"values of type {type(value).__qualname__} cannot be written"
    return SerializationError(where, reason)


def _explain(message: str, where: str) -> tuple[str, str]:
    """Turn msgspec's "Expected `int`, got `str` - at `$.lines[2]`" (or "at `key` in `$`") into a path and a reason."""
    reason, _, place = message.partition(" - at `")
    return where + place.rstrip("`").rpartition("` in `")[2].removeprefix("$"), reason.replace("`", "")
