"""Read archived histories as if the store had them, or say where they are."""

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, cast

from resurgam.archive.archive import Archive
from resurgam.core import event as events
from resurgam.core.errors import NotFound
from resurgam.store import records as r
from resurgam.store.protocol import Inspector, Store


class ArchiveInspector:
    """An `Inspector` that looks for the logs of archived executions in their archive; everything else is as before.

    Without an archive it raises `NotFound` for them.
    """

    def __init__(self, inspector: Inspector, archive: Archive | None) -> None:
        self._inspector = inspector
        self._archive = archive

    def get(
        self, entity_id: str, run_id: str | None = None, *, execution_id: str | None = None
    ) -> Coroutine[Any, Any, r.Instance | None]:
        """Return an execution; written out because nearly every call of a client begins with it."""
        return self._inspector.get(entity_id, run_id, execution_id=execution_id)

    def __getattr__(self, verb: str) -> Any:
        """Every other verb is that of the inspector."""
        return getattr(self._inspector, verb)

    async def history(
        self,
        execution: r.Addressed,
        last: int | None = None,
        *,
        forgotten: bool = False,
        after: int = 0,
        limit: int | None = None,
    ) -> Sequence[events.Event]:
        """Return the log of an execution, from the store or from the archive."""
        look = partial(self._inspector.history, execution, last=last, forgotten=forgotten, after=after, limit=limit)
        found = await look()
        if found:
            return found
        instance = await self._inspector.get(execution.entity_id, execution_id=execution.execution_id)
        if instance is None:
            return found
        if instance.archived is None:  # it may have been brought back between the two looks
            return await look()
        if self._archive is None:
            raise NotFound(
                f"the history of {instance.entity_id!r} (run {instance.run_id}) is archived in {instance.archived}; open the "
                "engine with archive=; on the command line, `resurgam history ID --archived` reads it"
            )
        copy = await self._archive.copy(instance)
        gone = set() if forgotten else {one.seq for one in copy.forgotten}
        log = [entry for entry in copy.log if entry.seq not in gone]
        return log[-last:] if last is not None else [entry for entry in log if entry.seq > after][:limit]


class ArchiveStore:
    """A store whose inspector reads archived histories too."""

    def __init__(self, store: Store, archive: Archive | None) -> None:
        self._store = store
        self.inspector = inspector_of(store, archive)

    def __getattr__(self, name: str) -> Any:
        """Every other verb, and every other part, is that of the store."""
        return getattr(self._store, name)


def inspector_of(store: Store, archive: Archive | None) -> Inspector:
    """Return the read side of a store and of an archive."""
    return cast("Inspector", ArchiveInspector(store.inspector, archive))


def with_archive(store: Store, archive: Archive | None) -> Store:
    """Return a store whose inspector reads archived histories too; without an archive it says where they are."""
    return cast("Store", ArchiveStore(store, archive))
