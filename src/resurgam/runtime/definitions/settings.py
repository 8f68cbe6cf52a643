"""Worker-wide settings, passed to every execution."""

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Raw

from resurgam.core.codec import MAX_PAYLOAD


def _unknown(name: str) -> None:
    return None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """*secret* is the store's key for unguessable ids; *max_payload* the size limit of one value, in bytes.

    *signal_schemas* are the stored schemas of the signals that this execution accepts. *queue_of* returns the queue in
    the definition of a workflow, by the workflow's name; None if it has none or is not known here.
    """

    secret: bytes = b""
    max_payload: int = MAX_PAYLOAD
    signal_schemas: Mapping[str, Raw] = msgspec.field(default_factory=dict)
    queue_of: Callable[[str], str | None] = _unknown
