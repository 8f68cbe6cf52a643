"""Values to the JSON that a history holds, and back, by type hint.

Rule 1: what is read is what was written. Every value that crosses a durable boundary is decoded from its recorded
bytes, live as on replay, so a hot run and a replayed one can never see different things.
Rule 2: a value that cannot be written fails where it is passed, with the path to the field at fault.

msgspec does the work. What it would lose or let through is handled here and in `canonical`:

- sets, which it writes in an order that differs from process to process, are written in the order of their members' JSON;
- the zone of an aware datetime: if any datetime of a value has a named zone or an offset with seconds, or may stand where
  the hint says Any, all of that value's datetimes are written as
  ``{"$datetime": "2026-03-29T03:00:00+02:00[Europe/Berlin]"}``; otherwise they are plain ISO strings. A dict of the user's
  own with that one key is wrapped in another;
- naive datetimes, which mean a different moment on another machine, are refused, and so is what has a named zone but
  cannot keep it: a time, or a datetime that is a key;
- keys that are different but are written alike, NaN and infinity, which msgspec writes as null, are refused;
- pydantic models, paths, IP addresses, complex numbers, fractions and zones go through small hooks.
"""

import functools
import ipaddress
import pathlib
from collections.abc import Callable, Iterator
from datetime import datetime
from fractions import Fraction
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Raw, inspect

from resurgam.core.canonical import MARK_BYTES, Survey, canonical, marked, revived
from resurgam.core.errors import PayloadTooLarge, SerializationError
from resurgam.core.fidelity import Fidelity
from resurgam.core.models import reason_of
from resurgam.core.objects import children, is_pydantic
from resurgam.core.unions import StandIn, readable, reader

T = TypeVar("T")
TypeForm: TypeAlias = object
"""Anything that may stand in an annotation: ``int``, ``list[Order]``, ``int | None``."""

MAX_PAYLOAD: Final = 2 * 1024 * 1024
"""Bytes that one value may have as JSON unless the engine is told otherwise: a history is read whole, again and again."""

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


_LOSSY: Final = {inspect.DateTimeType, inspect.TimeType, inspect.SetType, inspect.FrozenSetType}
"""Types of which a value must be looked through before it is written."""


class Codec(Generic[T]):
    """Writes and reads the values of one type hint. Build it once, at registration: a bad hint fails here."""

    __slots__ = ("_anything", "_careful", "_decoder", "_fidelity", "_hint", "_named")

    def __init__(self, hint: TypeForm) -> None:
        self._hint, self._named = readable(hint)
        try:
            self._decoder = msgspec.json.Decoder(self._hint, dec_hook=_read_plain)
            info = inspect.type_info(self._hint)
            parts = list(_parts(info))
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
        self._careful = self._anything or bool(customs or kinds & _LOSSY)
        self._fidelity = None if isinstance(info, inspect.AnyType) else Fidelity(info)

    def encode(self, value: object, where: str = "value") -> Raw:
        """Return the JSON of *value*; on failure say which field of *where* is at fault."""
        return Raw(self._bytes(value, where))

    def _bytes(self, value: object, where: str) -> bytes:
        try:
            data = self._written(value, where) if self._careful else _encoder.encode(value)
            if MARK_BYTES in data and not self._careful:
                data = _encoder.encode(marked(_tree_of(value)))
        except SerializationError:
            raise
        except Exception as error:  # properties of the user's own classes may raise anything
            raise _locate(value, where, error) from error
        if b"null" in data and not self._careful:  # NaN and infinity are written so
            Survey(anything=False).look(value, where)
        return data

    def _written(self, value: object, where: str) -> bytes:
        """Return the JSON of a value that may hold what plain JSON would lose."""
        survey = Survey(anything=self._anything)
        survey.look(value, where)
        if not survey.unordered and not self._named:
            data = _encoder.encode(value)
            return _encoder.encode(marked(_tree_of(value))) if survey.marked or MARK_BYTES in data else data
        tree = canonical(value, _tree_of(value), self._named)
        data = _encoder.encode(tree)
        return _encoder.encode(marked(tree)) if survey.marked or MARK_BYTES in data else data

    def decode(self, data: bytes | Raw, where: str = "value") -> T:
        """Return the value that *data* holds, checked against the type hint."""
        try:
            if MARK_BYTES in bytes(data):
                return cast("T", self._convert(revived(msgspec.json.decode(data))))
            value: T = self._decoder.decode(data)
        except Exception as error:  # a __post_init__ or a validator of the user's may raise anything
            path, reason = _explain(str(error) or type(error).__name__, where)
            raise SerializationError(path, reason) from error
        return value

    def _convert(self, tree: object) -> object:
        return msgspec.convert(tree, self._hint, builtin_types=(datetime,), str_keys=True, dec_hook=_read_marked)

    def check(self, value: object, where: str = "value") -> Raw:
        """Encode *value* and make sure that it comes back: as the type hint says, and with nothing lost."""
        data = self._bytes(value, where)
        fidelity = self._fidelity
        if fidelity is None:
            return Raw(data)
        back = self.decode(data, where)
        try:
            lost = None if fidelity.plain and back == value else fidelity.lost(value, back)
        except Exception as error:  # values of the user's own classes may refuse to be compared
            raise SerializationError(where, f"it cannot be compared with what comes back: {error!r}") from error
        if lost is not None:
            raise SerializationError(where + lost[0], lost[1])
        return Raw(data)


