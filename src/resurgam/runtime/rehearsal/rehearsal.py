"""Goes through the rest of a history on a throwaway coroutine, before anything new is begun.

When a replay meets a call that the history does not hold, while part of the history has not been matched yet, the code
may still come back to it, or not: an inserted step does, a mistake does not. So the run is rehearsed first: what is new
is answered by placeholders, nothing is written and nothing is started. A divergence that is met so is found before any
damage. Where the code looks at a placeholder, what it would do cannot be told, and the run goes on as it is.

"Fits" is no guarantee, since answers may come in another order than was tried; only "diverges" is acted upon, and only
if every order that was tried does.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS, COMMANDS_BY_TAG
from resurgam.core.edit import Check, Edit, Insert, Remove, merge_edits
from resurgam.core.errors import HistoryDiverged
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.matching.divergence import source
from resurgam.runtime.matching.mode import Rehearsing
from resurgam.runtime.matching.recorder import Recorder
from resurgam.runtime.matching.trial import Trial
from resurgam.runtime.rehearsal.placeholder import Inspected, Placeholder
from resurgam.runtime.replay.driver import Driver

Edits: TypeAlias = tuple[Edit, ...]

_STEPS: Final = 300
"""Answers of one rehearsal beyond as many as the history has entries; code that asks for more may do so for ever."""

_IN_A_ROW: Final = 50
"""New calls that are answered before one that is under way: a strand that goes on for ever keeps no other from it."""

_BEYOND: Final = 500
"""Answers beyond all that is recorded, where edits are tried out."""

_ENTRIES: Final = 20_000
"""Entries delivered in search of a remedy, over all rehearsals: a worker does this between the turns of others."""

_TRIES: Final = (5, 100)
"""Rehearsals in search of a remedy, at least and at most."""

_EDITS: Final = 6
"""Edits that a remedy has at most."""

_NOT_YET: Final = object()


class Undecided:
    """The code looked at what nobody knows yet, so whether it fits cannot be told; *source* is where it did."""

    def __init__(self, source: str = "") -> None:
        self.source = source


class Fits:
    """Nothing speaks against it.

    *new* are the calls that the history does not hold, *gone* those in it that an edit took for removed, with all that
    they did; *whole*, if the code has come to all others, and asks for no check by name that an edit has put back.
    """

    def __init__(self, new: Sequence[events.Command], gone: Sequence[events.Command], *, whole: bool) -> None:
        self.new = tuple(new)
        self.gone = tuple(gone)
        self.whole = whole

    @property
    def runs_again(self) -> bool:
        """Whether the code makes a call anew that the edits take for removed."""
        gone = {(entry.type, entry.name) for entry in self.gone if COMMANDS[type(entry)].has_effect}
        return any((entry.type, entry.name) in gone for entry in self.new)


Finding: TypeAlias = HistoryDiverged | Undecided | Fits


class Rehearsal:
    """One pass through a history and beyond it.

    An edit is about one call, the one with its number in its strand; *by_line* it is about its line of code, wherever
    and however often that is run, as it is when somebody has written it.
    """

    def __init__(
        self, workflow: Workflow[..., Any], log: Sequence[events.Event], edits: Edits = (), *, by_line: bool = False
    ) -> None:
        trial = Trial()
        self._mode = Rehearsing(trial)
        self._driver = driver = Driver(workflow, log, mode=self._mode)
        self._recorder, self._trial = driver.recorder, trial
        self._length = len(log)
        self._looked = self._beyond = False
        self._in_a_row = self._steps_beyond = 0
        self._looked_at = ""
        self._placeholder = Placeholder(self._on_look)
        by_place: dict[object, list[Edit]] = {}
        for edit in edits:
            scope = self._recorder.recorded.code_place(edit.scope)
            place: object = (edit.source or scope) if by_line else (scope, edit.call)
            by_place.setdefault(place, []).append(edit)
        trial.edits = by_place

    @property
    def recorder(self) -> Recorder:
        """The calls of the code, matched with its history."""
        return self._recorder

    def run(self, order: "Order") -> Finding:
        """Replay, then answer what is new, in this order, until nothing is left to be answered."""
        try:
            self._driver.replay()
            self._recorder.mode = replace(self._mode, unknown=self._placeholder)
            with self._recorder.loop:
                self._answer_all(order)
            return self._finding()
        except Inspected:
            return Undecided(self._looked_at)
        finally:
            self._driver.close()

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
            self._recorder.check_strands()
        self._looked = not self._beyond

    def _next_answer(self, order: "Order") -> "Callable[[], None] | None":
        # Items that a map no longer has count too: nobody can tell them from those it has not come to yet.
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
            # A step that is under way keeps the code from what is recorded behind it. Beyond all that is recorded, only
            # what else it would do is of interest: whether it makes calls again that an edit takes for removed.
            answer = self._answer_to(order, new=False)
            self._beyond = self._beyond or not left
        return answer or self._loop_answer() or self._answer_to(order, new=True)

    def _is_enough(self) -> bool:
        """Whether nothing more is to be learnt, now that the code has come to all that is recorded."""
        if not self._trial.edits:
            return self._recorder.matching == "location"
        self._steps_beyond += 1
        self._beyond = self._beyond or self._steps_beyond > _BEYOND
        return self._steps_beyond > _BEYOND

    def _answer_to(self, order: "Order", *, new: bool) -> "Callable[[], None] | None":
        return next(self._answers(order(self._waiting(new=new))), None)

    def _waiting(self, *, new: bool) -> "list[Durable[Any]]":
        """Return the calls that nobody has answered: those that the history does not hold, or those that it does."""
        last = self._recorder.log.recorded_seq
        return [future for seq, future in self._recorder.pending.futures.items() if (seq > last) == new]

    def _answers(self, waiting: "Sequence[Durable[Any]]") -> "Iterator[Callable[[], None]]":
        for future in waiting:
            if isinstance(future.command, events.LoopStarted):
                continue  # answered when its body has come to an end
            value = self._stand_in(future.command)
            if value is not _NOT_YET:
                yield partial(self._give, future, value)

    def _stand_in(self, command: events.Command) -> object:
        """Return what a call is given that nobody has the answer to yet."""
        if isinstance(command, events.RaceStarted):
            members = self._recorder.pending.races[command.seq].members
            index = next((index for index, member in enumerate(members) if member.done()), None)
            return _NOT_YET if index is None else (index, _outcome_of(members[index]))
        if isinstance(command, events.TimerStarted):
            return None
        if isinstance(command, events.ListenStarted) and len(command.names) > 1:
            return self._placeholder, self._placeholder
        return self._placeholder

    def _give(self, future: Durable[Any], value: object) -> None:
        self._recorder.pending.take(future.command.seq)
        if not future.done():
            future.set_result(value)

    def _loop_answer(self) -> "Callable[[], None] | None":
        """Let a loop go on that waits for the engine to write its checkpoint, or its end."""
        for loop in self._recorder.pending.loops.values():
            ref, done, variables = loop.command.seq, loop.done, self._recorder.state.values
            if loop.wants is events.LoopCheckpointed:
                entry = events.LoopCheckpointed(ref=ref, iteration=done, variables=variables, state=loop.state)
                return partial(loop.checkpointed, entry)
            if loop.wants is events.LoopCompleted:
                loop.wants = None
                completed = events.LoopCompleted(ref=ref, iteration=done, variables=variables, result=loop.value)
                return partial(self._give, self._recorder.pending.futures[ref], completed)
        return None

    def _finding(self) -> Finding:
        self._driver.check_orphans()
        if self._looked:
            return Undecided(self._looked_at)
        if self._driver.diverged is not None:
            return self._driver.diverged
        root = self._driver.root
        failed = root is not None and root.done() and (root.cancelled() or root.exception() is not None)
        if failed and not self._beyond:
            # Perhaps because of a placeholder; and what a failure means is for the run itself to say.
            return Undecided()
        new = [entry for entry in self._recorder.log.new if isinstance(entry, events.Command)]
        whole = self._recorder.recorded.first_missing() is None and not self._trial.asked_twice
        return Fits(new, self._trial.taken_out, whole=whole)

    def _on_look(self) -> None:
        self._looked_at = self._looked_at or source()
        self._looked = not self._beyond
        if self._driver.verdict.reason is None:
            self._driver.verdict.decide(Inspected())


Order: TypeAlias = "Callable[[Sequence[Durable[Any]]], Sequence[Durable[Any]]]"


def _timers_last(waiting: "Sequence[Durable[Any]]") -> "Sequence[Durable[Any]]":
    return sorted(waiting, key=lambda future: (isinstance(future.command, events.TimerStarted), future.command.seq))


def _as_asked(waiting: "Sequence[Durable[Any]]") -> "Sequence[Durable[Any]]":
    return waiting


def _last_first(waiting: "Sequence[Durable[Any]]") -> "Sequence[Durable[Any]]":
    return list(reversed(waiting))


_ORDERS: Final[tuple[Order, ...]] = (_timers_last, _as_asked, _last_first)


def rehearse(
    workflow: Workflow[..., Any], log: Sequence[events.Event], edits: Edits = (), *, by_line: bool = False
) -> Finding:
    """Say whether the code, with these edits, would come to the end of what is recorded."""
    first: Finding | None = None
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
    """Search for the fewest edits with which the code fits; none if there are none that do.

    Breadth first. Versions are tried before removals, and a call is not taken for removed that the code makes all the
    same: it would be run a second time.
    """
    ways: list[tuple[Edits, HistoryDiverged]] = [((), found)]
    least, most = _TRIES
    left = min(most, max(least, _ENTRIES // len(log)))
    for _ in range(_EDITS):
        further: list[tuple[Edits, HistoryDiverged]] = []
        for edits, divergence in ways:
            for edit in _candidates(divergence):
                if left == 0:
                    return ()
                left -= 1
                tried = merge_edits((*edits, edit)) if by_line else (*edits, edit)
                finding = Rehearsal(workflow, log, tried, by_line=by_line).run(_timers_last)
                if is_remedy(finding):
                    return tried
                if isinstance(finding, HistoryDiverged) and _parting(finding) != _parting(divergence):
                    further.append((tried, finding))
        ways = further
    return ()


def asked(workflow: Workflow[..., Any], log: Sequence[events.Event], edits: Edits = ()) -> list[events.Command]:
    """Return what the code asks for, recorded or new, as far as it comes with these edits, which go by the line."""
    rehearsal = Rehearsal(workflow, log, edits, by_line=True)
    rehearsal.run(_timers_last)
    recorder = rehearsal.recorder
    return [*recorder.recorded.reached(), *(entry for entry in recorder.log.new if isinstance(entry, events.Command))]


def is_remedy(finding: Finding) -> bool:
    """Whether what was found with some edits speaks for them."""
    return isinstance(finding, Fits) and finding.whole and not finding.runs_again


def _parting(divergence: HistoryDiverged) -> tuple[object, int]:
    """Return where code and history part: the call and the entry; of two calls removed in a row only the entry differs."""
    return divergence.call, divergence.event_seq


def _candidates(divergence: HistoryDiverged) -> Iterator[Edit]:
    """Return the edits that may help where code and history part."""
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
