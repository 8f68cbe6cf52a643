"""Draw state diagrams and the layers of the package as SVG, from the tables in the code.

The same tables always give the same text, so that a test can compare it with the files of the documentation.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from resurgam.core import event as events
from resurgam.core import state
from resurgam.flows import state as flow_state

ROOT = Path(__file__).parents[1]

_STYLE = """\
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328 }
.paper { fill: #ffffff }
.box { fill: #ddf4ff; stroke: #0969da }
.end { fill: #f6f8fa; stroke: #8c959f }
.quiet { font-size: 10.5px; fill: #57606a }
.note { font-size: 10.5px; fill: #57606a; stroke: #ffffff; stroke-width: 4px; paint-order: stroke }
.kept { fill: #dafbe1; stroke: #1a7f37 }
.dead { fill: #ffebe9; stroke: #cf222e; stroke-dasharray: 4 3 }
.frame { fill: none; stroke: #8c959f; stroke-dasharray: 5 4 }
.link { fill: none; stroke: #57606a; stroke-width: 1.3 }"""
_ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M 0 0 L 8 4 L 0 8 z" fill="#57606a"/></marker></defs>'
)
_WIDTH, _HEIGHT = 170, 34
_ACROSS, _DOWN = 350, 84
_MARGIN = 30
_NOTE = 13
_FRAME = 12


class Transition(NamedTuple):
    """An event that leads from one status to another; *before* is empty for the first event of a log."""

    before: str
    event: str
    after: str


def workflow_transitions() -> list[Transition]:
    """Return what changes the status of a workflow, from its table."""
    found = [
        Transition(before or "", _tag(event), after)
        for before, table in state.TRANSITIONS.items()
        for event, after in table.items()
        if before != after
    ]
    # A delay or a deferred child is a field of the same first event.
    found.append(Transition("", _tag(events.WorkflowStarted), state.Status.SCHEDULED))
    return [one for one in found if (one.before, one.after) != (state.Status.DIVERGED, state.Status.RUNNING)] + [
        Transition(state.Status.DIVERGED, "(code that fits)", state.Status.RUNNING)
    ]


def step_transitions() -> list[Transition]:
    """Return what changes the status of a step of a flow."""
    table = flow_state.STEP_TRANSITIONS
    return [
        Transition(before, _tag(event), after) for event, (all_before, after) in table.items() for before in all_before
    ]


def work_transitions() -> list[Transition]:
    """Return what changes the status of a work item."""
    return [
        Transition(before, _tag(event), after)
        for event, (all_before, after) in flow_state.TRANSITIONS.items()
        for before in all_before
        if after is not None and before != after
    ]


def _tag(event: type[events.Event]) -> str:
    return str(event.__struct_config__.tag)


class _Place(NamedTuple):
    left: float
    top: float
    column: int
    row: int


def draw_states(transitions: Sequence[Transition], columns: Sequence[Sequence[str]], side: float = _MARGIN) -> str:
    """Return a diagram with the statuses in columns; an arrow from a frame holds for every status inside.

    *side* is the room to the left of the first column.
    """
    shown = {status for column in columns for status in column}
    missing = {one for t in transitions for one in (t.before, t.after)} - shown - {""}
    if missing:
        raise ValueError(f"statuses without a place in the diagram: {sorted(missing)}")
    longest = max(map(len, columns))
    places = {
        status: _Place(side + across * _ACROSS, _MARGIN + ((longest - len(column)) / 2 + down) * _DOWN, across, down)
        for across, column in enumerate(columns)
        for down, status in enumerate(column)
    }
    arrows: dict[tuple[str, str], list[str]] = {}
    for one in transitions:
        arrows.setdefault((one.before, one.after), []).append(one.event)
    width = side + _MARGIN + (len(columns) - 1) * _ACROSS + _WIDTH
    height = 2 * _MARGIN + (longest - 1) * _DOWN + _HEIGHT
    ends = shown - {before for before, _ in arrows}
    return _svg(width, height, [*_links(arrows, places, columns), *_boxes(places, ends)])


def _boxes(places: Mapping[str, _Place], ends: Iterable[str]) -> Iterator[str]:
    for status, (left, top, _, _) in places.items():
        kind = "end" if status in ends else "box"
        yield f'<rect class="{kind}" x="{left:g}" y="{top:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
        yield f'<text x="{left + _WIDTH / 2:g}" y="{top + 21:g}" text-anchor="middle">{escape(status or "start")}</text>'


def _links(
    arrows: Mapping[tuple[str, str], list[str]], places: Mapping[str, _Place], columns: Sequence[Sequence[str]]
) -> Iterator[str]:
    framed: set[tuple[str, str]] = set()
    for column in columns:
        common = [
            after
            for after, place in places.items()
            if len(column) > 1
            and place.column > places[column[0]].column
            and all(arrows.get((before, after)) == arrows.get((column[0], after)) is not None for before in column)
        ]
        if common:
            first, last = places[column[0]], places[column[-1]]
            top, bottom = first.top - _FRAME, last.top + _HEIGHT + _FRAME
            yield (
                f'<rect class="frame" x="{first.left - _FRAME:g}" y="{top:g}" width="{_WIDTH + 2 * _FRAME}" '
                f'height="{bottom - top:g}" rx="10"/>'
            )
        for after in common:
            framed |= {(before, after) for before in column}
            yield from _across(
                arrows[column[0], after], first.left + _WIDTH + _FRAME, (top + bottom) / 2, places[after]
            )
    for (before, after), names in arrows.items():
        start, end = places[before], places[after]
        if (before, after) in framed:
            continue
        if start.column == end.column:
            yield from _beside(names, start, end)
        else:
            yield from _across(names, start.left + _WIDTH, start.top + _HEIGHT / 2, end)


def _across(names: Sequence[str], x: float, y: float, end: _Place) -> Iterator[str]:
    to_y = end.top + _HEIGHT / 2
    middle = x + (end.left - x) / 3
    yield _path(f"M {x:g} {y:g} C {middle:g} {y:g} {middle:g} {to_y:g} {end.left:g} {to_y:g}")
    yield from _notes(names, end.left - 10, to_y - 6 - (len(names) - 1) * _NOTE, "end")


def _beside(names: Sequence[str], start: _Place, end: _Place) -> Iterator[str]:
    """Yield an arrow within a column: straight to a neighbour, else around what is between, on the left."""
    down = start.row < end.row
    anchor, side = ("end", -1) if down else ("start", 1)
    if abs(start.row - end.row) == 1:
        x = start.left + _WIDTH / 2 + side * 12
        y, to_y = (start.top + _HEIGHT, end.top) if down else (start.top, end.top + _HEIGHT)
        yield _path(f"M {x:g} {y:g} L {x:g} {to_y:g}")
        yield from _notes(names, x + side * 6, (y + to_y) / 2 + 4 - (len(names) - 1) * _NOTE / 2, anchor)
        return
    x, y, to_y = start.left, start.top + _HEIGHT / 2, end.top + _HEIGHT / 2
    far = x - (50 if down else 110)
    yield _path(f"M {x:g} {y:g} C {far:g} {y:g} {far:g} {to_y:g} {x:g} {to_y:g}")
    yield from _notes(names, x - (32 if down else 78), (y + to_y) / 2 + (14 if down else -6), "end")


def _path(way: str) -> str:
    return f'<path class="link" marker-end="url(#arrow)" d="{way}"/>'


def _notes(names: Sequence[str], x: float, y: float, anchor: str) -> Iterator[str]:
    for number, line in enumerate(names):
        yield f'<text class="note" x="{x:g}" y="{y + number * _NOTE:g}" text-anchor="{anchor}">{escape(line)}</text>'


def layers() -> list[list[str]]:
    """Return the layers of the package from the import contract, the highest first; those of a row are independent."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    [found] = [contract["layers"] for contract in contracts if contract["name"] == "Layers"]
    return [[name.strip() for name in row.split("|")] for row in found]


def draw_layers() -> str:
    """Return the layers as boxes; a module imports only from rows below its own."""
    gap = 12
    rows = layers()
    width = 640
    parts = []
    for number, row in enumerate(rows):
        top = _MARGIN + number * (_HEIGHT + gap)
        each = (width - (len(row) - 1) * gap) / len(row)
        for position, name in enumerate(row):
            left = _MARGIN + position * (each + gap)
            parts.append(f'<rect class="box" x="{left:g}" y="{top:g}" width="{each:g}" height="{_HEIGHT}" rx="6"/>')
            parts.append(f'<text x="{left + each / 2:g}" y="{top + 21:g}" text-anchor="middle">{escape(name)}</text>')
    return _svg(width + 2 * _MARGIN, 2 * _MARGIN + len(rows) * (_HEIGHT + gap) - gap, parts)


_STORY = (
    ("process 1", (("charge", "runs", 0), ("ship", "killed while it runs", 1))),
    (
        "history",
        (
            ("charge completed", "receipt for o-1", 0),
            ("ship scheduled", "", 1),
            ("ship completed", "parcel for o-1", 2),
        ),
    ),
    ("process 2", (("charge", "read, not run again", 0), ("ship", "runs again", 2))),
)
"""What happens to an order in three lanes: title and text of each box, and its column."""


def draw_survival() -> str:
    """Return the picture of the README: a process dies, and the next one goes on from the history."""
    lane, box, high, first, gap = 86, 210, 52, 130, 26
    middles = [first + column * (box + gap) + box / 2 for column in range(3)]
    parts = []
    for number, (name, boxes) in enumerate(_STORY):
        top = _MARGIN + number * lane
        parts.append(f'<text x="{_MARGIN}" y="{top + 32:g}">{escape(name)}</text>')
        for title, text, column in boxes:
            kind = "dead" if text.startswith("killed") else "kept" if name == "history" else "box"
            middle = middles[column]
            parts.append(
                f'<rect class="{kind}" x="{middle - box / 2:g}" y="{top:g}" width="{box}" height="{high}" rx="6"/>'
            )
            parts.append(f'<text x="{middle:g}" y="{top + 22:g}" text-anchor="middle">{escape(title)}</text>')
            parts.append(
                f'<text class="quiet" x="{middle:g}" y="{top + 40:g}" text-anchor="middle">{escape(text)}</text>'
            )
    upper, lower = _MARGIN + high, _MARGIN + lane + high
    for column, start, end in ((0, upper, 0), (1, upper, 0), (0, lower, 0), (2, lower, 1)):
        ways = (start, start + lane - high)
        parts.append(_path(f"M {middles[column]:g} {ways[end]:g} L {middles[column]:g} {ways[1 - end]:g}"))
    return _svg(middles[-1] + box / 2 + _MARGIN, 2 * (_MARGIN + lane) + high, parts)


def _svg(width: float, height: float, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}">'
    paper = f'<rect class="paper" width="{width:g}" height="{height:g}"/>'
    return "\n".join([head, f"<style>\n{_STYLE}\n</style>", _ARROW, paper, *parts, "</svg>"]) + "\n"


WORKFLOW_COLUMNS = (
    ("",),
    ("scheduled", "running", "diverged"),
    ("completed", "failed", "cancelled", "terminated", "continued"),
)
STEP_COLUMNS = (("pending", "active"), ("skipped", "failed", "completed"))
WORK_COLUMNS = (
    ("pending", "active", "not_completed"),
    ("succeeded", "failed", "cancelled"),
    ("compensating",),
    ("compensated", "compensation_failed"),
)


def drawings() -> dict[str, str]:
    """Return every drawing by the path of its file."""
    return {
        "docs/survives.svg": draw_survival(),
        "docs/concepts/layers.svg": draw_layers(),
        "docs/concepts/statuses.svg": draw_states(workflow_transitions(), WORKFLOW_COLUMNS),
        "docs/concepts/step-statuses.svg": draw_states(step_transitions(), STEP_COLUMNS),
        "docs/concepts/work-statuses.svg": draw_states(work_transitions(), WORK_COLUMNS, 210),
    }
