"""Replays one run after another against the code, and remembers which remedies have helped."""

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
"""Histories for which a remedy is looked for in vain before the same finding is given up."""

_OWN_VALUES: Final = frozenset({"input"})
"""Fields whose values are each run's own."""


class Examiner:
    """What one process knows of the code and of the runs that it has seen."""

    def __init__(self, find: Callable[[str], Workflow[..., Any] | None]) -> None:
        self._find = find
        self._remedies: dict[tuple[str, ...], Edits] = {}
        self._by_shape: dict[tuple[tuple[str, ...], str], Edits | None] = {}
        self._in_vain: Counter[tuple[str, ...]] = Counter()
        self._told: set[tuple[str, ...]] = set()

    def examine(self, run: Run, log: Sequence[events.Event]) -> Examined:
        """Say how the code stands to a run."""
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
        """Return what there is to say of a run whose history cannot be read."""
        key = (run.workflow, "unreadable", type(error).__name__)
        return Examined(run=run, outcome=Outcome.UNREADABLE, key=key, detail=Detail(message=describe(error)))

    def try_out(self, run: Run, log: Sequence[events.Event], edits: Edits) -> Outcome:
        """Say how the code stands to a run once edits are made."""
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
            place, what = raised_at(finding.error), describe(finding.error)
            outcome, key = Outcome.FAILS, (run.workflow, "fails", place, what.partition(":")[0])
            source = source_of(place) or definition_of(workflow)
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
        first = key not in self._told
        self._told.add(key)
        return first

    def _remedy(
        self,
        workflow: Workflow[..., Any],
        log: Sequence[events.Event],
        error: HistoryDiverged,
        key: tuple[str, ...],
        shape: str,
    ) -> Edits | None:
        """Return edits with which the run fits: those that helped others, or its own; none if there are none."""
        if (key, shape) in self._by_shape:
            return self._by_shape[key, shape]
        known = self._remedies.get(key, ())
        if known and self._helps(workflow, log, known):
            found: Edits | None = known
        elif self._in_vain[key] >= _SEARCHES:
            found = None
        else:
            found = find_remedy(workflow, log, error, by_line=True)
            self._in_vain[key] += not found
            self._remedies[key] = merge_edits((*known, *found))
        self._by_shape[key, shape] = found
        return found

    def _helps(self, workflow: Workflow[..., Any], log: Sequence[events.Event], edits: Edits) -> bool:
        return is_remedy(rehearse(workflow, log, edits, by_line=True))


def key_of(workflow: str, error: HistoryDiverged) -> tuple[str, ...]:
    """Return what is the same for runs that diverge for the same reason: the line of code, and what differs there."""
    values = (error.code_value, error.history_value)
    if error.field in _OWN_VALUES:
        values = ("", "")
    elif error.event is None:  # about an exception, whose text may name the run's own data
        values = (error.code_value.partition(":")[0], error.history_value)
    return (workflow, type(error).__name__, error.source, error.field, *values)


def shape_of(log: Sequence[events.Event]) -> str:
    """Return a fingerprint of what a history asked for and where; what came of it is left out."""
    digest = blake2b(digest_size=12)
    for entry in log:
        if isinstance(entry, events.Command):
            digest.update(f"{entry.type} {entry.name} {entry.version} {entry.location}\n".encode())
    return digest.hexdigest()


def _undecided(workflow: Workflow[..., Any], finding: Finding) -> Detail:
    assert finding.undecided is not None
    steps = ", ".join(dict.fromkeys(entry.name or entry.type for entry in finding.new))
    where = source_of(finding.undecided.source)
    looked = "the code looks at the result of" if where else "it cannot be told where the code goes after"
    message = f"{looked} a step that has not run yet ({steps}); whether it fits shows when that has run"
    return Detail(message=message, source=where or definition_of(workflow))
