"""Encode values to the form in which they are recorded, and decode recorded ones."""

from typing import Any

import msgspec
from msgspec import Raw

from resurgam.core.codec import Codec, check_size


class Payloads(msgspec.Struct, gc=False, frozen=True):
    """The values that one execution records, none larger than *max_payload* bytes."""

    rehearsing: bool
    max_payload: int

    def write(self, codec: Codec[Any], value: object, what: str) -> Any:
        """Return a value as it is recorded; a rehearsal passes values on as they are, placeholders among them."""
        if self.rehearsing:
            return value
        return check_size(self.max_payload, codec.check(value, what), what)

    def read(self, codec: Codec[Any], written: Any, what: str) -> Any:
        """Return a recorded value."""
        return codec.decode(written, what) if isinstance(written, Raw) else written
