"""Follow a chain: the executions of one entity that retry or continue each other.

A later start of the same id is another chain, and its result must not be given to a caller that waits for this one. Two
executions belong to one chain if they have the same run, or the same tree and the same call of a parent (a root has
none).
"""

from typing import Final

from resurgam.core import event as events
from resurgam.core.errors import NotFound
from resurgam.core.flow_event import FlowCompleted
from resurgam.core.state import Status, closing_entry
from resurgam.store.protocol import Store
from resurgam.store.records import Addressed, Closed, ExecutionRef, Instance
from resurgam.store.retention import same_chain

_TAILS: Final = (2, 16, None)
"""How many of the last entries to search for the outcome: it is followed by the end of the history, or by late results."""


async def closing_event(store: Store, instance: Instance) -> events.Event | None:
    """Return the entry that closed an execution; search the end of its history first, because it may be long."""
    for last in _TAILS:
        entry = closing_entry(await store.inspector.history(instance, last))
        if entry is not None:
            return entry
    return None


async def newest(store: Store, instance: Instance) -> Instance:
    """Return the newest execution of a chain, even if its id was started again since."""
    found = await store.inspector.get(instance.entity_id)
    if found is not None and same_chain(found, instance):
        return found
    found = await store.inspector.get(instance.entity_id, instance.run_id)
    while found is not None and found.status is Status.CONTINUED:
        closing = await closing_event(store, found)
        successor = None
        if isinstance(closing, events.WorkflowContinued):
            successor = await store.inspector.get(instance.entity_id, closing.run_id)
        if successor is None:
            break
        found = successor
    if found is None:
        raise _removed(instance)
    return found


async def next_execution(store: Store, execution: Addressed, closing: events.Event) -> str | None:
    """Return the id of the execution that follows one closed by *closing*, None if there is none.

    The failed execution does not record a manual retry, so search backwards from the newest attempt.
    """
    if isinstance(closing, events.WorkflowContinued | events.WorkflowRetried):
        return closing.execution_id
    started = await _started(store, execution)
    if not isinstance(closing, events.WorkflowFailed) or started is None:
        return None
    found = await store.inspector.get(started.entity_id, started.run_id)
    later = None if found is None else await _started(store, found)
    while later is not None and later.previous != execution.execution_id:
        before = ExecutionRef(entity_id=execution.entity_id, execution_id=later.previous or "")
        later = await _started(store, before)
    return None if later is None else later.execution_id


async def _started(store: Store, execution: Addressed) -> events.Started | None:
    first = next(iter(await store.inspector.history(execution, limit=1)), None)
    return first if isinstance(first, events.Started) else None


async def newest_of_run(store: Store, instance: Instance) -> Instance:
    """Return the newest attempt of the run that an execution belongs to."""
    return await store.inspector.get(instance.entity_id, instance.run_id) or instance


async def wait_for_execution(
    store: Store, instance: Instance, until: int | None
) -> tuple[Instance, events.Event | None] | None:
    """Wait until one execution is closed; return it and the entry that closed it, None if *until* passes first."""
    told: list[events.Event] = []
    if not await store.wait(_end_of(instance, told), until):
        return None
    closing = told.pop() if told else await closing_event(store, instance)
    if closing is None:
        raise NotFound(
            f"execution {instance.execution_id!r} of workflow {instance.entity_id!r} was removed from the store, "
            "with its outcome"
        )
    if isinstance(closing, events.WorkflowContinued):
        raise _continued(instance, closing)
    return instance, closing


def _end_of(instance: Instance, told: list[events.Event]) -> Closed:
    """Return the watch for the end of an execution; *told* receives the entry that closes it, if the store knows it."""
    return Closed(entity_id=instance.entity_id, execution_id=instance.execution_id, tell=told.append)


def _removed(instance: Instance) -> NotFound:
    return NotFound(
        f"run {instance.run_id!r} of workflow {instance.entity_id!r} was removed from the store, with its result"
    )


def _continued(instance: Instance, closing: events.WorkflowContinued) -> NotFound:
    return NotFound(
        f"run {instance.run_id!r} of workflow {instance.entity_id!r} has no result: it was continued as new, "
        f"in run {closing.run_id!r}; use a handle of that run, or one without run_id to follow the workflow to its end"
    )


async def wait_for_chain(
    store: Store, instance: Instance, until: int | None, *, pinned: bool
) -> tuple[Instance, events.Event | None] | None:
    """Wait for the end of a chain, or of one run if *pinned*; return the last execution and the entry that closed it.

    Return None if *until* passes first. A pinned run that was continued as new has no result: `NotFound`.
    """
    told: list[events.Event] = []
    while await store.wait(_end_of(instance, told), until):
        closing: events.Event | None = None
        unread: NotFound | None = None
        try:
            closing = told.pop() if told else await closing_event(store, instance)
        except NotFound as archived:
            unread = archived  # a generation that is closed for long; those that followed are in the store
        if isinstance(closing, events.WorkflowCompleted | FlowCompleted):
            return instance, closing
        if isinstance(closing, events.WorkflowContinued) and pinned:
            raise _continued(instance, closing)
        successor = await (newest_of_run if pinned else newest)(store, instance)
        if successor.execution_id == instance.execution_id:
            if closing is None:
                raise unread or _removed(instance)
            return instance, closing
        instance = successor
    return None
