"""Who is meant, and what they are told: the rules that every backend follows."""

from collections.abc import Iterable

import msgspec

from resurgam.core import event as events
from resurgam.core.outcome import Entry, Message
from resurgam.store import records as r


def settlement(event: events.Event, promise_id: str) -> events.Event:
    """Return what settles a promise, with the id by which the execution knows which one."""
    return msgspec.structs.replace(event, promise_id=promise_id) if isinstance(event, events.PromiseAnswer) else event


def overtakes(news: Iterable[Entry]) -> bool:
    """Whether a strict commit would be wrong if it had not seen these: the end of a child, the settlement of a promise."""
    return any(isinstance(entry.event, events.ChildAnswer | events.PromiseAnswer) for entry in news)


def is_child(instance: r.Instance, key: str) -> bool:
    """Whether an instance was begun by the call with this key, or follows one that was."""
    return instance.parent is not None and instance.parent.key == key


def is_same(instance: r.Instance, started: events.Started) -> bool:
    """Whether an instance is the very execution that is to be begun: then that is done already."""
    return (instance.run_id, instance.attempt) == (started.run_id, started.attempt)


def is_meant(instance: r.Instance, message: Message) -> bool:
    """Whether a message is for this execution of its entity."""
    of_run = message.run_id in (None, instance.run_id)
    return of_run and (message.key is None or is_child(instance, message.key))


def there(created: events.Event, child: r.Instance) -> events.Event:
    """Return what a parent is told of its child that is there, with the execution that it has."""
    if isinstance(created, events.ChildStarted):
        return msgspec.structs.replace(created, execution_id=child.execution_id)
    return created
