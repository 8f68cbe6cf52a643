"""Retry a failed workflow by hand: start the next attempt with what earlier attempts recorded.

A child that closes while its parent is closed has no open execution to report to. The next attempt adopts the child and
must receive its outcome, or it would wait for ever.
"""

from resurgam.client import chain
from resurgam.client.access import Access
from resurgam.client.compensation import compensated_by_hand
from resurgam.core import event as events
from resurgam.core.errors import AlreadyExists
from resurgam.core.succession import next_attempt, with_child_answers
from resurgam.runtime.context.children import child_key
from resurgam.runtime.execution.parent_close import notify_parent
from resurgam.runtime.system import new_id, python
from resurgam.store.protocol import Store
from resurgam.store.records import Creation, Delivery, Exists, Instance


async def retry_failed(access: Access, failed: Instance) -> Instance:
    """Start the next attempt of a failed run, and return its execution."""
    now = access.clock.now()
    log = await access.store.inspector.history(failed.execution_id)
    started, inbox = next_attempt(
        log,
        execution_id=new_id(now),
        at=now,
        python=python(),
        manual=True,
        compensated=await compensated_by_hand(access.store, failed, log),
    )
    started = with_child_answers(started, await _child_answers(access.store, started))
    [answer] = await access.store.create([Creation(started=started, inbox=inbox, follows=failed.execution_id)])
    if isinstance(answer, Exists):
        found = answer.instance
        raise AlreadyExists(
            f"workflow {failed.entity_id!r} (run {failed.run_id}) cannot be retried: its id has a newer execution "
            f"({found.status}, run {found.run_id}, attempt {found.attempt})"
        )
    # Children that closed in between, when neither attempt was open.
    late = await _child_answers(access.store, started)
    await access.store.deliver([Delivery(event=event, execution_id=started.execution_id) for event in late])
    return answer.instance


async def _child_answers(store: Store, started: events.WorkflowStarted) -> list[events.ChildAnswer]:
    """Return the outcomes of the closed children among those that this attempt adopts."""
    answers = []
    for child in started.children:
        answer = await _child_answer(store, started, child) if child.open else None
        if answer is not None:
            answers.append(answer)
    return answers


async def _child_answer(
    store: Store, started: events.WorkflowStarted, child: events.EarlierChild
) -> events.ChildAnswer | None:
    instance = await store.inspector.get(child.entity_id)
    if instance is None or instance.parent is None or instance.parent.key != child_key(started, child):
        # The child's id was started again by another caller.
        first_run = await store.inspector.get(child.entity_id, child.run_id)
        instance = None if first_run is None else await chain.newest(store, first_run)
    if instance is None:
        return None
    closing = await chain.closing_event(store, instance) if instance.status.terminal else None
    if closing is None:
        return None
    [first, *_] = await store.inspector.history(instance.execution_id)
    assert isinstance(first, events.WorkflowStarted)
    sent = (message.event for message in notify_parent(first, closing, closing.at))
    return next((event for event in sent if isinstance(event, events.ChildAnswer)), None)
