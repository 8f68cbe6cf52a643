"""The line of an execution: whatever it retries or continues, and whatever retries or continues it.

A later start of the same id is another line, and whoever waits for this one must not be given that one's result. What
belongs together has the same run, or hangs in one tree from the same call: a root from none, a child from its parent's.
"""

from typing import Final

from resurgam.core import event as events
from resurgam.core.errors import NotFound
from resurgam.core.state import ENDS, Status
from resurgam.store.protocol import Store
from resurgam.store.records import Closed, Instance
from resurgam.store.retention import same_line

_TAIL: Final = 8
"""Entries at the end of a history among which its outcome is looked for first; late results may follow it."""


async def ended_by(store: Store, instance: Instance) -> events.Event | None:
    """Return the entry that ended an execution; it is looked for at the end first, for a history may be long."""
    for last in (_TAIL, None):
        for entry in await store.history(instance.execution_id, last):
            if type(entry) in ENDS:
                return entry
    return None


async def newest(store: Store, instance: Instance) -> Instance:
    """Return the newest execution of a line, whatever of the same id was begun since."""
    found = await store.get(instance.entity_id)
    if found is not None and same_line(found, instance):
        return found
    found = await store.get(instance.entity_id, instance.run_id)
    while found is not None and found.status is Status.CONTINUED:
        ended = await ended_by(store, found)
        following = None
        if isinstance(ended, events.WorkflowContinued):
            following = await store.get(instance.entity_id, ended.run_id)
        if following is None:
            break
        found = following
    if found is None:
        raise NotFound(f"there is no workflow with id {instance.entity_id!r} and run {instance.run_id!r} any more")
    return found


async def following(store: Store, execution_id: str, ended: events.Event) -> str | None:
    """Return the execution right after one that *ended* so, None if there is none.

    A retry by hand is not recorded in the execution that failed: it is found by going back from the newest attempt.
    """
    if isinstance(ended, events.WorkflowContinued | events.WorkflowRetried):
        return ended.execution_id
    started = await _started(store, execution_id)
    if not isinstance(ended, events.WorkflowFailed) or started is None:
        return None
    found = await store.get(started.entity_id, started.run_id)
    later = None if found is None else await _started(store, found.execution_id)
    while later is not None and later.previous != execution_id:
        later = await _started(store, later.previous) if later.previous else None
    return None if later is None else later.execution_id


async def _started(store: Store, execution_id: str) -> events.WorkflowStarted | None:
    first = next(iter(await store.history(execution_id)), None)
    return first if isinstance(first, events.WorkflowStarted) else None


async def newest_of_run(store: Store, instance: Instance) -> Instance:
    """Return the newest attempt of the run that an execution belongs to."""
    return await store.get(instance.entity_id, instance.run_id) or instance


async def end_of(store: Store, instance: Instance, until: int | None) -> tuple[Instance, events.Event | None] | None:
    """Wait for the end of one execution and return it with the entry that ended it; None if *until* has come before."""
    if not await store.wait(Closed(execution_id=instance.execution_id), until):
        return None
    ended = await ended_by(store, instance)
    if ended is None:
        raise NotFound(
            f"execution {instance.execution_id!r} of workflow {instance.entity_id!r} is not kept any more, and with it "
            "its outcome"
        )
    if isinstance(ended, events.WorkflowContinued):
        raise _continued(instance, ended)
    return instance, ended


def _continued(instance: Instance, ended: events.WorkflowContinued) -> NotFound:
    return NotFound(
        f"run {instance.run_id!r} of workflow {instance.entity_id!r} has no result: it was continued as new, "
        f"in run {ended.run_id!r}; take a handle to that one, or one without a run_id to follow it to the end"
    )


async def follow(
    store: Store, instance: Instance, until: int | None, *, pinned: bool
) -> tuple[Instance, events.Event | None] | None:
    """Wait for the end of a line, with *pinned* of one run, and return its last execution and the entry that ended it.

    None if the moment *until* has come before. A pinned run that was continued has no end of its own: `NotFound`.
    """
    while await store.wait(Closed(execution_id=instance.execution_id), until):
        ended = await ended_by(store, instance)
        if isinstance(ended, events.WorkflowCompleted):
            return instance, ended
        if isinstance(ended, events.WorkflowContinued) and pinned:
            raise _continued(instance, ended)
        following = await (newest_of_run if pinned else newest)(store, instance)
        if following.execution_id == instance.execution_id:
            return instance, ended
        instance = following
    return None
