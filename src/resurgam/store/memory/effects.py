"""The effects of a commit beyond its own log: promises, children, messages, publications, a successor."""

from resurgam.core import event as events
from resurgam.core.outcome import ChildRequest, Message, Outcome, Succession
from resurgam.store import records as r
from resurgam.store.memory.lifecycle import Lifecycle
from resurgam.store.memory.promises import Promises
from resurgam.store.memory.rows import Row
from resurgam.store.memory.table import Table
from resurgam.store.memory.topics import Topics
from resurgam.store.rules import answer_child, child_pause, child_started, is_addressed, ran_for
from resurgam.store.watches import topic_key


class Effects:
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
            # The id of an instance that goes on in a successor, begun below, stays taken.
            taken = outcome.successor is not None and request.started.entity_id == row.instance.entity_id
            for entry in self.start_child(request, paused, taken=taken):
                self._table.put(row, entry)
        for message in outcome.messages:
            reply = self.send_message(row, message)
            if reply is not None:
                self._table.put(row, reply)
        for publication in outcome.publications:
            self._topics.publish(publication, self._table.clock.now())
            self._table.touched.add(topic_key(publication.topic))
        if outcome.successor is not None:
            self.begin_successor(row, outcome.successor, paused)

    def start_child(self, request: ChildRequest, paused: r.Pause | None, *, taken: bool = False) -> list[events.Event]:
        """Start a child, unless it ran for this request before or its id is taken; return the answers for its parent."""
        started = request.started
        known = self._table.executions_of(started.entity_id)
        ran = [row for row in known if ran_for(row.instance, started)]
        same = ran[0].instance if ran else None
        newest = known[-1].instance if known else None
        closed = not taken and newest is not None and newest.status.terminal
        answer = answer_child(request, same, newest, closed=closed)
        if answer is None:
            return [child_started(request, self._lifecycle.begin(started, child_pause(paused)).instance)]
        return [answer, *(row.answer for row in ran[-1:] if row.answer is not None)]

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
        if target.instance.status.terminal or not is_addressed(target.instance, message):
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
