"""The digest of executions, which is the same in every store."""

from collections.abc import Iterable
from hashlib import blake2b

from msgspec.structs import replace

from resurgam.store import records as r
from resurgam.store.export import write


def digest_of(copies: Iterable[r.Copy]) -> str:
    """Return the digest of everything that copies hold."""
    lines = write(_ordered(copy) for copy in copies)
    return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def _ordered(copy: r.Copy) -> r.Copy:
    """Return a copy whose names are in order: stores need not keep the order in which they were given."""
    instance = copy.instance
    return replace(
        copy,
        instance=replace(
            instance,
            tags=dict(sorted(instance.tags.items())),
            signal_schemas=dict(sorted(instance.signal_schemas.items())),
        ),
    )
