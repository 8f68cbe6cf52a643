"""The effects of a commit beyond its own log: promises, children, messages, publications, a successor."""

from resurgam.core import event as events
from resurgam.core.outcome import ChildRequest, Message, Outcome, Succession
from resurgam.store import records as r
from resurgam.store.memory.lifecycle import Lifecycle
from resurgam.store.memory.promises import Promises
from resurgam.store.memory.rows import Row
from resurgam.store.memory.table import Table
from resurgam.store.memory.topics import Topics
from resurgam.store.rules import is_child, is_meant, is_same, there
from resurgam.store.watches import topic_of


class Outbox:
    """Apply the effects of a commit, and put the answers into the inbox of its instance."""

    def __init__(self, table: Table, lifecycle: Lifecycle, promises: Promises, topics: Topics) -> None:
        self._table = table
        self._lifecycle = lifecycle
        self._promises = promises
        self._topics = topics

    def send(self, row: Row, outcome: Outcome, paused: r.Pause | None) -> None:
        """Apply the effects of an outcome. *paused* is the pause of the instance before this commit."""
        for promise in outcome.promises:
            self._promises.open(row, promise)
        for promise_id in outcome.closed:
            self._promises.close(row, promise_id)
        for request in outcome.children:
            self._table.put(row, self.start_child(request, paused))
        for message in outcome.messages:
            entry = self.send_message(row, message)
            if entry is not None:
                self._table.put(row, entry)
        for publication in outcome.publications:
            self._topics.publish(publication, self._table.clock.now())
            self._table.touched.add(topic_of(publication.topic))
        if outcome.successor is not None:
            self.begin_successor(row, outcome.successor, paused)

    def start_child(self, request: ChildRequest, paused: r.Pause | None) -> events.Event:
        """Begin a child, unless its id is taken; return the answer for its parent."""
        started = request.started
        for known in self._table.executions_of(started.entity_id):
            if is_same(known.instance, started):
                return there(request.created, known.instance)
        newest = self._table.newest(started.entity_id)
        if newest is None or newest.instance.status.terminal:
            child = self._lifecycle.begin(started, r.Pause.TREE if paused is r.Pause.TREE else None)
            return there(request.created, child.instance)
        ours = started.parent is not None and is_child(newest.instance, started.parent.key)
        return there(request.created, newest.instance) if ours else request.refused

    def send_message(self, sender: Row, message: Message) -> events.Event | None:
        """Deliver a message to another instance; return the answer for its sender."""
        if message.promise_id is not None:
            settled = self._promises.settle(message.promise_id, message.event, closing=sender)
            if isinstance(settled, Row):
                return message.delivered
            return message.missing if isinstance(settled, r.Missing) else message.ended
        target = self._table.newest(message.entity_id)
        if target is None:
            return message.missing
        if target.instance.status.terminal or not is_meant(target.instance, message):
            return message.ended
        self._lifecycle.apply(target, message.event)
        return message.delivered

    def begin_successor(self, row: Row, succession: Succession, paused: r.Pause | None) -> None:
        """Begin the next execution, with its own first events and the unread ones of the execution before."""
        successor = self._lifecycle.begin(succession.started, paused)
        for event in succession.inbox:
            self._lifecycle.hand_on(successor, event)
        unread = [key for key, (_, entry) in row.inbox.items() if entry.event.type in succession.moves]
        for key in unread:
            self._lifecycle.hand_on(successor, row.inbox.pop(key)[1].event)
        self._promises.move(row, successor)
