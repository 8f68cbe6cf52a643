"""Find the executions that belong to an entity and to its descendants, in the store and in an archive.

An entity is a descendant if a row of the store or the header of an archive file says so: retention may have removed its row,
or that of its parent.
"""

from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from msgspec.structs import replace

from resurgam.store import records as r
from resurgam.store.protocol import Inspector

_PAGE: Final = 500


class Listed(Protocol):
    """An execution as an archive lists it."""

    @property
    def entity_id(self) -> str:
        """Its entity."""
        ...

    @property
    def execution_id(self) -> str:
        """Its id."""
        ...

    @property
    def tree_id(self) -> str:
        """Its tree."""
        ...

    @property
    def parent(self) -> str | None:
        """The entity that started it."""
        ...


class Members:
    """An entity and, with *trees*, its descendants in these trees. *archived* are executions in an archive, by their files."""

    def __init__(
        self,
        inspector: Inspector,
        entity_id: str,
        archived: Sequence[tuple[str, Listed]],
        trees: AbstractSet[str] | None = None,
    ) -> None:
        self.entity_id = entity_id
        self.files = list(dict.fromkeys(name for name, _ in archived))
        self._inspector = inspector
        self._trees = trees
        self._below: dict[str, list[str]] = {}
        for _, one in archived:
            if one.parent is not None and trees is not None and one.tree_id in trees:
                self._below.setdefault(one.parent, []).append(one.entity_id)

    @property
    def with_descendants(self) -> bool:
        """Whether descendants belong to it."""
        return self._trees is not None

    def includes(self, one: r.Instance | Listed) -> bool:
        """Whether an execution belongs to it; its entity must be one of `levels`."""
        return one.entity_id == self.entity_id if self._trees is None else one.tree_id in self._trees

    async def levels(self) -> tuple[Sequence[Sequence[str]], Sequence[r.Instance]]:
        """Return the ids of the entities, children below their parents, and the executions of the store found on the way.

        An open execution is always among these.
        """
        newest = await self._inspector.get(self.entity_id)
        found = [] if newest is None else [newest]
        levels, seen = [[self.entity_id]], {self.entity_id}
        while self._trees is not None and levels[-1]:
            below: dict[str, None] = {}
            for parent in levels[-1]:
                children = [one async for one in self._children(parent) if self.includes(one)]
                found += children
                below |= dict.fromkeys((*(one.entity_id for one in children), *self._below.get(parent, ())))
            levels.append([name for name in below if name not in seen])
            seen |= below.keys()
        return [level for level in levels if level], found

    async def _children(self, parent: str) -> AsyncIterator[r.Instance]:
        query = r.Query(parent=parent, limit=_PAGE)
        while True:
            page = await self._inspector.list(query)
            for child in page.instances:
                yield child
            if page.cursor is None:
                return
            query = replace(query, cursor=page.cursor)
