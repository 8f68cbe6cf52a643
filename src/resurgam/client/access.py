"""What every client verb needs: the store, the registry and the clock, and checks and codecs of its arguments."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core.clock import Clock
from resurgam.core.codec import MAX_PAYLOAD, Codec, TypeForm, check_size, codec_for
from resurgam.core.errors import SerializationError
from resurgam.core.lifecycle import WORKFLOW, Started
from resurgam.core.retry import Duration, milliseconds
from resurgam.core.tags import check_tag
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.registry import Registry
from resurgam.store.protocol import Store
from resurgam.store.records import Instance

ANY: Final[Codec[Any]] = codec_for(Any)

_LONGEST_REASON: Final = 10_000
"""Characters. Reasons are for people, and are printed whole."""


class Access(msgspec.Struct, frozen=True):
    """A store, the registered code, the clock, and the maximum size of a value in bytes."""

    store: Store
    registry: Registry
    clock: Clock
    max_payload: int = MAX_PAYLOAD

    def workflow_of(self, instance: Instance | Started) -> Workflow[..., Any] | None:
        """Return the workflow registered here that an instance runs; None if there is none, or it is of another kind."""
        known = self.registry.workflows
        return known.find(instance.name) if instance.kind == WORKFLOW and instance.name in known else None

    def encode(self, value: object, where: str) -> Raw:
        """Return a caller's value as JSON; *where* names it in an error."""
        return check_size(self.max_payload, ANY.encode(value, where), where)

    def encode_all(self, values: Sequence[object], where: str) -> Raw:
        """Return arguments as a JSON list."""
        return self.encode(list(values), where)


def codec_of(type: TypeForm | None, what: str) -> Codec[Any] | None:
    """Return the codec of a caller's ``type=``, None without one; refuse a type whose values cannot be decoded."""
    if type is None:
        return None
    try:
        return codec_for(type)
    except SerializationError as error:
        raise SerializationError(f"{what}, type={error.path}", error.reason) from error.__cause__


def check_text(value: object, what: str) -> None:
    """Refuse a name or an id that is not a non-empty string."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} must be a non-empty string, got {value!r}")
    if "\0" in value:
        raise ValueError(f"{what} must not contain NUL, which Postgres cannot store, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be text that UTF-8 can encode, got {value!r}") from None


def check_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags; refuse any that cannot be stored."""
    if not isinstance(tags, Mapping):
        raise TypeError(f"tags must be a mapping of strings to strings, got {tags!r}")
    for key, value in tags.items():
        check_tag(key, value)
    return dict(tags)


def check_reason(reason: object) -> str:
    """Return a reason; refuse one that is not a string, that no store can keep, or that is too long to be read."""
    if not isinstance(reason, str):
        raise TypeError(f"reason must be a string, got {reason!r}")
    try:
        reason.encode()
    except UnicodeEncodeError:
        raise ValueError(f"reason must be text that UTF-8 can encode, got {reason[:40]!r}") from None
    if len(reason) > _LONGEST_REASON:
        raise ValueError(f"reason must have at most {_LONGEST_REASON} characters, got {len(reason):,}")
    return reason


def deadline_after(clock: Clock, timeout: Duration | None) -> int | None:
    """Return when a wait ends, None if it has no timeout; refuse a negative timeout."""
    if timeout is None:
        return None
    length = milliseconds(timeout)
    if length < 0:
        raise ValueError(f"timeout must be 0 or more, got {timeout!r}")
    return clock.now() + length
