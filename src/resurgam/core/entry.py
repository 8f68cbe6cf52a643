"""Base structs of all events, and their JSON encoding."""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from resurgam.core.location import Location, text_of

NULL = Raw(b"null")


class Failure(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, kw_only=True):
    """A recorded exception: enough to show it, and to rebuild it where its type is importable."""

    type: str
    message: str
    bases: tuple[str, ...] = ()
    traceback: str = ""
    notes: tuple[str, ...] = ()
    args: Raw = NULL
    fields: dict[str, Raw] = {}
    cause: "Failure | None" = None
    members: tuple["Failure", ...] = ()


class Event(
    msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, tag_field="type"
):
    """One entry of a history. Fields that a kind of event does not use are None."""

    seq: int = 0
    at: int = 0
    cause: int | None = None
    ref: int | None = None
    location: Location | None = None
    version: int | None = None
    command: str | None = None
    name: str | None = None

    @property
    def type(self) -> str:
        """The kind of event, in snake_case and past tense: ``activity_scheduled``."""
        return str(self.__struct_config__.tag)

    def to_json(self) -> str:
        """Return the event as one line of JSON, as it is stored."""
        return encode_event(self).decode()


class Command(Event, frozen=True, kw_only=True):
    """A durable call made by workflow code, at its location.

    *digest* is a fingerprint of its input. *gate*: the command was inserted directly after a version check that had
    given this answer, and the check must keep giving it. *key* identifies the command among its siblings in a keyed
    scope.
    """

    location: Location
    version: int = 1
    command: str
    digest: str | None = None
    gate: int | None = None
    key: str | None = None


class Answer(Event, frozen=True, kw_only=True):
    """The result of the command with ``seq == ref``."""

    ref: int


encode_event: Final[Callable[[Event], bytes]] = msgspec.json.Encoder(enc_hook=text_of).encode
"""Encode an event as JSON. Not a function around the encoder's: it would be called for every entry that is written."""
