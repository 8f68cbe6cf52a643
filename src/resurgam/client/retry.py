"""Retry a failed workflow manually: start the next attempt with what earlier attempts recorded.

A child may have closed while its parent was closed. The next attempt requests it again: the store answers with the
result of one that completed, and one that failed is started anew.
"""

from resurgam.client import chain
from resurgam.client.access import Access
from resurgam.client.compensation import compensated_manually
from resurgam.core import event as events
from resurgam.core.errors import AlreadyExists, WrongState
from resurgam.core.lifecycle import WORKFLOW
from resurgam.core.state import Status
from resurgam.core.succession import next_attempt, without_children
from resurgam.runtime.context.children import child_key
from resurgam.runtime.system import new_id, python
from resurgam.store.protocol import Store
from resurgam.store.records import Creation, Exists, Instance


async def retry_failed(access: Access, failed: Instance) -> Instance:
    """Start the next attempt of a failed run, and return its execution."""
    if failed.kind != WORKFLOW:
        raise WrongState(f"{failed.entity_id!r} cannot be retried: only workflows can, got kind {failed.kind!r}")
    if failed.archived is not None:
        # Its children may be archived too, and the answers that they have sent are then in the archive.
        raise WrongState(
            f"{failed.entity_id!r} cannot be retried: its history is archived in {failed.archived}; bring it back first, by "
            f"`resurgam import --archived {failed.entity_id}`"
        )
    now = access.clock.now()
    log = await access.store.inspector.history(failed)
    started, inbox = next_attempt(
        log,
        execution_id=new_id(now),
        at=now,
        python=python(),
        manual=True,
        compensated=await compensated_manually(access.store, failed, log),
    )
    started = without_children(started, await _failed_children(access.store, started))
    [answer] = await access.store.create([Creation(started=started, inbox=inbox, follows=failed.execution_id)])
    if isinstance(answer, Exists):
        found = answer.instance
        raise AlreadyExists(
            f"workflow {failed.entity_id!r} (run {failed.run_id}) cannot be retried: its id has a newer execution "
            f"({found.status}, run {found.run_id}, attempt {found.attempt})"
        )
    return answer.instance


async def _failed_children(store: Store, started: events.WorkflowStarted) -> set[str]:
    """Return the runs of the children that closed without a result while no attempt was open."""
    newest = {child.run_id: await _newest(store, started, child) for child in started.children if child.open}
    return {run_id for run_id, found in newest.items() if found is not None and _is_lost(found)}


def _is_lost(child: Instance) -> bool:
    return child.status.terminal and child.status is not Status.COMPLETED


async def _newest(store: Store, started: events.WorkflowStarted, child: events.EarlierChild) -> Instance | None:
    """Return the newest execution that ran for the call of a child."""
    newest = await store.inspector.get(child.entity_id)
    if newest is not None and newest.parent is not None and newest.parent.key == child_key(started, child):
        return newest
    # The child's id was started again by another caller.
    first_run = await store.inspector.get(child.entity_id, child.run_id)
    return None if first_run is None else await chain.newest(store, first_run)
