"""Read the catalog of a store. What was read is kept, so that a later look costs one row unless steps have changed."""

from collections.abc import Sequence

from resurgam.core.entry import Event
from resurgam.core.errors import StoreError
from resurgam.core.flow_event import CATALOG
from resurgam.flows.catalog import Catalog
from resurgam.flows.registration import fold
from resurgam.store.protocol import Store
from resurgam.store.records import Instance


class CatalogReader:
    """The catalog of a store, as of the last look."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.execution_id = ""
        """The instance that was read last; empty if there was none."""
        self._last_seq = 0
        self._catalog = Catalog()

    async def read(self) -> Catalog:
        """Return the catalog as it is now; an empty one if no step was ever registered."""
        instance = await self.instance()
        if instance is None:
            self.execution_id, self._catalog = "", Catalog()
        elif instance.execution_id != self.execution_id:
            self._take(instance.execution_id, Catalog(), await self._store.read(instance))
        elif instance.last_seq > self._last_seq:
            before = self._catalog
            self._take(instance.execution_id, before, await self._store.read(instance, self._last_seq))
        return self._catalog

    def _take(self, execution_id: str, before: Catalog, entries: Sequence[Event]) -> None:
        if entries:
            self.execution_id, self._last_seq = execution_id, entries[-1].seq
            self._catalog = fold(before, entries)

    async def instance(self) -> Instance | None:
        """Return the instance whose log is the catalog; None if there is none, or it was terminated."""
        found = await self._store.inspector.get(CATALOG)
        if found is None or found.status.terminal:
            return None
        check_is_catalog(found)
        return found


def check_is_catalog(found: Instance) -> None:
    """Refuse an instance that is not the catalog, though it has its id."""
    if found.kind != CATALOG:
        raise StoreError(
            f"the catalog of steps has the id {CATALOG!r}, which an open execution of {found.name!r} uses in this store; "
            "end that one, and start it with another id"
        )
