"""What every verb of a client needs, and how what it says is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Raw

from resurgam.core.clock import Clock
from resurgam.core.codec import MAX_PAYLOAD, Codec, check_size, codec_for
from resurgam.core.retry import Duration, milliseconds
from resurgam.runtime.definitions.registry import Registry
from resurgam.store.protocol import Store

ANY: Final[Codec[Any]] = codec_for(Any)


@dataclass(frozen=True, slots=True)
class Access:
    """A store, the code that is known here, the time, and how many bytes one value may have."""

    store: Store
    registry: Registry
    clock: Clock
    max_payload: int = MAX_PAYLOAD

    def write(self, value: object, where: str) -> Raw:
        """Return the JSON of a value that somebody outside gives; *where* names it in an error."""
        return check_size(self.max_payload, ANY.encode(value, where), where)

    def write_all(self, values: Sequence[object], where: str) -> Raw:
        """Return the JSON of arguments: a list of them."""
        return self.write(list(values), where)


def check_text(value: object, what: str) -> None:
    """Refuse a name or an id that is none."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} is {value!r}; it is a string that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} is {value!r}, which is no text that can be written down") from None


def check_reason(reason: object) -> str:
    """Refuse a reason that is no text."""
    if not isinstance(reason, str):
        raise TypeError(f"reason is {reason!r}; it is a text")
    return reason


def moment_after(clock: Clock, timeout: Duration | None) -> int | None:
    """Return when a wait is over, None if never; refuse a length of time that is none."""
    if timeout is None:
        return None
    length = milliseconds(timeout)
    if length < 0:
        raise ValueError(f"timeout is {timeout!r}; it is 0 or more")
    return clock.now() + length
