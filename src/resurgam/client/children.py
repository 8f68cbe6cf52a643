"""The children that a failed attempt left behind, for a retry by hand.

A child that ends while its parent is closed has nobody to tell. The next attempt takes the child up again and must hear
of its end, or it would wait for ever.
"""

from resurgam.client import chain
from resurgam.core import event as events
from resurgam.runtime.execution.parent_close import key_of, telling
from resurgam.store.protocol import Store


async def ends_of_children(store: Store, started: events.WorkflowStarted) -> list[events.ChildAnswer]:
    """Return the answers of the children that this attempt takes up, of those that have ended by now."""
    answers = []
    for child in started.children:
        answer = await _end(store, started, child) if child.open else None
        if answer is not None:
            answers.append(answer)
    return answers


async def _end(store: Store, started: events.WorkflowStarted, child: events.EarlierChild) -> events.ChildAnswer | None:
    instance = await store.get(child.entity_id)
    if instance is None or instance.parent is None or instance.parent.key != key_of(started, child):
        # Its id was used again since.
        began = await store.get(child.entity_id, child.run_id)
        instance = None if began is None else await chain.newest(store, began)
    if instance is None:
        return None
    ended = await chain.ended_by(store, instance) if instance.status.terminal else None
    if ended is None:
        return None
    [first, *_] = await store.history(instance.execution_id)
    assert isinstance(first, events.WorkflowStarted)
    told = (message.event for message in telling(first, ended, ended.at))
    return next((answer for answer in told if isinstance(answer, events.ChildAnswer)), None)
