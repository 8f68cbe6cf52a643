"""Replay runs against the code, one after another, and remember which remedies helped."""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final

from resurgam.check.examined import Detail, Edits, Examined, Outcome, Run
from resurgam.check.view import definition_of, detail_of, source_of
from resurgam.core import event as events
from resurgam.core.edit import merge_edits
from resurgam.core.errors import HistoryDiverged, ResurgamError, describe
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.matching.divergence import raised_at
from resurgam.runtime.rehearsal.rehearsal import Undecided, find_remedy, is_remedy, rehearse
from resurgam.runtime.rehearsal.verify import Finding, verify

_SEARCHES: Final = 3
"""How many failed searches for a remedy end the search for a finding."""

_OWN_VALUES: Final = frozenset({"input"})
"""Fields whose values differ from run to run."""


class Examiner:
    """Examine runs in one process; keep the remedies found so far."""

    def __init__(self, find: Callable[[str], Workflow[..., Any] | None]) -> None:
        self._find = find
        self._remedies: dict[tuple[str, ...], Edits] = {}
        self._by_shape: dict[tuple[tuple[str, ...], str], Edits | None] = {}
        self._failed_searches: Counter[tuple[str, ...]] = Counter()
        self._detailed: set[tuple[str, ...]] = set()

    def examine(self, run: Run, log: Sequence[events.Event]) -> Examined:
        """Replay a run and return whether the code fits it."""
        workflow = self._find(run.workflow)
        if workflow is None:
            return Examined(run=run, outcome=Outcome.UNKNOWN)
        python = getattr(log[0], "python", "")
        try:
            finding = verify(workflow, log, remedy=False)
        except (ResurgamError, ValueError) as error:
            return self.unreadable(run, error)
        return self._examined(run, workflow, log, finding, python)

    def unreadable(self, run: Run, error: Exception) -> Examined:
        """Return the result for a run whose history cannot be read."""
        key = (run.workflow, "unreadable", type(error).__name__)
        return Examined(run=run, outcome=Outcome.UNREADABLE, key=key, detail=Detail(message=describe(error)))

    def try_edits(self, run: Run, log: Sequence[events.Event], edits: Edits) -> Outcome:
        """Return whether the code fits a run with edits laid over it."""
        workflow = self._find(run.workflow)
        assert workflow is not None
        with contextlib.suppress(ResurgamError, ValueError):
            found = rehearse(workflow, log, edits, by_line=True)
            if isinstance(found, Undecided):
                return Outcome.UNDECIDED
            return Outcome.FITS if is_remedy(found) else Outcome.DIVERGES
        return Outcome.UNREADABLE

    def _examined(
        self, run: Run, workflow: Workflow[..., Any], log: Sequence[events.Event], finding: Finding, python: str
    ) -> Examined:
        shape = shape_of(log)
        outcome, remedy, detail = Outcome.FITS, None, None
        key: tuple[str, ...] = ()
        if finding.diverged is not None:
            outcome, key = Outcome.DIVERGES, key_of(run.workflow, finding.diverged)
            remedy = self._remedy(workflow, log, finding.diverged, key, shape)
            if self._is_first(key):
                detail = detail_of(workflow, log, finding.diverged, remedy or ())
        elif finding.undecided is not None:
            outcome, key = Outcome.UNDECIDED, (run.workflow, "undecided", finding.undecided.source)
            detail = _undecided(workflow, finding) if self._is_first(key) else None
        elif finding.error is not None and not run.parked:
            line, what = raised_at(finding.error), describe(finding.error)
            outcome, key = Outcome.FAILS, (run.workflow, "fails", line, what.partition(":")[0])
            source = source_of(line) or definition_of(workflow)
            detail = Detail(message=f"the code raises {what}", source=source) if self._is_first(key) else None
        return Examined(
            run=run,
            outcome=outcome,
            python=python,
            shape=shape,
            key=key,
            remedy=remedy,
            detail=detail,
            notes=finding.notes,
        )

    def _is_first(self, key: tuple[str, ...]) -> bool:
        first = key not in self._detailed
        self._detailed.add(key)
        return first

    def _remedy(
        self,
        workflow: Workflow[..., Any],
        log: Sequence[events.Event],
        error: HistoryDiverged,
        key: tuple[str, ...],
        shape: str,
    ) -> Edits | None:
        """Return edits with which the run fits: those of other runs, else its own; empty if there are none."""
        if (key, shape) in self._by_shape:
            return self._by_shape[key, shape]
        known = self._remedies.get(key, ())
        if known and self._helps(workflow, log, known):
            found: Edits | None = known
        elif self._failed_searches[key] >= _SEARCHES:
            found = None
        else:
            found = find_remedy(workflow, log, error, by_line=True)
            self._failed_searches[key] += not found
            self._remedies[key] = merge_edits((*known, *found))
        self._by_shape[key, shape] = found
        return found

    def _helps(self, workflow: Workflow[..., Any], log: Sequence[events.Event], edits: Edits) -> bool:
        return is_remedy(rehearse(workflow, log, edits, by_line=True))


def key_of(workflow: str, error: HistoryDiverged) -> tuple[str, ...]:
    """Return a key that is the same for runs with the same divergence: the line of code, and the values that differ."""
    values = (error.code_value, error.history_value)
    if error.field in _OWN_VALUES:
        values = ("", "")
    elif error.event is None:  # an exception, whose text may contain data of the run
        values = (error.code_value.partition(":")[0], error.history_value)
    return (workflow, type(error).__name__, error.source, error.field, *values)


def shape_of(log: Sequence[events.Event]) -> str:
    """Return a digest of the commands of a history and their locations, without their answers."""
    digest = blake2b(digest_size=12)
    for entry in log:
        if isinstance(entry, events.Command):
            digest.update(f"{entry.type} {entry.name} {entry.version} {entry.location}\n".encode())
    return digest.hexdigest()


def _undecided(workflow: Workflow[..., Any], finding: Finding) -> Detail:
    assert finding.undecided is not None
    steps = ", ".join(dict.fromkeys(entry.name or entry.type for entry in finding.new))
    source = source_of(finding.undecided.source)
    why = "the code uses the result of" if source else "the path of the code is not known after"
    message = f"{why} a step that has not run yet ({steps}); whether the code fits is known when it has run"
    return Detail(message=message, source=source or definition_of(workflow))
