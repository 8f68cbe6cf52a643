"""Write a report as text, for people."""

from collections.abc import Iterator, Sequence
from typing import Final

from resurgam.check.examined import Outcome, Row, Run
from resurgam.check.groups import Group, Report

_IDS: Final = 3
"""How many ids of a group are named."""

_TITLES: Final = {
    Outcome.DIVERGES: "would diverge",
    Outcome.FAILS: "would fail",
    Outcome.UNREADABLE: "cannot be read",
    Outcome.UNDECIDED: "undecided",
}


def lines(report: Report, python: str) -> Iterator[str]:
    """Yield the whole report: findings, undecided runs, warnings, notes and the summary."""
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
    """Yield warnings about unknown workflows and other Python versions."""
    for name, count in sorted(report.unknown.items()):
        yield f"{_runs(count)} of workflow {name!r} not checked: MODULE has no such workflow"
    for other, count in sorted(report.pythons.items()):
        if other != python:
            yield (
                f"{_runs(count)} started on Python {other}, this is {python}: exact replay is guaranteed on one minor "
                f"only; check with {other} too"
            )


def notes(report: Report) -> Iterator[str]:
    """Yield, for each ``ctx.removed``, whether it is still needed."""
    for workflow, note, held in report.settled_notes():
        if held:
            yield f"{workflow}: keep {note}: {_runs(held)} hold{'s' * (held == 1)} that call"
        else:
            yield f"{workflow}: {note} can be deleted: no open run holds that call"


def summary(report: Report) -> str:
    """Return the report in one line."""
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
    """Yield the view in two columns: history and code."""
    location_width = max(len(row.location) for row in view)
    cells = [
        (f"{row.location:{location_width}}  {'' if row.version is None else f'v{row.version}':3} {row.history}", row)
        for row in view
    ]
    heading = f"history of {entity_id}"
    width = max(len(heading), *(len(left) for left, _ in cells))
    yield f"      {heading:{width}}    code"
    for left, row in cells:
        yield f"    {'>' if row.here else ' '} {left:{width}}    {row.code}".rstrip()


def _remedy(group: Group) -> Iterator[str]:
    if not group.remedy:
        yield "  no local edit fits: restore the code that wrote these histories, or terminate the runs"
        return
    for number, edit in enumerate(group.remedy):
        yield f"  {'remedy: ' if number == 0 else 'and     '}{edit}"
    yield from (f"          {line}" for line in _trial(group))


def _trial(group: Group) -> Iterator[str]:
    """Yield how many runs fit with the remedy."""
    helped = len(group.runs) - len(group.unhelped) - group.untried
    if helped == len(group.runs):
        yield f"tried: {'it fits' if helped == 1 else f'all {helped:,} fit'} with it"
    else:
        yield f"tried: {helped:,} of {len(group.runs):,} fit with it"
    if group.unhelped:
        yield f"not for {named(group.unhelped)}: restore the code that wrote these histories, or terminate them"
    if group.untried:
        yield f"not tried on {group.untried:,}, whose histories have many further shapes"
    if group.harmed:
        yield f"but {_runs(len(group.harmed))} that fit now would diverge with it: {named(group.harmed)}"


def named(runs: Sequence[Run]) -> str:
    """Return the first ids of some runs, and how many more there are."""
    ids = ", ".join(run.entity_id for run in runs[:_IDS])
    return ids if len(runs) <= _IDS else f"{ids} and {len(runs) - _IDS:,} more"


def _runs(count: int) -> str:
    return f"{count:,} run{'s' * (count != 1)}"
