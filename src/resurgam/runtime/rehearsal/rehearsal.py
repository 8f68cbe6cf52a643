"""Rehearse the rest of a history on a throwaway coroutine, before anything new is started.

When a replay makes a new call while recorded ones are unmatched, the code may still return to them: after an inserted
step it does, after a mistake it does not. So the run is rehearsed first: new calls are answered by placeholders,
nothing is written and nothing is started. A divergence found this way has done no damage. If the code inspects a
placeholder, its next call cannot be predicted, and the run continues as it is.

"Fits" is no guarantee, since answers may arrive in an order that was not tried. Only a divergence has consequences, and
only if the code diverges in every order that was tried.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS, COMMANDS_BY_TAG
from resurgam.core.edit import Check, Edit, Insert, Note, Remove, merge_edits
from resurgam.core.errors import HistoryDiverged
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.matching.divergence import source
from resurgam.runtime.matching.mode import Rehearsing
from resurgam.runtime.matching.recorder import Recorder
from resurgam.runtime.matching.trial import Trial
from resurgam.runtime.rehearsal.placeholder import Inspected, Placeholder, detach
from resurgam.runtime.replay.driver import Driver

Edits: TypeAlias = tuple[Edit, ...]

_STEPS: Final = 300
"""Answers of one rehearsal beyond the number of entries in the history; code that needs more may never end."""

_IN_A_ROW: Final = 50
"""New calls answered in a row before a recorded open one gets a turn, so that an endless branch does not starve others."""

_BEYOND: Final = 500
"""Answers beyond the recorded history, when edits are tried."""

_ENTRIES: Final = 20_000
"""Entries delivered in search of a remedy, over all rehearsals: the worker's other instances wait meanwhile."""

_TRIES: Final = (5, 100)
"""Minimum and maximum number of rehearsals in search of a remedy."""

_EDITS: Final = 6
"""Maximum number of edits in a remedy."""

_NO_ANSWER: Final = object()


class Undecided:
    """The code inspected a placeholder at *source*, so whether it fits is unknown."""

    def __init__(self, source: str = "") -> None:
        self.source = source


class Fits:
    """The code did not diverge.

    *new* are calls that the history does not hold, *gone* recorded ones that an edit marked as removed, with all that
    they did. *whole*: the code has reached all others, and makes no named version check that an edit has added again.
    *notes* are the removal notes that the code reached.
    """

    def __init__(
        self, new: Sequence[events.Command], gone: Sequence[events.Command], *, whole: bool, notes: Sequence[Note]
    ) -> None:
        self.new = tuple(new)
        self.gone = tuple(gone)
        self.whole = whole
        self.notes = tuple(notes)

    @property
    def runs_again(self) -> bool:
        """Whether the code makes a call again that the edits mark as removed."""
        gone = {(entry.type, entry.name) for entry in self.gone if COMMANDS[type(entry)].has_effect}
        return any((entry.type, entry.name) in gone for entry in self.new)


Prediction: TypeAlias = HistoryDiverged | Undecided | Fits


