"""Encode values to the form in which they are recorded, and decode recorded ones."""

from typing import Any

from msgspec import Raw

from resurgam.core.codec import Codec, check_size
from resurgam.runtime.matching.mode import Mode


class Payloads:
    """The values that one execution records, none larger than *max_payload* bytes."""

    __slots__ = ("_max_payload", "_mode")

    def __init__(self, mode: Mode, max_payload: int) -> None:
        self._mode = mode
        self._max_payload = max_payload

    def write(self, codec: Codec[Any], value: object, what: str) -> Any:
        """Return a value as it is recorded; a rehearsal passes values on as they are, placeholders among them."""
        if self._mode.rehearsing:
            return value
        return check_size(self._max_payload, codec.check(value, what), what)

    def read(self, codec: Codec[Any], written: Any, what: str) -> Any:
        """Return a recorded value."""
        return codec.decode(written, what) if isinstance(written, Raw) else written
