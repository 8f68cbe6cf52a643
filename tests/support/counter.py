"""A second brain, as small as one can be: a counter that folds its inbox, without any coroutine.

Signals add numbers. Each time the total has grown by *every*, an activity reports it. The counter ends when the total
reaches *limit*, or when its one timer fires.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.errors import NotFound
from resurgam.core.event import Event, Started
from resurgam.core.identity import entity_of
from resurgam.core.location import Location
from resurgam.core.operation import Operation
from resurgam.core.outcome import ActivityRequest, Entry, Outcome, Withdrawal
from resurgam.core.state import InstanceState, Status

KIND: Final = "counter"
ACTIVITY_ANSWERS: Final = (events.ActivityCompleted, events.ActivityFailed, events.ActivityCancelled)
RECORDED: Final = (events.SignalReceived, events.ActivityRetryScheduled, *ACTIVITY_ANSWERS)


class Rule(msgspec.Struct, frozen=True):
    """The input of a counter; *patience* is in milliseconds."""

    limit: int
    every: int
    patience: int


class Counter:
    """One counter in memory. Nothing is kept but what the log says."""

    def __init__(self, log: Sequence[Event]) -> None:
        first = log[0]
        assert isinstance(first, Started)
        self.started = first
        self.total = self.reported = 0
        self.closed = self.paused = False
        self.brought: list[Entry] = []
        self._rule = msgspec.json.decode(first.input, type=Rule)
        self._state = InstanceState()
        self._new: list[Event] = []
        self._requests: list[ActivityRequest] = []
        self._clock = 0
        for entry in log:
            self._fold(entry)

    @property
    def last_seq(self) -> int:
        return self._state.last_seq

    @property
    def delivered_seq(self) -> int:
        return self._state.last_seq

    def advance(self, inbox: Sequence[Entry], clock: int, worker: str = "") -> Outcome:
        """Record each entry and what it leads to."""
        assert not self.closed
        self._clock, self._new, self._requests = clock, [], []
        self.brought = [entry for entry in inbox if entry.id is None]
        if self.last_seq == 1:
            self._append(events.TimerStarted(**_place(0), deadline=clock + self._rule.patience))
        for entry in inbox:
            self._take(entry.event)
        timer = self._timer
        if timer is not None and timer.deadline <= clock and self._state.ended is None:
            self._append(events.TimerFired(ref=timer.seq))
            self._end()
        return self._outcome(inbox)

    def record_late(self, inbox: Sequence[Entry], clock: int) -> Outcome:
        """Record answers of activities that outlived the counter; drop everything else."""
        self._clock = clock
        for entry in inbox:
            if isinstance(entry.event, ACTIVITY_ANSWERS) and not self._state.deactivated:
                self._record(entry.event)
        self._deactivate()
        return self._outcome(inbox)

    def begin(self, refs: Collection[int]) -> Sequence[Event]:
        raise AssertionError("no request of a counter has a prepared entry")

    def holds(self, entry: Entry) -> bool:
        return False

    @property
    def wants_more(self) -> bool:
        return False

    def take_operations(self) -> Sequence[Operation]:
        return ()

    def is_open(self, ref: int) -> bool:
        return ref in self._state.open

    def log_failure(self) -> None:
        raise AssertionError("a counter cannot fail")

    def close(self) -> None:
        self.closed = True

    # What an entry leads to.

    def _take(self, event: Event) -> None:
        if self._state.ended is not None:
            if isinstance(event, ACTIVITY_ANSWERS):
                self._record(event)
        elif isinstance(event, RECORDED):
            self._record(event)
            if self.total - self.reported >= self._rule.every:
                self._schedule()
            if self.total >= self._rule.limit:
                self._end()

    def _record(self, event: Event) -> None:
        if self._state.accepts(event):
            self._append(event)

    def _schedule(self) -> None:
        place, queue = _place(self.last_seq), self.started.queue
        written = Raw(f"[{self.total}]".encode())
        entry = self._append(events.ActivityScheduled(**place, name="report", queue=queue, input=written))
        activity_id = entity_of(self.started.run_id, place["location"])
        self._requests.append(
            ActivityRequest(ref=entry.seq, name="report", queue=queue, input=written, entity_id=activity_id)
        )

    def _end(self) -> None:
        self._append(events.WorkflowCompleted(result=Raw(str(self.total).encode())))
        for request in self._requests:
            # Scheduled by this very commit, so no worker can have started it.
            self._append(events.ActivityCancelled(ref=request.ref))
        self._requests = []
        self._deactivate()

    def _deactivate(self) -> None:
        if not self._state.deactivated and not self._outstanding:
            self._append(events.WorkflowDeactivated())

    # The log.

    def _append(self, event: Event) -> Event:
        entry = msgspec.structs.replace(event, seq=self.last_seq + 1, at=max(self._clock, self._state.last_at))
        self._fold(entry)
        self._new.append(entry)
        return entry

    def _fold(self, entry: Event) -> None:
        self._state.apply(entry)
        match entry:
            case events.SignalReceived():
                self.total += msgspec.json.decode(entry.value, type=int)
            case events.ActivityScheduled():
                self.reported = self.total

    @property
    def _timer(self) -> events.TimerStarted | None:
        return next((one for one in self._state.open.values() if isinstance(one, events.TimerStarted)), None)

    @property
    def _outstanding(self) -> list[int]:
        return [seq for seq, one in self._state.open.items() if isinstance(one, events.ActivityScheduled)]

    def _outcome(self, inbox: Sequence[Entry]) -> Outcome:
        ended = self._state.ended is not None
        timer = self._timer
        cancelled = (events.ActivityCancelled(ref=ref, at=self._clock) for ref in self._outstanding)
        return Outcome(
            events=tuple(self._new),
            consumed=tuple(entry.id for entry in inbox if entry.id is not None),
            activities=tuple(self._requests),
            withdrawals=tuple(Withdrawal(one.ref, answered=False, entry=one) for one in cancelled) if ended else (),
            status=Status.COMPLETED if ended else Status.RUNNING,
            deactivated=self._state.deactivated,
            wake_at=None if timer is None or ended else timer.deadline,
        )


class CounterBrain:
    """Instances of kind ``counter``."""

    def load(
        self,
        name: str,
        log: Sequence[Event],
        *,
        signal_schemas: Mapping[str, Raw],
        paused: bool = False,
        running: Collection[int] = (),
    ) -> Counter:
        """Fold a log; the only counter that is known is named ``tally``."""
        if name != "tally":
            raise NotFound(f"there is no counter {name!r} here")
        return Counter(log)

    def record_late(self, log: Sequence[Event], inbox: Sequence[Entry], clock: int) -> Outcome:
        return Counter(log).record_late(inbox, clock)

    def answer(self, log: Sequence[Event], query: str, input: Raw) -> Raw:
        if query != "total":
            raise NotFound(f"a counter has no query {query!r}")
        return Raw(str(Counter(log).total).encode())


def start_counter(entity_id: str, at: int, rule: Rule, *, name: str = "tally", kind: str = KIND) -> Started:
    """Return the first entry of a counter."""
    return events.WorkflowStarted(
        kind=kind,
        seq=1,
        at=at,
        name=name,
        queue="default",
        entity_id=entity_id,
        execution_id=f"{entity_id}-execution",
        run_id=f"{entity_id}-run",
        tree_id=f"{entity_id}-run",
        python="",
        input=Raw(msgspec.json.encode(rule)),
    )


def _place(number: int) -> dict[str, Any]:
    return {"location": Location((number + 1,)), "command": f"Counter({number})"}
