"""Pause and resume a workflow, alone or with all its descendants."""

from collections.abc import AsyncIterator
from typing import Final

from resurgam.client.access import Access
from resurgam.core import event as events
from resurgam.core.errors import NotFound, WrongState
from resurgam.core.state import Status
from resurgam.store.protocol import Store
from resurgam.store.records import Delivered, Delivery, Ended, Instance, Missing, Outdated, Pause, Query, Settled

_PAGE: Final = 1000


async def pause(access: Access, instance: Instance, reason: str, *, tree: bool) -> None:
    """Pause an execution; with *tree*, pause its open descendants too, and let new ones start paused."""
    event = events.WorkflowPaused(at=access.clock.now(), reason=reason, tree=tree)
    _check_open(instance, await _deliver(access.store, instance, event))
    paused: set[str] = {instance.execution_id}
    found_more = tree
    while found_more:  # a descendant that was starting before its parent was paused may have started others
        found_more = False
        async for descendant in _descendants(access.store, instance):
            # A descendant that was paused by itself stays paused when the tree is resumed.
            if (
                descendant.execution_id not in paused
                and not descendant.status.terminal
                and descendant.status is not Status.PAUSED
            ):
                paused.add(descendant.execution_id)
                found_more = True
                await _deliver(access.store, descendant, event)


async def resume(access: Access, instance: Instance) -> None:
    """Resume a paused execution, and the descendants that were paused with it.

    From the leaves up: if this is interrupted, the root is still paused, and the call can be repeated.
    """
    if instance.status is not Status.PAUSED:
        raise WrongState(
            f"workflow {instance.entity_id!r} is {instance.status}, not paused; there is nothing to resume"
        )
    tree = await _pause_of(access.store, instance) is Pause.TREE
    event = events.WorkflowResumed(at=access.clock.now())
    descendants = [found async for found in _descendants(access.store, instance)] if tree else []
    for descendant in reversed(descendants):
        if descendant.status is Status.PAUSED and await _pause_of(access.store, descendant) is Pause.TREE:
            await _deliver(access.store, descendant, event)
    _check_open(instance, await _deliver(access.store, instance, event))


async def _pause_of(store: Store, instance: Instance) -> Pause | None:
    """Return how an execution is paused: alone or with its tree."""
    copies = await store.transfer.copies(instance.entity_id, instance.run_id)
    return next((copy.paused for copy in copies if copy.instance.execution_id == instance.execution_id), None)


async def _descendants(store: Store, instance: Instance) -> AsyncIterator[Instance]:
    """Yield all descendants of the same tree, breadth first, including those below closed ones."""
    entities, seen = [instance.entity_id], {instance.entity_id}
    for entity_id in entities:
        cursor: str | None = None
        while True:
            query = Query(parent=entity_id, tree_id=instance.tree_id, limit=_PAGE, cursor=cursor)
            page = await store.inspector.list(query)
            for child in page.instances:
                yield child
                if child.entity_id not in seen:
                    seen.add(child.entity_id)
                    entities.append(child.entity_id)
            cursor = page.cursor
            if cursor is None:
                break


async def _deliver(
    store: Store, instance: Instance, event: events.Event
) -> Delivered | Missing | Ended | Settled | Outdated:
    to = Delivery(event=event, entity_id=instance.entity_id, execution_id=instance.execution_id)
    [answer] = await store.deliver([to])
    return answer


def _check_open(instance: Instance, answer: Delivered | Missing | Ended | Settled | Outdated) -> None:
    """Raise `NotFound` if the execution was closed or removed before the event arrived."""
    if isinstance(answer, Missing):
        raise NotFound(f"workflow {instance.entity_id!r} is no longer in the store")
    if isinstance(answer, Ended):
        raise NotFound(f"workflow {instance.entity_id!r} is closed ({answer.status}) and accepts no more messages")
