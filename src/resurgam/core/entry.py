"""What every entry of a history is made of: the bases that the kinds of events derive from, and their JSON."""

import msgspec
from msgspec import Raw

from resurgam.core.location import Location

NULL = Raw(b"null")


class Failure(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, kw_only=True):
    """An exception as it is recorded: enough to show it, and to rebuild it where its type is known."""

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
    """One entry of a history. Fields that a kind does not have are None."""

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
        """The kind of event, in snake_case and past tense."""
        return str(self.__struct_config__.tag)

    def to_json(self) -> str:
        """Return the event as one line of JSON, the form it has on disk."""
        return encode_event(self).decode()


class Command(Event, frozen=True, kw_only=True):
    """A intent of the workflow's code, at the place it took.

    *digest* is a fingerprint of its input. *gate*: it was inserted right behind a version check that had answered this,
    and must go on answering it. *key* tells it from its siblings where they are found by key.
    """

    location: Location
    version: int = 1
    command: str
    digest: str | None = None
    gate: int | None = None
    key: str | None = None


class Answer(Event, frozen=True, kw_only=True):
    """What became of the command with ``seq == ref``."""

    ref: int


def _write_location(value: object) -> str:
    if isinstance(value, Location):
        return str(value)
    raise TypeError(f"an event holds a {type(value).__name__}, which has no JSON form")


_encoder = msgspec.json.Encoder(enc_hook=_write_location)


def encode_event(event: Event) -> bytes:
    """Return the JSON of an event."""
    return _encoder.encode(event)
