"""Pauses and resumes a workflow, alone or with everything that hangs below it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import NotFound, StoreError
from resurgam.core.state import Status
from resurgam.store.protocol import Store
from resurgam.store.records import Delivery, Ended, Instance, Missing, Pause, Query

_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Halting:
    """Speaks to one execution and, where it is asked to, to those below it."""

    store: Store
    clock: Clock

    async def pause(self, instance: Instance, reason: str, *, tree: bool) -> None:
        """Halt an execution; with *tree* its open descendants too. From then on what it begins is born paused."""
        event = events.WorkflowPaused(at=self.clock.now(), reason=reason, tree=tree)
        await self._tell(instance, event)
        halted: set[str] = {instance.execution_id}
        going_on = tree
        while going_on:  # until nothing new appears: one that was being born meanwhile has begun others, perhaps
            going_on = False
            async for below in self._below(instance):
                # One that is paused by itself stays so when the tree is resumed.
                if below.execution_id not in halted and not below.status.terminal and below.status is not Status.PAUSED:
                    halted.add(below.execution_id)
                    going_on = True
                    await self._tell(below, event, quietly=True)

    async def resume(self, instance: Instance) -> None:
        """Let a paused execution go on, and those that were halted with it.

        From the leaves up: should this be broken off, the root is still paused, and it can be called again.
        """
        if instance.status is not Status.PAUSED:
            raise StoreError(
                f"workflow {instance.entity_id!r} is {instance.status}, not paused; there is nothing to resume"
            )
        tree = await self._how(instance) is Pause.TREE
        event = events.WorkflowResumed(at=self.clock.now())
        halted = [below async for below in self._below(instance)] if tree else []
        for below in reversed(halted):
            if below.status is Status.PAUSED and await self._how(below) is Pause.TREE:
                await self._tell(below, event, quietly=True)
        await self._tell(instance, event)

    async def _how(self, instance: Instance) -> Pause | None:
        copies = await self.store.copies(instance.entity_id, instance.run_id)
        return next((copy.paused for copy in copies if copy.instance.execution_id == instance.execution_id), None)

    async def _below(self, instance: Instance) -> AsyncIterator[Instance]:
        """Yield every descendant of the same tree, breadth first; also below those that have ended."""
        entities, seen = [instance.entity_id], {instance.entity_id}
        for entity_id in entities:
            cursor: str | None = None
            while True:
                query = Query(parent=entity_id, tree_id=instance.tree_id, limit=_PAGE, cursor=cursor)
                page = await self.store.list(query)
                for below in page.instances:
                    yield below
                    if below.entity_id not in seen:
                        seen.add(below.entity_id)
                        entities.append(below.entity_id)
                cursor = page.cursor
                if cursor is None:
                    break

    async def _tell(self, instance: Instance, event: events.Event, *, quietly: bool = False) -> None:
        """Deliver to one execution; *quietly*, one that has ended by now is passed over."""
        to = Delivery(event=event, entity_id=instance.entity_id, execution_id=instance.execution_id)
        [answer] = await self.store.deliver([to])
        if quietly:
            return
        if isinstance(answer, Missing):
            raise NotFound(f"there is no workflow with id {instance.entity_id!r} any more")
        if isinstance(answer, Ended):
            raise NotFound(f"workflow {instance.entity_id!r} has ended ({answer.status}) and takes nothing more")
