"""Group runs with the same finding, and find one remedy for all runs of a workflow."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from resurgam.check.examined import Detail, Edits, Examined, Outcome, Run
from resurgam.core.edit import Note, merge_edits

TRIED: Final = 1000
"""How many histories of different shapes a remedy is tried on, for each workflow."""

_NOTHING: Final = Detail(message="")

Key: TypeAlias = tuple[str, ...]


@dataclass(slots=True)
class Group:
    """Runs with the same finding.

    *detail* is that of the run *shown*. *remedy* is one for all of them, empty if there is none. *untried* counts runs
    with histories of shapes that it was not tried on; *unhelped* runs do not fit with it; *harmed* runs fit now and
    would not with it. *found* are the remedies of single runs.
    """

    workflow: str
    outcome: Outcome
    detail: Detail = _NOTHING
    shown: Run | None = None
    runs: list[Run] = field(default_factory=list)
    found: list[Edits] = field(default_factory=list)
    remedy: Edits = ()
    untried: int = 0
    unhelped: list[Run] = field(default_factory=list)
    harmed: list[Run] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """The findings for all open runs."""

    counts: Counter[Outcome] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    pythons: Counter[str] = field(default_factory=Counter)
    groups: dict[Key, Group] = field(default_factory=dict)
    limited: bool = False
    # How many runs hold a removed call, by the workflow and the note of the removal.
    notes: Counter[tuple[str, Note]] = field(default_factory=Counter)
    # Runs by the shape of their histories: a remedy is tried on one run of each shape.
    shapes: dict[tuple[str, Key, str], list[Run]] = field(default_factory=lambda: defaultdict(list))

    def add(self, examined: Examined) -> None:
        """Count a run, and add it to the group of its finding."""
        run, outcome = examined.run, examined.outcome
        self.counts[outcome] += 1
        if outcome is Outcome.UNKNOWN:
            self.unknown[run.workflow] += 1
        if examined.python:
            self.pythons[examined.python] += 1
        for note in {msgspec.structs.replace(note, holds=True) for note in examined.notes}:
            self.notes[run.workflow, note] += note in examined.notes
        if examined.shape:
            self.shapes[run.workflow, examined.key, examined.shape].append(run)
        if not examined.key:
            return
        group = self.groups.get(examined.key)
        if group is None:
            group = self.groups[examined.key] = Group(run.workflow, outcome)
        if examined.detail is not None and group.shown is None:
            # Not always the first run of the group: each process sends the detail of the first one that it has seen.
            group.detail, group.shown = examined.detail, run
        group.runs.append(run)
        if examined.remedy and examined.remedy not in group.found:
            group.found.append(examined.remedy)

    @property
    def runs(self) -> int:
        """How many runs were checked and are still open."""
        return self.counts.total() - self.counts[Outcome.ENDED]

    @property
    def bad(self) -> bool:
        """Whether some runs would diverge or fail, or cannot be read."""
        return any(self.counts[outcome] for outcome in (Outcome.DIVERGES, Outcome.FAILS, Outcome.UNREADABLE))

    def of(self, *outcomes: Outcome) -> list[Group]:
        """Return the groups with these outcomes, the largest first."""
        found = [group for group in self.groups.values() if group.outcome in outcomes]
        return sorted(found, key=lambda group: (-len(group.runs), group.workflow, group.detail.message))

    def settled_notes(self) -> list[tuple[str, Note, int]]:
        """Return the ``ctx.removed`` notes, each with the number of open runs that hold the removed call.

        Only of workflows whose runs all fit: another run may hold the call beyond the point that its replay reached.
        """
        doubtful = {*(group.workflow for group in self.groups.values()), *self.unknown}
        found = [(workflow, note, held) for (workflow, note), held in self.notes.items() if workflow not in doubtful]
        return [] if self.limited else sorted(found, key=lambda item: (item[0], item[1].source, str(item[1])))

    # The remedy.

    def trials(self) -> Iterator[tuple[Edits, list[Run]]]:
        """Yield, for each workflow with remedies, all their edits and the runs to try them on, one of each shape.

        The edits are tried together, because they are deployed together: where several findings need a version for one
        line, it gets the highest of them.
        """
        for workflow in dict.fromkeys(group.workflow for group in self.groups.values()):
            edits = self._edits(workflow)
            if edits:
                yield edits, [runs[0] for _, runs in self._shapes(workflow)[:TRIED]]

    def add_trial(self, edits: Edits, tried: Iterable[tuple[Run, Outcome]]) -> None:
        """Add the outcomes of a trial of edits."""
        outcomes = dict(tried)
        workflow = next(iter(outcomes)).workflow
        groups = {key: group for key, group in self.groups.items() if group.workflow == workflow and group.found}
        for group in groups.values():
            group.remedy = tuple(edit for edit in edits if _is_among(edit, group))
        for key, runs in self._shapes(workflow):
            outcome = outcomes.get(runs[0])
            if key in groups and outcome is None:
                groups[key].untried += len(runs)
            elif key in groups and outcome is not Outcome.FITS:
                groups[key].unhelped += runs
            elif not key and outcome is Outcome.DIVERGES:
                for group in groups.values():
                    group.harmed += runs

    def _edits(self, workflow: str) -> Edits:
        groups = (group for group in self.groups.values() if group.workflow == workflow)
        return merge_edits(edit for group in groups for edits in group.found for edit in edits)

    def _shapes(self, workflow: str) -> list[tuple[Key, list[Run]]]:
        """Return the runs of each shape: first those that need a remedy, then the most frequent shapes."""
        found = [(key, runs) for (name, key, _), runs in self.shapes.items() if name == workflow]
        return sorted(found, key=lambda item: (not item[0], -len(item[1])))


def _is_among(edit: object, group: Group) -> bool:
    """Whether this group needs an edit, or a lower version of it."""
    return any(merge_edits((edit, other)) == (edit,) for edits in group.found for other in edits)  # type: ignore[arg-type]
