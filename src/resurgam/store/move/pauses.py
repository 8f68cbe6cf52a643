"""The pauses that a move makes: each has the mark of the move in its reason, so that no other pause is ever ended."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.protocol import Store

BATCH: Final = 100
"""Runs that are paused or resumed in one call."""

_PAGE: Final = 1000
_AT_ONCE: Final = 16
"""Calls that are under way at the same time."""


async def pause(store: Store, executions: Sequence[r.Addressed], reason: str, now: int) -> None:
    """Pause open executions that are not paused; closed ones are left alone."""
    await _tell(store, executions, events.WorkflowPaused(at=now, reason=reason))


async def resume(store: Store, executions: Sequence[r.Addressed], now: int) -> None:
    """Resume executions."""
    await _tell(store, executions, events.WorkflowResumed(at=now))


async def _tell(store: Store, executions: Sequence[r.Addressed], event: events.Event) -> None:
    if executions:
        await store.deliver(
            [r.Delivery(event=event, entity_id=one.entity_id, execution_id=one.execution_id) for one in executions]
        )


async def paused_by(store: Store, mark: str) -> AsyncIterator[r.Instance]:
    """Yield the executions that are paused, and whose last pause has this mark."""
    cursor: str | None = None
    while True:
        page = await store.inspector.list(r.Query(status=Status.PAUSED, limit=_PAGE, cursor=cursor))
        for start in range(0, len(page.instances), _AT_ONCE):
            some = page.instances[start : start + _AT_ONCE]
            marked = await asyncio.gather(*(is_paused_by(store, instance, mark) for instance in some))
            for instance, is_marked in zip(some, marked, strict=True):
                if is_marked:
                    yield instance
        cursor = page.cursor
        if cursor is None:
            return


async def is_paused_by(store: Store, instance: r.Instance, mark: str) -> bool:
    """Whether the last pause of a paused execution has this mark."""
    work = await store.inspector.open_work(instance)
    last = _last_pause(work.inbox if work is not None else ())
    if last is None:
        last = _last_pause(await store.inspector.history(instance, forgotten=True))
    if last is None:  # its predecessor was paused, and continued while a worker still held it
        copies = await store.transfer.copies(instance.entity_id)
        found = (_last_pause((*copy.log, *copy.inbox)) for copy in reversed(copies))
        last = next((event for event in found if event is not None), None)
    return isinstance(last, events.WorkflowPaused) and last.reason.endswith(mark)


def _last_pause(log: Iterable[events.Event]) -> events.Event | None:
    found = [event for event in log if isinstance(event, events.WorkflowPaused | events.WorkflowResumed)]
    return found[-1] if found else None
