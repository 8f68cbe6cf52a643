"""Select executions to archive: those that are complete and old enough, and belong together.

- *A tree goes as a whole*, once all of its members are complete and old enough.
- *A workflow that runs for ever never ends*, and new parts of its tree end all the time. These go by themselves, each with
  everything that it started, if no other execution needs them (`retention.Dependents`): closed generations of a chain, and
  children whose parent is open and has recorded their end.

The catalog stays, also once it is terminated: its log records deletions. A selected execution stays complete, because a
closed one never opens again. A run that is retried manually has an open execution in its tree, and stays.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from resurgam.archive.archive import name_of
from resurgam.core.flow_event import CATALOG
from resurgam.store import records as r
from resurgam.store.protocol import Inspector
from resurgam.store.retention import Dependents, same_chain

_PAGE: Final = 200


class Unit(msgspec.Struct, frozen=True):
    """Executions that go into one file, called *name*."""

    name: str
    tree_id: str
    members: tuple[r.Instance, ...]


class Selection:
    """One pass over the complete executions of a store that ended before a moment."""

    def __init__(self, inspector: Inspector, before: int) -> None:
        self._inspector = inspector
        self._before = before
        # Trees that are not complete: each is read once in a pass.
        self._open_trees: dict[str, _Tree] = {}
        self._selected: set[str] = set()

    async def units(self) -> AsyncIterator[Unit]:
        """Yield the units to archive, the oldest first."""
        query = r.EndedQuery(before=self._before, limit=_PAGE)
        while page := await self._inspector.ended(query):
            dependents = Dependents(self._inspector)  # for each page: it remembers the states of parents
            for one in page:
                unit = await self._unit_of(one, dependents)
                if unit is not None:
                    yield unit
            last = page[-1]
            query = msgspec.structs.replace(query, after=(last.closed_at or 0, last.execution_id))

    async def _unit_of(self, ended: r.Instance, dependents: Dependents) -> Unit | None:
        if ended.execution_id in self._selected or ended.kind == CATALOG:
            return None
        tree = self._open_trees.get(ended.tree_id)
        if tree is None:
            members = await self._members_of(ended.tree_id)
            if all(map(self._is_old, members)):
                return self._select(name_of("trees", ended.tree_id), members)
            tree = self._open_trees[ended.tree_id] = _Tree(members)
        top = tree.highest_run(ended.run_id, self._is_old)
        if top is None or not await self._goes_by_itself(top, tree, dependents):
            return None
        return self._select(name_of("runs", top.run_id), list(tree.run_and_below(top.run_id)))

    async def _goes_by_itself(self, top: r.Instance, tree: "_Tree", dependents: Dependents) -> bool:
        newest = await self._inspector.get(top.entity_id)
        if newest is None or await dependents.need(top, newest):
            return False
        if same_chain(newest, top) and newest.run_id != top.run_id:
            return True
        return top.parent is not None and tree.is_open(top.parent.run_id)

    def _select(self, name: str, members: Sequence[r.Instance]) -> Unit | None:
        live = tuple(one for one in members if one.archived is None)
        if not live:  # removed since it was listed
            return None
        self._selected |= {one.execution_id for one in live}
        return Unit(name, live[0].tree_id, live)

    def _is_old(self, one: r.Instance) -> bool:
        return one.deactivated and one.closed_at is not None and one.closed_at < self._before

    async def _members_of(self, tree_id: str) -> list[r.Instance]:
        found: list[r.Instance] = []
        cursor: str | None = None
        while True:
            page = await self._inspector.list(r.Query(tree_id=tree_id, limit=_PAGE, cursor=cursor))
            found += page.instances
            cursor = page.cursor
            await asyncio.sleep(0)  # a store in this process answers at once, and others must go on
            if cursor is None:
                return found


class _Tree:
    """The executions of a tree, by their runs and by the runs that started them."""

    def __init__(self, members: Iterable[r.Instance]) -> None:
        self._by_run: dict[str, list[r.Instance]] = {}
        self._above: dict[str, str] = {}
        self._below: dict[str, set[str]] = {}
        for one in members:
            self._by_run.setdefault(one.run_id, []).append(one)
            if one.parent is not None:
                self._above[one.run_id] = one.parent.run_id
                self._below.setdefault(one.parent.run_id, set()).add(one.run_id)

    def highest_run(self, run_id: str, fits: Callable[[r.Instance], bool]) -> r.Instance | None:
        """Return the last attempt of the highest run at or above this one that fits with everything below it."""
        highest = None
        above: str | None = run_id
        while above in self._by_run and all(map(fits, self.run_and_below(above))):
            highest, above = above, self._above.get(above)
        return None if highest is None else max(self._by_run[highest], key=lambda one: one.attempt)

    def is_open(self, run_id: str) -> bool:
        """Whether a run has an open execution."""
        return any(not one.status.terminal for one in self._by_run.get(run_id, ()))

    def run_and_below(self, run_id: str) -> Iterator[r.Instance]:
        """Yield the executions of a run, and of all runs that were started below it."""
        runs, seen = [run_id], {run_id}
        while runs:
            run_id = runs.pop()
            yield from self._by_run.get(run_id, ())
            below = self._below.get(run_id, set()) - seen
            seen |= below
            runs += below
