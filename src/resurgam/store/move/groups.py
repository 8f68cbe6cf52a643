"""What belongs together: executions that must move in one piece.

Members of a tree, executions of an entity, and a parent and its children belong together: they find each other by their ids,
within one store.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.protocol import Store

_PAGE: Final = 1000


class Member(msgspec.Struct, frozen=True, gc=False):
    """An execution, as far as a move must know it."""

    entity_id: str
    execution_id: str
    paused: bool
    closed: bool
    complete: bool
    """Whether it is closed and nothing of it is outstanding."""


class Group(msgspec.Struct, frozen=True):
    """Executions that belong together."""

    members: Sequence[Member]

    @property
    def live(self) -> bool:
        """Whether one of them is not complete."""
        return not all(member.complete for member in self.members)

    @property
    def entity_ids(self) -> Sequence[str]:
        """Their entities, each once."""
        return list(dict.fromkeys(member.entity_id for member in self.members))


async def groups_in(store: Store, entity_ids: AbstractSet[str] = frozenset(), *, closed: bool) -> Sequence[Group]:
    """Return the groups of a store that have a live run, or all if *closed*; only those of some entities, if any are named."""
    found = _grouped([one async for one in _instances(store)])
    return [
        group
        for group in found
        if (closed or group.live) and (not entity_ids or not entity_ids.isdisjoint(group.entity_ids))
    ]


async def _instances(store: Store) -> AsyncIterator[r.Instance]:
    cursor: str | None = None
    while True:
        page = await store.inspector.list(r.Query(limit=_PAGE, cursor=cursor))
        for instance in page.instances:
            yield instance
        cursor = page.cursor
        if cursor is None:
            return


def _grouped(instances: Iterable[r.Instance]) -> Sequence[Group]:
    links = _Links()
    members: dict[str, list[Member]] = {}
    for one in instances:
        links.join(f"entity {one.entity_id}", f"tree {one.tree_id}")
        if one.parent is not None:
            links.join(f"entity {one.entity_id}", f"entity {one.parent.entity_id}")
        member = Member(
            entity_id=one.entity_id,
            execution_id=one.execution_id,
            paused=one.status is Status.PAUSED,
            closed=one.status.terminal,
            complete=one.deactivated,
        )
        members.setdefault(one.entity_id, []).append(member)
    groups: dict[str, list[Member]] = {}
    for entity_id, found in members.items():
        groups.setdefault(links.root(f"entity {entity_id}"), []).extend(found)
    return [Group(found) for found in groups.values()]


class _Links:
    """Which names belong together, directly or by others."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def root(self, name: str) -> str:
        """Return the name that stands for all that belong together with *name*."""
        path = []
        while (above := self._above.get(name, name)) != name:
            path.append(name)
            name = above
        for passed in path:
            self._above[passed] = name
        return name

    def join(self, one: str, other: str) -> None:
        """Note that two names belong together."""
        self._above[self.root(one)] = self.root(other)
