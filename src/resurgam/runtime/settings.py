"""What a worker tells its executions of the house they live in."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Raw

from resurgam.core.codec import MAX_PAYLOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """*secret* is the store's, for ids that nobody can guess; *max_payload* the most bytes of one value.

    *accepts* is what the store has heard of this one execution: what its code takes for signals.
    """

    secret: bytes = b""
    max_payload: int = MAX_PAYLOAD
    accepts: Mapping[str, Raw] = field(default_factory=dict)
