"""The JSON of records. The one value in them that JSON has no form for is a location, which is written as text."""

from typing import TypeVar

import msgspec

from resurgam.core.location import Location

T = TypeVar("T")


def encode(value: object) -> str:
    """Return the JSON of a record, or of a list of plain values."""
    return _encoder.encode(value).decode()


def decode(text: str | bytes, kind: type[T]) -> T:
    """Return the record that this JSON holds; anything else is a `msgspec.ValidationError`."""
    return msgspec.json.decode(text, type=kind, dec_hook=_read)


def _write(value: object) -> str:
    if isinstance(value, Location):
        return str(value)
    raise TypeError(f"a record holds a {type(value).__name__}, which has no JSON form")


def _read(kind: type, value: object) -> object:
    if kind is object:
        return value
    if kind is Location and isinstance(value, str):
        return Location.parse(value)
    raise ValueError(f"expected a location, got {value!r}")


_encoder = msgspec.json.Encoder(enc_hook=_write)
