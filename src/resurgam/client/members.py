"""Find the executions that belong to an entity and to its descendants, in the store and in an archive.

An entity is a descendant if a row of the store or the header of an archive file says so: retention may have removed its row,
or that of its parent.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

import msgspec
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


class Trees(msgspec.Struct):
    """The trees in which an entity has descendants, and those of them in which everything else is one."""

    ids: set[str] = msgspec.field(default_factory=set)
    whole: set[str] = msgspec.field(default_factory=set)

    def add(self, tree_id: str, *, is_root: bool) -> None:
        """Add a tree; *is_root*: the entity is its root."""
        self.ids.add(tree_id)
        if is_root:
            self.whole.add(tree_id)


async def trees_of(
    inspector: Inspector, entity_id: str, executions: Sequence[r.Instance], archived: Sequence[tuple[str, Listed]]
) -> Trees:
    """Return the trees of an entity: by its executions, and by its children, where its own rows are gone."""
    trees = Trees()
    for one in executions:
        trees.add(one.tree_id, is_root=one.parent is None)
    for _, held in archived:
        trees.add(held.tree_id, is_root=held.parent is None)
    async for child in _listed(inspector, r.Query(parent=entity_id, limit=_PAGE)):
        if child.parent is None or child.parent.detached:  # it has a tree of its own
            continue
        trees.add(child.tree_id, is_root=child.parent.run_id == child.tree_id)
    return trees


class Members:
    """An entity and, with *trees*, its descendants in these trees. *archived* are executions in an archive, by their files."""

    def __init__(
        self,
        inspector: Inspector,
        entity_id: str,
        archived: Sequence[tuple[str, Listed]],
        trees: Trees | None = None,
    ) -> None:
        self.entity_id = entity_id
        self.files = list(dict.fromkeys(name for name, _ in archived))
        self._inspector = inspector
        self._trees = trees
        self._names = {entity_id}
        self._archived = [one for _, one in archived]

    @property
    def leads_on(self) -> bool:
        """Whether something of its descendants is known, though nothing of itself may be."""
        return self._trees is not None and bool(self._trees.ids)

    @property
    def with_descendants(self) -> bool:
        """Whether descendants belong to it."""
        return self._trees is not None

    def includes(self, one: r.Instance | Listed) -> bool:
        """Whether an execution belongs to it; `levels` must have been called before.

        A descendant was started by a member: another branch of the tree may have started the same entity.
        """
        if self._trees is None or one.entity_id == self.entity_id:
            return one.entity_id == self.entity_id and (self._trees is None or one.tree_id in self._trees.ids)
        return one.tree_id in self._trees.whole or (one.tree_id in self._trees.ids and _parent_of(one) in self._names)

    async def levels(self) -> tuple[Sequence[Sequence[str]], Sequence[r.Instance]]:
        """Return the ids of the entities, children below their parents, and the executions of the store found on the way.

        An open execution is always among these.
        """
        newest = await self._inspector.get(self.entity_id)
        found = [] if newest is None else [newest]
        levels = [[self.entity_id]]
        self._names = {self.entity_id}
        while self._trees is not None and levels[-1]:
            below: dict[str, None] = {}
            for parent in levels[-1]:
                query = r.Query(parent=parent, limit=_PAGE)
                children = [one async for one in _listed(self._inspector, query) if self.includes(one)]
                found += children
                below |= dict.fromkeys(one.entity_id for one in children)
                archived = [one for one in self._archived if one.parent == parent and self.includes(one)]
                below |= dict.fromkeys(one.entity_id for one in archived)
            levels.append([name for name in below if name not in self._names])
            self._names |= below.keys()
        for tree_id in () if self._trees is None else self._trees.whole:
            # What no row leads to, since the rows of those between are gone.
            query = r.Query(tree_id=tree_id, limit=_PAGE)
            rest = [one async for one in _listed(self._inspector, query) if one.entity_id not in self._names]
            found += rest
            levels.append(list(dict.fromkeys(one.entity_id for one in rest)))
            self._names.update(levels[-1])
        return [level for level in levels if level], found


def _parent_of(one: r.Instance | Listed) -> str | None:
    if isinstance(one, r.Instance):
        return None if one.parent is None else one.parent.entity_id
    return one.parent


async def _listed(inspector: Inspector, query: r.Query) -> AsyncIterator[r.Instance]:
    """Yield all executions of a query, page by page."""
    while True:
        page = await inspector.list(query)
        for one in page.instances:
            yield one
        if page.cursor is None:
            return
        query = replace(query, cursor=page.cursor)