class Rehearsal:
    """One pass through a history and beyond.

    An edit applies to one call, given by its number in its scope; with *by_line*, to a line of code, wherever and
    however often that runs, as an edit in the source does.
    """

    def __init__(
        self, workflow: Workflow[..., Any], log: Sequence[events.Event], edits: Edits = (), *, by_line: bool = False
    ) -> None:
        trial = Trial()
        self._mode = Rehearsing(trial)
        self._driver = driver = Driver(workflow, log, mode=self._mode)
        self._recorder, self._trial = driver.recorder, trial
        self._length = len(log)
        self._inspected = self._beyond = False
        self._in_a_row = self._steps_beyond = 0
        self._inspected_at = ""
        self._placeholder = Placeholder(self._on_inspect)
        by_call: dict[object, list[Edit]] = {}
        for edit in edits:
            scope = self._recorder.recorded.code_location(edit.scope)
            key: object = (edit.source or scope) if by_line else (scope, edit.call)
            by_call.setdefault(key, []).append(edit)
        trial.edits = by_call

    @property
    def recorder(self) -> Recorder:
        """The calls of the code, matched with its history."""
        return self._recorder

    def run(self, order: "Order") -> Prediction:
        """Replay, then answer open calls in this order until none is left."""
        try:
            self._driver.replay()
            self._recorder.mode = replace(self._mode, unknown=self._placeholder)
            with self._recorder.loop:
                self._answer_all(order)
            return self._prediction()
        except Inspected:
            return Undecided(self._inspected_at)
        finally:
            self._driver.close()
            detach(self._placeholder)

    def _answer_all(self, order: "Order") -> None:
        for _ in range(_STEPS + self._length):
            if not self._driver.goes_on:
                return
            answer = self._next_answer(order)
            if answer is None:
                return
            self._recorder.loop.open = True
            try:
                answer()
                self._recorder.loop.run()
                self._driver.deliver_overdue()
            finally:
                self._recorder.loop.open = False
            self._recorder.ended_scopes.check(self._recorder.verdict)
        self._inspected = not self._beyond

    def _next_answer(self, order: "Order") -> "Callable[[], None] | None":
        # Items that a map no longer has count too: they look like items that it has not reached yet.
        counted = self._recorder.matching == "location" or self._driver.orphans_fail
        left = counted and bool(self._recorder.recorded.unreached())
        edits = bool(self._trial.edits)
        if not left and self._is_enough():
            return None
        answer = None
        if self._in_a_row < _IN_A_ROW or not (left or edits):
            answer = self._loop_answer() or self._answer_to(order, new=True)
        self._in_a_row = 0 if answer is None else self._in_a_row + 1
        if answer is None and (left or edits):
            # An open step blocks the commands recorded after it. Beyond the recorded history, the only question is
            # whether the code makes a call again that an edit marks as removed.
            answer = self._answer_to(order, new=False)
            self._beyond = self._beyond or not left
        return answer or self._loop_answer() or self._answer_to(order, new=True)

    def _is_enough(self) -> bool:
        """Whether the rehearsal may end, once the code has reached all recorded commands."""
        if not self._trial.edits:
            return self._recorder.matching == "location"
        self._steps_beyond += 1
        self._beyond = self._beyond or self._steps_beyond > _BEYOND
        return self._steps_beyond > _BEYOND

    def _answer_to(self, order: "Order", *, new: bool) -> "Callable[[], None] | None":
        return next(self._answers(order(self._waiting(new=new))), None)

    def _waiting(self, *, new: bool) -> "list[Durable[Any]]":
        """Return the unanswered calls: those that the history does not hold (*new*), or those that it does."""
        last = self._recorder.log.recorded_seq
        return [future for seq, future in self._recorder.pending.futures.items() if (seq > last) == new]

    def _answers(self, waiting: "Sequence[Durable[Any]]") -> "Iterator[Callable[[], None]]":
        for future in waiting:
            if isinstance(future.command, events.LoopStarted):
                continue  # answered when its body ends
            value = self._assumed_answer(future.command)
            if value is not _NO_ANSWER:
                yield partial(self._settle, future, value)

    def _assumed_answer(self, command: events.Command) -> object:
        """Return the value with which a rehearsal answers an open call, or `_NO_ANSWER`."""
        if isinstance(command, events.RaceStarted):
            members = self._recorder.pending.races[command.seq].members
            index = next((index for index, member in enumerate(members) if member.done()), None)
            return _NO_ANSWER if index is None else (index, _outcome_of(members[index]))
        if isinstance(command, events.TimerStarted):
            return None
        if isinstance(command, events.ListenStarted) and len(command.names) > 1:
            return self._placeholder, self._placeholder
        return self._placeholder

    def _settle(self, future: Durable[Any], value: object) -> None:
        self._recorder.pending.take(future.command.seq)
        if not future.done():
            future.set_result(value)

    def _loop_answer(self) -> "Callable[[], None] | None":
        """Return the answer to a loop that waits for its checkpoint or its end to be written."""
        for loop in self._recorder.pending.loops.values():
            ref, done, variables = loop.command.seq, loop.done, self._recorder.state.values
            if loop.wants is events.LoopCheckpointed:
                entry = events.LoopCheckpointed(ref=ref, iteration=done, variables=variables, state=loop.state)
                return partial(loop.checkpointed, entry)
            if loop.wants is events.LoopCompleted:
                loop.wants = None
                completed = events.LoopCompleted(ref=ref, iteration=done, variables=variables, result=loop.value)
                return partial(self._settle, self._recorder.pending.futures[ref], completed)
        return None

    def _prediction(self) -> Prediction:
        self._driver.check_orphans()
        if self._inspected:
            return Undecided(self._inspected_at)
        if self._driver.diverged is not None:
            return self._driver.diverged
        root = self._driver.root
        failed = root is not None and root.done() and (root.cancelled() or root.exception() is not None)
        if failed and not self._beyond:
            # A placeholder may have caused the failure; the run itself decides what a failure means.
            return Undecided()
        new = [entry for entry in self._recorder.log.new if isinstance(entry, events.Command)]
        whole = self._recorder.recorded.first_missing() is None and not self._trial.asked_twice
        return Fits(new, self._trial.taken_out, whole=whole, notes=self._recorder.notes)

    def _on_inspect(self) -> None:
        self._inspected_at = self._inspected_at or source()
        self._inspected = not self._beyond
        if self._driver.verdict.reason is None:
            self._driver.verdict.decide(Inspected())


