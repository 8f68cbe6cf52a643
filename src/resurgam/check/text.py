"""A report as people read it."""

from collections.abc import Iterator, Sequence
from typing import Final

from resurgam.check.examined import Outcome, Row, Run
from resurgam.check.groups import Group, Report

_IDS: Final = 3
"""Ids that are named of many."""

_TITLES: Final = {
    Outcome.DIVERGES: "would diverge",
    Outcome.FAILS: "would fail",
    Outcome.UNREADABLE: "cannot be read",
    Outcome.UNDECIDED: "undecided",
}


def lines(report: Report, python: str) -> Iterator[str]:
    """Return the whole: findings first, then what is undecided, what else is to be known, and the sum."""
    for group in report.of(Outcome.UNREADABLE, Outcome.FAILS, Outcome.DIVERGES):
        yield from _group(group)
        yield ""
    for group in report.of(Outcome.UNDECIDED):
        yield from _group(group)
        yield ""
    yield from warnings(report, python)
    yield from notes(report)
    yield summary(report)


def warnings(report: Report, python: str) -> Iterator[str]:
    """Return what is to be known beside the findings."""
    for name, count in sorted(report.unknown.items()):
        yield f"{_runs(count)} of workflow {name!r} not checked: MODULE has no such workflow"
    for other, count in sorted(report.pythons.items()):
        if other != python:
            yield (
                f"{_runs(count)} begun on Python {other}, this is {python}: exact replay is promised on one minor "
                f"only; check with {other} too"
            )


def notes(report: Report) -> Iterator[str]:
    """Say of each ``ctx.removed`` whether it is still needed."""
    for workflow, note, held in report.settled_notes():
        if held:
            yield f"{workflow}: keep {note}: {_runs(held)} hold{'s' * (held == 1)} that call"
        else:
            yield f"{workflow}: {note} may be taken out: no open run holds that call"


def summary(report: Report) -> str:
    """Return the whole in one line."""
    if not report.runs:
        return "no open runs"
    counts = report.counts
    found = len(report.of(Outcome.DIVERGES))
    parts = [f"{counts[Outcome.FITS]:,} fit", f"{counts[Outcome.DIVERGES]:,} would diverge"]
    if found:
        parts[-1] += f" ({found} finding{'s' * (found != 1)})"
    parts += [f"{counts[o]:,} {_TITLES[o]}" for o in (Outcome.FAILS, Outcome.UNREADABLE) if counts[o]]
    parts.append(f"{counts[Outcome.UNDECIDED]:,} undecided")
    if report.unknown:
        parts.append(f"{report.unknown.total():,} not in MODULE")
    return f"{_runs(report.runs)}: {', '.join(parts)}{' (there are more: --limit)' if report.limited else ''}"


def _group(group: Group) -> Iterator[str]:
    detail = group.detail
    yield f"{group.workflow}: {_runs(len(group.runs))} {_TITLES[group.outcome]}: {named(group.runs)}"
    yield f"  {detail.message}"
    if detail.source is not None:
        yield f"  {detail.source}: {detail.source.text}"
    if detail.view:
        yield ""
        assert group.shown is not None
        yield from columns(detail.view, group.shown.entity_id)
    if group.outcome is Outcome.DIVERGES:
        yield ""
        yield from _remedy(group)


def columns(view: Sequence[Row], entity_id: str) -> Iterator[str]:
    """Return the two columns: history and code."""
    places = max(len(row.location) for row in view)
    cells = [
        (f"{row.location:{places}}  {'' if row.version is None else f'v{row.version}':3} {row.history}", row)
        for row in view
    ]
    heading = f"history of {entity_id}"
    width = max(len(heading), *(len(left) for left, _ in cells))
    yield f"      {heading:{width}}    code"
    for left, row in cells:
        yield f"    {'>' if row.here else ' '} {left:{width}}    {row.code}".rstrip()


def _remedy(group: Group) -> Iterator[str]:
    if not group.remedy:
        yield "  no local edit fits: bring back the code that wrote these histories, or terminate the runs"
        return
    for number, edit in enumerate(group.remedy):
        yield f"  {'remedy: ' if number == 0 else 'and     '}{edit}"
    yield from (f"          {line}" for line in _proof(group))


def _proof(group: Group) -> Iterator[str]:
    """Return for whom the remedy is right."""
    helped = len(group.runs) - len(group.unhelped) - group.untried
    if helped == len(group.runs):
        yield f"tried: {'it fits' if helped == 1 else f'all {helped:,} fit'} with it"
    else:
        yield f"tried: {helped:,} of {len(group.runs):,} fit with it"
    if group.unhelped:
        yield f"not for {named(group.unhelped)}: bring back the code that wrote these histories, or terminate them"
    if group.untried:
        yield f"not tried on {group.untried:,}, whose histories are of many further shapes"
    if group.harmed:
        yield f"but {_runs(len(group.harmed))} that fit now would diverge with it: {named(group.harmed)}"


def named(runs: Sequence[Run]) -> str:
    """Return the ids of some runs."""
    ids = ", ".join(run.entity_id for run in runs[:_IDS])
    return ids if len(runs) <= _IDS else f"{ids} and {len(runs) - _IDS:,} more"


def _runs(count: int) -> str:
    return f"{count:,} run{'s' * (count != 1)}"
