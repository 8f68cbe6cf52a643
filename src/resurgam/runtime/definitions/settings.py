"""Worker-wide settings, passed to every execution."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec import Raw

from resurgam.core.codec import MAX_PAYLOAD


def _unknown(name: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """*secret* is the store's, for ids that nobody can guess; *max_payload* the most bytes of one value.

    *signal_schemas* is what the store has heard of this one execution: what its code takes for signals. *queue_of* returns the
    queue that the definition of a workflow names, by the workflow's name; None if it names none or is not known here.
    """

    secret: bytes = b""
    max_payload: int = MAX_PAYLOAD
    signal_schemas: Mapping[str, Raw] = field(default_factory=dict)
    queue_of: Callable[[str], str | None] = _unknown
