"""Encode values as the JSON stored in a history, and decode them, by type hint.

Rule 1: a value read equals the value written. Every value that crosses a durable boundary is decoded from its recorded
bytes, live as on replay, so that a live run and a replay see the same.
Rule 2: a value that cannot be encoded fails where it is passed, with the path to the field at fault.

msgspec does the work. This module and `canonical` handle what it would lose or let through:

- sets, which msgspec writes in an order that differs between processes, are sorted by their members' JSON;
- the zone of an aware datetime: if any datetime in a value has a named zone or an offset with seconds, or the hint there
  is Any, all datetimes of the value are written as ``{"$datetime": "2026-03-29T03:00:00+02:00[Europe/Berlin]"}``;
  otherwise they are plain ISO strings. A user's dict with only that key is wrapped in another;
- naive datetimes, which denote different times on different machines, are refused, and so are named zones that JSON
  cannot keep: of a time, or of a datetime used as a key;
- different keys with the same JSON form are refused; so are NaN and infinity, which msgspec writes as null;
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

from resurgam.core.canonical import DATETIME_KEY_BYTES, ValueScan, canonical, marked, unmarked
from resurgam.core.errors import PayloadTooLarge, SerializationError
from resurgam.core.fidelity import Fidelity, exact
from resurgam.core.models import reason_of
from resurgam.core.objects import is_pydantic, parts_of
from resurgam.core.unions import StandIn, readable, reader

T = TypeVar("T")
TypeForm: TypeAlias = object
"""Anything allowed as an annotation: ``int``, ``list[Order]``, ``int | None``."""

MAX_PAYLOAD: Final = 2 * 1024 * 1024
"""Default limit, in bytes, for the JSON of one value: a history is read whole on every replay."""

_DEEP: Final = 1000
"""Bytes from which on a value may be nested so deeply that it matters."""

_MARGIN: Final = 100
"""Frames by which the stack of who reads a value may be longer than the stack of who has encoded it."""

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
"""Types not supported by msgspec that are encoded as a string and decoded by calling the type."""


_LOSSY: Final = {inspect.DateTimeType, inspect.TimeType, inspect.SetType, inspect.FrozenSetType}
"""Types whose values must be scanned before encoding."""
_FLAT: Final = {
    *(inspect.NoneType, inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.StrType),
    *(inspect.ListType, inspect.TupleType, inspect.VarTupleType, inspect.UnionType),
}
"""Types whose JSON holds no object, and therefore no mark of a datetime."""


class Codec(Generic[T]):
    """Encodes and decodes the values of one type hint. Build it once, at registration: a bad hint fails here."""

    __slots__ = ("_certain", "_decoder", "_exact", "_fidelity", "_flat", "_hint", "_lossy", "_named", "_untyped")

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
        self._untyped = inspect.AnyType in kinds or any(custom.cls is object for custom in customs)
        self._lossy = self._untyped or bool(customs or kinds & _LOSSY)
        self._fidelity = None if isinstance(info, inspect.AnyType) else Fidelity(info)
        self._exact = exact(info)
        self._flat = kinds <= _FLAT
        # Whether a value needs no look at its JSON either, which for a float may be null.
        self._certain = self._exact if self._flat and inspect.FloatType not in kinds else None

    def encode(self, value: object, where: str = "value") -> Raw:
        """Encode *value* as JSON; an error names the field of *where* that is at fault."""
        return Raw(self._bytes(value, where))

    def _bytes(self, value: object, where: str) -> bytes:
        try:
            data = self._encode_lossy(value, where) if self._lossy else _encoder.encode(value)
            if not self._lossy and data.find(DATETIME_KEY_BYTES) >= 0:
                data = _encoder.encode(marked(_tree_of(value)))
        except SerializationError:
            raise
        except Exception as error:  # properties of the user's own classes may raise anything
            raise _locate(value, where, error) from error
        if not self._lossy and data.find(b"null") >= 0:  # the value may be NaN or infinity
            ValueScan(untyped=False).scan(value, where)
        return data

    def _encode_lossy(self, value: object, where: str) -> bytes:
        """Encode a value that may hold data which plain JSON would lose."""
        scan = ValueScan(untyped=self._untyped)
        scan.scan(value, where)
        if not scan.has_sets and not self._named:
            data = _encoder.encode(value)
            return _encoder.encode(marked(_tree_of(value))) if scan.needs_marks or DATETIME_KEY_BYTES in data else data
        tree = canonical(value, _tree_of(value), self._named)
        data = _encoder.encode(tree)
        return _encoder.encode(marked(tree)) if scan.needs_marks or DATETIME_KEY_BYTES in data else data

    def decode(self, data: bytes | Raw, where: str = "value") -> T:
        """Decode *data* and check it against the type hint."""
        if self._flat:
            # Fast path: such a hint refuses every object, so that in what it accepts there is no mark to look for.
            try:
                found: T = self._decoder.decode(data)
            except Exception:  # noqa: BLE001, S110 -- again below, which says what is wrong
                pass
            else:
                return found
        try:
            # By `find`: `in` would first try to read the key as a number, which fails at the price of an exception.
            if bytes(data).find(DATETIME_KEY_BYTES) >= 0:
                return cast("T", self._convert(unmarked(msgspec.json.decode(data))))
            value: T = self._decoder.decode(data)
        except Exception as error:  # a user's __post_init__ or validator may raise anything
            path, reason = _explain(str(error) or type(error).__name__, where)
            raise SerializationError(path, reason) from error
        return value

    def _convert(self, tree: object) -> object:
        return msgspec.convert(tree, self._hint, builtin_types=(datetime,), str_keys=True, dec_hook=_read_marked)

    def check(self, value: object, where: str = "value") -> Raw:
        """Encode *value* and verify that it decodes to the same value."""
        certain = self._certain
        if certain is not None and certain(value):
            # Fast path: a value that is exactly of a flat hint without floats has one form, and comes back as it is.
            try:
                return Raw(_encoder.encode(value))
            except Exception:  # noqa: BLE001, S110 -- again below, which says what is wrong
                pass
        data = self._bytes(value, where)
        fidelity = self._fidelity
        # Fast path: a value that is exactly of a plain hint comes back as it is, so it need not be decoded.
        if fidelity is None or (self._exact is not None and self._exact(value)):
            return Raw(data)
        back = self.decode(data, where)
        try:
            loss = None if fidelity.plain and back == value else fidelity.loss(value, back)
        except Exception as error:  # comparing instances of a user's class may raise anything
            raise SerializationError(where, f"it cannot be compared with what comes back: {error!r}") from error
        if loss is not None:
            raise SerializationError(where + loss[0], loss[1])
        return Raw(data)


_REMEDY = "Use dataclasses, msgspec structs, pydantic models, enums or plain JSON types"


@functools.lru_cache(maxsize=1024)
def _cached(hint: TypeForm) -> Codec[object]:
    return Codec(hint)


def codec_for(hint: TypeForm) -> Codec[object]:
    """Return the codec of a type hint, built once per hashable hint."""
    try:
        return _cached(hint)
    except TypeError:  # an unhashable hint, such as Annotated with a list in it
        return Codec(hint)


def tree_of(data: bytes | Raw) -> tuple[object, bool]:
    """Decode *data* without a type hint; also return whether datetimes were marked, and are therefore restored."""
    tree = msgspec.json.decode(data)
    return (unmarked(tree), True) if bytes(data).find(DATETIME_KEY_BYTES) >= 0 else (tree, False)


def check_size(limit: int, written: Raw, where: str) -> Raw:
    """Return *written*; raise `PayloadTooLarge` if it has more bytes than *limit*.

    Also refuse what is nested too deeply to be read where less of the stack is left than here.
    """
    size = memoryview(written).nbytes
    if size > limit:
        raise PayloadTooLarge(where, size, limit)
    if size >= _DEEP:
        try:
            _read_below(written, _MARGIN)
        except RecursionError:
            raise SerializationError(where, "the value is nested too deeply") from None
    return written


def _read_below(written: Raw, frames: int) -> None:
    """Read a value some frames further down the stack."""
    if frames:
        _read_below(written, frames - 1)
    else:
        _skip(written)


def _show(hint: TypeForm) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)


def _parts(info: inspect.Type, seen: set[type] | None = None) -> Iterator[inspect.Type]:
    """Yield a type and all types inside it, each once."""
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
    # `object` as a hint means the same as Any.
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
_skip = msgspec.json.Decoder(Raw).decode


def _tree_of(value: object) -> object:
    return msgspec.to_builtins(value, builtin_types=(datetime,), str_keys=True, enc_hook=_write_hook)


def _locate(value: object, where: str, error: Exception) -> SerializationError:
    """Return an error that names the innermost part of a value that cannot be encoded."""
    if isinstance(error, RecursionError):
        return SerializationError(where, "the value contains itself, or is nested too deeply")
    for step, item in parts_of(value):
        try:
            _encoder.encode(item)
        except Exception as inner:  # noqa: BLE001 -- as in `Codec.encode`
            return _locate(item, where + step, inner)
    reason = str(error) or f"values of type {type(value).__qualname__} cannot be written"
    return SerializationError(where, reason)


def _explain(message: str, where: str) -> tuple[str, str]:
    """Turn msgspec's "Expected `int`, got `str` - at `$.lines[2]`" (or "at `key` in `$`") into a path and a reason."""
    reason, _, path = message.partition(" - at `")
    return where + path.rstrip("`").rpartition("` in `")[2].removeprefix("$"), reason.replace("`", "")