Order: TypeAlias = "Callable[[Sequence[Durable[Any]]], Sequence[Durable[Any]]]"


def _timers_last(waiting: "Sequence[Durable[Any]]") -> "Sequence[Durable[Any]]":
    return sorted(waiting, key=lambda future: (isinstance(future.command, events.TimerStarted), future.command.seq))


def _in_call_order(waiting: "Sequence[Durable[Any]]") -> "Sequence[Durable[Any]]":
    return waiting


def _reversed(waiting: "Sequence[Durable[Any]]") -> "Sequence[Durable[Any]]":
    return list(reversed(waiting))


_ORDERS: Final[tuple[Order, ...]] = (_timers_last, _in_call_order, _reversed)


def rehearse(
    workflow: Workflow[..., Any], log: Sequence[events.Event], edits: Edits = (), *, by_line: bool = False
) -> Prediction:
    """Decide whether the code, with these edits, reaches the end of the recorded history."""
    first: Prediction | None = None
    for order in _ORDERS:
        found = Rehearsal(workflow, log, edits, by_line=by_line).run(order)
        if not isinstance(found, HistoryDiverged):
            return found
        first = first or found
    assert first is not None
    return first


def find_remedy(
    workflow: Workflow[..., Any], log: Sequence[events.Event], found: HistoryDiverged, *, by_line: bool = False
) -> Edits:
    """Search for the fewest edits with which the code fits; return none if the search fails.

    Breadth first. Versions are tried before removals. A call that the code still makes is not marked as removed: it
    would run a second time.
    """
    level: list[tuple[Edits, HistoryDiverged]] = [((), found)]
    least, most = _TRIES
    left = min(most, max(least, _ENTRIES // len(log)))
    for _ in range(_EDITS):
        next_level: list[tuple[Edits, HistoryDiverged]] = []
        for edits, divergence in level:
            for edit in _candidates(divergence):
                if left == 0:
                    return ()
                left -= 1
                tried = merge_edits((*edits, edit)) if by_line else (*edits, edit)
                finding = Rehearsal(workflow, log, tried, by_line=by_line).run(_timers_last)
                if is_remedy(finding):
                    return tried
                if isinstance(finding, HistoryDiverged) and _divergence_point(finding) != _divergence_point(divergence):
                    next_level.append((tried, finding))
        level = next_level
    return ()


def calls_made(workflow: Workflow[..., Any], log: Sequence[events.Event], edits: Edits = ()) -> list[events.Command]:
    """Return the calls that the code makes with these edits, applied by line: recorded ones, then new ones."""
    rehearsal = Rehearsal(workflow, log, edits, by_line=True)
    rehearsal.run(_timers_last)
    recorder = rehearsal.recorder
    return [*recorder.recorded.reached(), *(entry for entry in recorder.log.new if isinstance(entry, events.Command))]


def is_remedy(finding: Prediction) -> bool:
    """Whether the edits of a rehearsal that ended like this are a remedy."""
    return isinstance(finding, Fits) and finding.whole and not finding.runs_again


def _divergence_point(divergence: HistoryDiverged) -> tuple[object, int]:
    """Return the call and the entry at which code and history differ; two calls removed in a row share the call."""
    return divergence.call, divergence.event_seq


def _candidates(divergence: HistoryDiverged) -> Iterator[Edit]:
    """Yield the edits that may resolve a divergence."""
    if divergence.call is None or not isinstance(divergence.event, events.Command):
        return
    scope, call = divergence.call
    source, held = divergence.source, divergence.event
    if divergence.intent is not None:
        same = divergence.field == "version" and held.name == divergence.intent_name
        step = held.version - divergence.scope_version + (1 if same else 2)
        verb = COMMANDS[divergence.intent].verb
        yield Insert(scope=scope, call=call, version=step, verb=verb, name=divergence.intent_name, source=source)
    if isinstance(held, events.VersionChecked):
        yield Check(scope=scope, call=call, version=held.answer, name=held.name, source=source)
        return
    kind = held.removed if isinstance(held, events.StepRemoved) else held.type
    verb = COMMANDS_BY_TAG[kind].verb
    yield Remove(scope=scope, call=call, kind=kind, verb=verb, name=held.name, source=source)


def _outcome_of(member: "asyncio.Future[Any]") -> object:
    return None if member.cancelled() or member.exception() is not None else member.result()
