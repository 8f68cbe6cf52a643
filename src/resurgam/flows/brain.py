"""The plan brain: instances of kind ``flow``. Each is a fold over its log, and advances by `decide`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.errors import NotFound
from resurgam.core.event import NULL, Event, Started
from resurgam.core.failure import root_type
from resurgam.core.operation import Operation
from resurgam.core.outcome import Entry, Message, Outcome, Withdrawal
from resurgam.core.state import Status
from resurgam.flows.answers import translated
from resurgam.flows.catalog import Catalog
from resurgam.flows.children import ChildSteps, about_child, plan_from_catalog
from resurgam.flows.decide import begin_work, decide, wake_at
from resurgam.flows.judge import Judge
from resurgam.flows.requests import activity_request, is_activity, is_answered_later, notify_parent
from resurgam.flows.state import FlowState, FlowStatus


class LiveFlow:
    """One flow in memory."""

    def __init__(self, log: Sequence[Event], judge: Judge, catalog: Catalog | None = None) -> None:
        self.closed = False
        self.brought: Sequence[Entry] = ()
        self._state = FlowState(log)
        self._judge = judge
        self._catalog = catalog
        self._children = ChildSteps(self._state, judge)
        # A commit puts everything on queues that the flow hands over by then, so what a log hands over is there.
        self._state.fresh.clear()
        self._new: list[Event] = []

    @property
    def started(self) -> Started:
        """The first entry of its log."""
        return self._state.started

    @property
    def last_seq(self) -> int:
        """The ``seq`` of the newest entry."""
        return self._state.last_seq

    @property
    def delivered_seq(self) -> int:
        """The same: a flow takes in every entry at once."""
        return self._state.last_seq

    @property
    def paused(self) -> bool:
        """Whether it is paused: nothing new starts."""
        return self._state.paused

    @property
    def wants_more(self) -> bool:
        """Nothing: an advance brings the flow to rest."""
        return False

    def begin(self, refs: Collection[int]) -> Sequence[Event]:
        """Record that the first attempts of work items begin."""
        state, begun = self._state, len(self._new)
        for number in refs:
            item = state.items.get(number)  # none for a compensation
            if item is not None:
                self._new.append(begin_work(state, number, item))
        return self._new[begun:]

    def holds(self, entry: Entry) -> bool:
        """Nothing: every entry is consumed."""
        return False

    def take_operations(self) -> Sequence[Operation]:
        """Return nothing: all work of a flow is on queues."""
        return ()

    def is_open(self, ref: int) -> bool:
        """Whether a work item or a compensation still waits for its result."""
        return ref in self._state.outstanding

    def log_failure(self) -> None:
        """A failed flow says why in its log; no exception has left any code."""

    def close(self) -> None:
        """Do not advance it any more."""
        self.closed = True

    def advance(self, inbox: Sequence[Entry], clock: int, worker: str = "") -> Outcome:
        """Record each entry and what it leads to; then what the time leads to."""
        assert not self.closed
        state, self._new = self._state, []
        self.brought = [entry for entry in inbox if entry.id is None]
        if self._catalog is not None:
            self._plan(self._catalog, clock)
        for entry in inbox:
            is_child = isinstance(entry.event, events.ChildStarted | events.ChildAnswer)
            for event in (about_child if is_child else translated)(state, entry.event):
                self._decide(event, clock)
        if not state.activated or state.touched or state.wiring.timed or state.status is not FlowStatus.ACTIVE:
            self._decide(None, clock)
        stops = tuple(self._advance_children(clock)) if state.wiring.has_children else ()
        if state.has_failures or state.status is not FlowStatus.ACTIVE:
            for number in self._given_up():
                self._decide(fe.WorkCancelled(ref=number, step=state.items[number].step), clock)
        return self._outcome(inbox, clock, stops)

    def _advance_children(self, clock: int) -> Iterator[Message]:
        """Make the requests of children; yield the messages to those that are not waited for any more."""
        while failures := list(self._children.prepare()):
            for failed in failures:
                self._decide(failed, clock)
        yield from self._children.cancel(self._new, clock)

    def _given_up(self) -> Sequence[int]:
        """Return the work items whose results cannot come, or are no longer waited for.

        What was handed over by an entry of this advance, and dropped by a later one, was never begun. A child has a log
        of its own, which tells its end; an instance that has ended is not told of it.
        """
        state = self._state
        dropped = [one for one in state.fresh if not state.is_wanted(one)]
        if state.status is FlowStatus.ACTIVE:
            return dropped
        return dropped + [one for one in state.outstanding if one not in dropped and not is_activity(state, one)]

    def _decide(self, event: Event | None, clock: int) -> None:
        if not self._state.deactivated:
            self._new += decide(self._state, event, self._judge, clock)

    def _plan(self, catalog: Catalog, clock: int) -> None:
        """Plan a flow that was started without a plan, when it begins."""
        self._catalog, state = None, self._state
        if not state.planned and not state.activated and state.status is FlowStatus.ACTIVE:
            self._decide(plan_from_catalog(state, catalog, self._judge), clock)

    def _outcome(self, inbox: Sequence[Entry], clock: int, stops: Sequence[Message]) -> Outcome:
        state = self._state
        is_active = state.status is FlowStatus.ACTIVE
        withdrawn = tuple(self._withdrawals(clock)) if state.has_failures or not is_active else ()
        handed_over = list(state.fresh)
        if state.wiring.has_children:
            handed_over = [one for one in handed_over if is_activity(state, one)]
        state.fresh.clear()
        ends = not is_active and any(isinstance(entry, fe.FlowDigestUpdated) for entry in self._new)
        return Outcome(
            events=tuple(self._new),
            consumed=tuple([entry.id for entry in inbox if entry.id is not None]),
            activities=tuple([activity_request(state, one) for one in handed_over]),
            withdrawals=withdrawn,
            children=tuple(self._children.take_requests()) if state.wiring.has_children else (),
            messages=(*stops, *(notify_parent(state, clock) if ends else ())),
            status=Status.RUNNING if is_active else Status(state.status),
            deactivated=state.deactivated,
            wake_at=wake_at(state, self._judge, clock) if state.wiring.timed else None,
            failure=None if state.failure is None else root_type(state.failure.cause or state.failure),
        )

    def _withdrawals(self, clock: int) -> Iterator[Withdrawal]:
        """Withdraw what nobody waits for, if no worker has begun it.

        This is asked for again with every commit, since a failed attempt may be retried. An async item is withdrawn only if
        no attempt has ever begun: its service may have accepted it, which this flow need not know yet. Its activity finds
        out by itself that it is not wanted.
        """
        state = self._state
        for one in state.outstanding:
            if one not in state.fresh and not state.is_wanted(one) and is_activity(state, one):
                entry, is_async = events.ActivityCancelled(at=clock, ref=one), is_answered_later(state, one)
                yield Withdrawal(one, answered=False, entry=entry, never_started=is_async)


class ReadsCatalog(Protocol):
    """Where the catalog of a store is read."""

    async def read(self) -> Catalog:
        """Return the catalog as it is now."""
        ...


class _Planned(msgspec.Struct):
    """Of the input of a flow, only whether there is a plan."""

    plan: Raw = NULL


class FlowBrain(msgspec.Struct):
    """Instances of kind ``flow``. The plan is in the log, so every worker knows every flow.

    A flow that a workflow has started has none at first: it is planned from the *catalog*, read after the flow was claimed.
    """

    judge: Judge
    reader: ReadsCatalog | None = None
    catalog: Catalog | None = None

    def wants_preparation(self, log: Sequence[Event]) -> bool:
        """Whether a flow has to be planned, so that the catalog must be read."""
        first = log[0]
        if not isinstance(first, fe.FlowStarted) or first.parent is None:
            return False
        activated = any(isinstance(entry, fe.FlowActivated) for entry in log)
        return not activated and msgspec.json.decode(first.input, type=_Planned).plan == NULL

    async def prepare(self) -> None:
        """Read the catalog."""
        if self.reader is not None:
            self.catalog = await self.reader.read()

    def load(
        self,
        name: str,
        log: Sequence[Event],
        *,
        signal_schemas: Mapping[str, Raw],
        paused: bool = False,
        running: Collection[int] = (),
    ) -> LiveFlow:
        """Fold a log."""
        wanting = self.catalog is None and self.wants_preparation(log)
        if wanting:
            raise NotFound(f"flow {name!r} has to be planned, and this worker has no catalog of steps")
        return LiveFlow(log, self.judge, self.catalog)

    def record_late(self, log: Sequence[Event], inbox: Sequence[Entry], clock: int) -> Outcome:
        """Record what arrived after the end; it changes no outcome."""
        return LiveFlow(log, self.judge).advance(inbox, clock)

    def answer(self, log: Sequence[Event], query: str, input: Raw) -> Raw:
        """A flow has no queries; its log says everything."""
        raise NotFound(f"a flow answers no query, got {query!r}; `resurgam flow show` shows its state")
