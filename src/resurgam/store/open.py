"""`open_store(url)`: the only module that knows which backends exist."""

from urllib.parse import urlsplit

from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.store.memory import MemoryStore
from resurgam.store.protocol import Store


def open_store(url: str, clock: Clock, *, lease: int) -> Store:
    """Return the store that *url* names. *lease* is how long a claim holds, in milliseconds."""
    parts = urlsplit(url)
    if parts.scheme == "memory" and not (parts.netloc or parts.path or parts.query):
        return MemoryStore(clock, lease=lease)
    raise StoreError(f"no store for {url!r}; this version knows memory:// (gone with the process)")
