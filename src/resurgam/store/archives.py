"""The archives that hold histories of a store: the store remembers each, by its id, and where it was last.

A deletion must look into all of them, also where no row of the store names one any more.
"""

from typing import Final

import msgspec

from resurgam.core.errors import StoreError
from resurgam.store.protocol import Values

_KEY: Final = "archives"


class ArchiveNeeded(StoreError):
    """Executions of an entity are, or may be, in an archive that cannot be read."""


async def known_archives(values: Values) -> dict[str, str]:
    """Return the URLs of all archives of a store, by their ids."""
    stored = await values.get(_KEY)
    return {} if stored is None else msgspec.json.decode(stored, type=dict[str, str])


async def note_archive(values: Values, archive_id: str, url: str) -> None:
    """Remember an archive, before the first history is written there. The caller has the lock of archivers."""
    known = await known_archives(values)
    if known.get(archive_id) != url:
        await values.put(_KEY, msgspec.json.encode(known | {archive_id: url}))
