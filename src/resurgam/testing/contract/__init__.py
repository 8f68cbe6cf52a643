"""The suite that every store must pass, verb by verb: `StoreContract`.

A backend joins by saying how it is opened, with leases of ten seconds, for a clock that it asks for the time::

    class TestMemory(StoreContract):
        @asynccontextmanager
        async def open_store(self, clock):
            yield MemoryStore(clock, lease=LEASE)

The cases are plain async methods with plain asserts; pytest collects them with ``asyncio_mode = auto``.
"""

from resurgam.testing.contract.bench import LEASE
from resurgam.testing.contract.store import StoreContract

__all__ = ["LEASE", "StoreContract"]
