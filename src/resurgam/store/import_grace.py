"""Trees that an archiver leaves in the store: those that were imported lately, so that they can be worked on."""

from collections.abc import Iterable
from typing import Final

from resurgam.core.clock import Clock
from resurgam.store.protocol import Values

_GRACE: Final = 7 * 24 * 3_600_000
"""Milliseconds for which an imported tree stays."""


async def keep_imported(values: Values, trees: Iterable[str], clock: Clock) -> None:
    """Keep trees from being archived for a week."""
    for tree_id in trees:
        await values.put(_key(tree_id), b"", expires_at=clock.now() + _GRACE)


async def is_kept(values: Values, tree_id: str) -> bool:
    """Whether a tree must stay."""
    return await values.get(_key(tree_id)) is not None


def _key(tree_id: str) -> str:
    return f"archive-hold-{tree_id}"