_REMEDY = "Use dataclasses, msgspec structs, pydantic models, enums or plain JSON types"


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
    return (revived(tree), True) if MARK_BYTES in bytes(data) else (tree, False)


def check_size(limit: int, written: Raw, where: str) -> Raw:
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
    if isinstance(info, inspect.CustomType) and isinstance(info.cls, type) and issubclass(info.cls, StandIn):
        if info.cls not in seen:
            seen.add(info.cls)
            for inner in info.cls.inner:
                yield from _parts(inspect.type_info(inner), seen)
        return
    for name in ("types", "item_types", "item_type", "key_type", "value_type", "type"):
        inner = getattr(info, name, None)
        for part in inner if isinstance(inner, tuple) else (inner,):
            if isinstance(part, inspect.Type):
                yield from _parts(part, seen)


def _is_hooked(kind: type) -> bool:
    # `object` as a hint says no more than Any does.
    return isinstance(kind, type) and (
        kind is object or any(issubclass(kind, known) for known in (*_HOOKS, StandIn)) or is_pydantic(kind)
    )


def _write_hook(value: object) -> object:
    if is_pydantic(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)  # type: ignore[attr-defined]  # checked in the line above
    for known, write in _HOOKS.items():
        if isinstance(value, known):
            return write(value)
    raise NotImplementedError(f"values of type {type(value).__qualname__} cannot be written")


def _validated(kind: Any, value: object) -> object:
    try:
        return kind.model_validate(value)
    except ValueError as error:
        path, reason = reason_of(error)
        raise ValueError(f"{kind.__qualname__}{path}: {reason}") from error


def _read_hook(kind: type, value: object) -> object:
    if kind is object:
        return value
    if is_pydantic(kind):
        return _validated(kind, value)
    if isinstance(value, str):
        return kind(value)
    raise ValueError(f"expected the text of a {kind.__qualname__}, got {value!r}")


_read_plain = reader(marked=False, otherwise=_read_hook)
_read_marked = reader(marked=True, otherwise=_read_hook)
_encoder = msgspec.json.Encoder(enc_hook=_write_hook)


def _tree_of(value: object) -> object:
    return msgspec.to_builtins(value, builtin_types=(datetime,), str_keys=True, enc_hook=_write_hook)


def _locate(value: object, where: str, error: Exception) -> SerializationError:
    """Find the innermost part of a value that cannot be written, and name it."""
    if isinstance(error, RecursionError):
        return SerializationError(where, "the value contains itself, or is nested too deeply")
    for step, item in children(value):
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
