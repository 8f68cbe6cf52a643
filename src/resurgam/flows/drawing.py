"""Draw a plan as SVG: a card for each step, from left to right by dependency, with its inputs and outputs.

No library is needed, and the same plan always gives the same text. Everything that comes from a definition is escaped.
"""

import unicodedata
from collections.abc import Collection, Iterator, Sequence
from html import escape
from typing import Final

import msgspec

from resurgam.flows import model as m
from resurgam.flows.explain import EXCLUDED, PlanExplanation, explain_plan, levels_of
from resurgam.flows.layout import Box, Layout, Link, arrange
from resurgam.flows.planner import Plan

_MARGIN: Final = 24.0
_COLUMN_GAP: Final = 72.0
_LINE: Final = 20.0
_CHARACTER: Final = 7.3
"""The width of a character in the font below, at 12 pixels."""

_PADDING: Final = 12.0
_LONGEST: Final = 34
"""How many characters of a text a card shows; the tooltip has all of it."""

_WIDEST: Final = 150
"""How many characters of a line below the cards are shown."""

_STYLE: Final = """\
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328 }
.paper { fill: #ffffff }
.card { fill: #f6f8fa; stroke: #8c959f }
.goal { fill: #ddf4ff; stroke: #0969da; stroke-width: 2.5 }
.given { fill: #dafbe1; stroke: #1a7f37 }
.missing { fill: #ffebe9; stroke: #cf222e; stroke-dasharray: 4 3 }
.link { fill: none; stroke: #57606a; stroke-width: 1.5 }
.optional { stroke-dasharray: 5 4 }
.id { font-weight: bold }
.quiet { fill: #57606a }"""


_ARROW: Final = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    '<path d="M 0 0 L 8 4 L 0 8 z" fill="#57606a"/></marker></defs>'
)


class _Port(msgspec.Struct, frozen=True):
    """An input or an output of a card."""

    attribute: str
    label: str
    optional: bool = False


class _Card(msgspec.Struct, frozen=True):
    """What is drawn as one box: a step, or an attribute that is given or must be."""

    kind: str
    level: int
    title: str
    lines: tuple[str, ...] = ()
    inputs: tuple[_Port, ...] = ()
    outputs: tuple[_Port, ...] = ()
    tooltip: tuple[str, ...] = ()

    @property
    def height(self) -> float:
        return (1 + len(self.lines) + self.rows) * _LINE + _PADDING

    @property
    def rows(self) -> int:
        """The lines of ports; the only port of an attribute is its title."""
        return 0 if self.is_attribute else max(len(self.inputs), len(self.outputs))

    @property
    def is_attribute(self) -> bool:
        return self.kind in ("given", "missing")

    @property
    def width(self) -> float:
        columns = (self.inputs, self.outputs)
        ports = sum(max((_cells(_cut(port.label)) for port in column), default=0) for column in columns) + 3
        lines = max(_cells(_cut(line)) for line in (self.title, *self.lines))
        return max(lines, ports if self.rows else 0) * _CHARACTER + 2 * _PADDING

    def port(self, position: int) -> float:
        """Return how far below the top of the card a port is."""
        if self.is_attribute:
            return self.height / 2
        return _PADDING / 2 + (1.5 + len(self.lines) + position) * _LINE


def draw(plan: Plan, given: Collection[str] = ()) -> str:
    """Return a plan as SVG. *given* are the attributes that are given; those that no step provides are known anyway."""
    explained = explain_plan(plan)
    cards = [*_attribute_cards(plan, given), *_step_cards(plan, explained)]
    links = list(_links(cards))
    boxes = [Box(card.level, card.height) for card in cards]
    return _Picture(cards, links, arrange(boxes, [one.link for one in links]), _notes(explained)).text(
        _cut(f"Plan for {', '.join(plan.goals)}", _WIDEST)
    )


# What is drawn.


def _attribute_cards(plan: Plan, given: Collection[str]) -> Iterator[_Card]:
    """Yield the attributes that come from outside, each in the level before the first step that takes it."""
    levels = levels_of(plan)
    for name in sorted({name for step in plan.steps.values() for name in step.inputs}):
        missing = name in plan.required
        if missing or name in given or (name in plan.attributes and not plan.attributes[name].providers):
            level = min(levels[step_id] for step_id, step in plan.steps.items() if name in step.inputs) - 1
            note = "must be given" if missing else "given"
            yield _Card("missing" if missing else "given", level, name, (note,), outputs=(_Port(name, name),))


def _step_cards(plan: Plan, explained: PlanExplanation) -> Iterator[_Card]:
    levels = levels_of(plan)
    why = {one.step: one.why for one in explained.steps}
    for step_id, step in sorted(plan.steps.items()):
        lines = [step.name] if step.name != step_id else []
        lines += [] if step.type == "python" else [_kind_of(step)]
        lines += [] if step.predicate is None else [f"if {step.predicate.script}"]
        yield _Card(
            "goal" if step_id in plan.goals else "card",
            levels[step_id],
            step_id,
            tuple(" ".join(line.split()) for line in lines),
            inputs=tuple(_inputs(step)),
            outputs=tuple(_Port(name, name) for name in sorted(step.outputs)),
            tooltip=(f"{step_id}: {step.name}", *why[step_id]),
        )


def _kind_of(step: m.Step) -> str:
    if step.flow is not None:
        return f"flow: {', '.join(step.flow.goals)}"
    if step.http is not None:
        return f"{step.type} {step.http.method} {step.http.endpoint}"
    return f"workflow: {step.workflow.workflow}" if step.workflow is not None else step.type


def _inputs(step: m.Step) -> Iterator[_Port]:
    for name, config in sorted(step.inputs.items()):
        optional = isinstance(config, m.OptionalConfig)
        notes: list[str] = [config.collect] if config.collect != "first" else []
        notes += ["each"] if config.for_each else []
        notes += ["match"] if isinstance(config, m.RequiredConfig) and config.match is not None else []
        label = f"{name}{'?' if optional else ''}"
        yield _Port(name, f"{label} ({', '.join(notes)})" if notes else label, optional)


class _Drawn(msgspec.Struct, frozen=True):
    """A link, and whether the input that it leads to is optional."""

    link: Link
    optional: bool


def _links(cards: Sequence[_Card]) -> Iterator[_Drawn]:
    """Yield a link from every card that provides an attribute to every card that takes it."""
    providers: dict[str, list[tuple[int, float]]] = {}
    for number, card in enumerate(cards):
        for position, port in enumerate(card.outputs):
            providers.setdefault(port.attribute, []).append((number, card.port(position)))
    for number, card in enumerate(cards):
        for position, port in enumerate(card.inputs):
            for source, leaves in providers.get(port.attribute, ()):
                if cards[source].level < card.level:
                    yield _Drawn(Link(source, leaves, number, card.port(position)), port.optional)


def _notes(explained: PlanExplanation) -> Sequence[str]:
    """Return what the picture cannot show: the steps that are left out, and why."""
    excluded = [one for one in explained.steps if one.status == EXCLUDED]
    return [_cut(f"left out: {one.step} ({'; '.join(one.why)})", _WIDEST) for one in excluded]


# How it is drawn.


class _Picture:
    """Cards and links, and where they are."""

    def __init__(self, cards: Sequence[_Card], links: Sequence[_Drawn], layout: Layout, notes: Sequence[str]) -> None:
        self._cards = cards
        self._links = links
        self._layout = layout
        self._notes = notes
        self._top = _MARGIN + 1.5 * _LINE
        widths: dict[int, float] = {}
        for card in cards:
            widths[card.level] = max(widths.get(card.level, 0.0), card.width)
        self._widths = [widths.get(level, 0.0) for level in range(max(widths, default=-1) + 1)]
        self._lefts = [_MARGIN]
        for width in self._widths:
            # A level without cards takes no room.
            self._lefts.append(self._lefts[-1] + (width + _COLUMN_GAP if width else 0.0))

    def text(self, title: str) -> str:
        """Return the picture as SVG."""
        bottom = self._top + self._layout.height + _LINE
        longest = max((_cells(line) for line in (title, *self._notes)), default=0) * _CHARACTER + 2 * _MARGIN
        width = max(self._lefts[-1] - _COLUMN_GAP + _MARGIN, longest)
        height = bottom + len(self._notes) * _LINE + _MARGIN / 2
        size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{_escaped(title)}">',
            f"<style>\n{_STYLE}\n</style>",
            _ARROW,
            f'<rect class="paper" width="{width:.0f}" height="{height:.0f}" rx="6"/>',
            _text(_MARGIN, _MARGIN + 4, title, "id"),
            *(self._link(number) for number in range(len(self._links))),
            *(self._card(number) for number in range(len(self._cards))),
            *(_text(_MARGIN, bottom + number * _LINE, note, "quiet") for number, note in enumerate(self._notes, 1)),
        ]
        return "\n".join([*parts, "</svg>", ""])

    def _link(self, number: int) -> str:
        """Draw a link: curves between the levels, straight lines across them."""
        drawn, passages = self._links[number], self._layout.passages[number]
        link, tops = drawn.link, self._layout.tops
        source, target = self._cards[link.source], self._cards[link.target]
        x, y = self._lefts[source.level] + source.width, self._top + tops[link.source] + link.leaves
        path = [f"M {x:.1f} {y:.1f}"]
        for level, passage in enumerate(passages, start=source.level + 1):
            left, height = self._lefts[level], self._top + passage
            path += [_curve(x, y, left, height), f"L {left + self._widths[level]:.1f} {height:.1f}"]
            x, y = left + self._widths[level], height
        path.append(_curve(x, y, self._lefts[target.level], self._top + tops[link.target] + link.enters))
        kind = "link optional" if drawn.optional else "link"
        return f'<path class="{kind}" d="{" ".join(path)}" marker-end="url(#arrow)"/>'

    def _card(self, number: int) -> str:
        card = self._cards[number]
        left, top = self._lefts[card.level], self._top + self._layout.tops[number]
        corner = 16 if card.is_attribute else 6
        size = f'width="{card.width:.1f}" height="{card.height:.1f}" rx="{corner}"'
        lines = [
            f'<rect class="{card.kind}" x="{left:.1f}" y="{top:.1f}" {size}/>',
            _text(left + _PADDING, top + _PADDING / 2 + 14, _cut(card.title), "id"),
        ]
        for position, line in enumerate(card.lines, start=1):
            lines.append(_text(left + _PADDING, top + _PADDING / 2 + position * _LINE + 14, _cut(line), "quiet"))
        if not card.is_attribute:
            for position, port in enumerate(card.inputs):
                lines.append(_text(left + _PADDING, top + card.port(position) + 4, _cut(port.label)))
            right = left + card.width - _PADDING
            for position, port in enumerate(card.outputs):
                lines.append(_text(right, top + card.port(position) + 4, _cut(port.label), end=True))
        tooltip = _escaped("\n".join(card.tooltip or (card.title, *card.lines)))
        return "\n".join(["<g>", f"<title>{tooltip}</title>", *lines, "</g>"])


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    middle = (x + to_x) / 2
    return f"C {middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"


def _text(x: float, y: float, text: str, kind: str = "", *, end: bool = False) -> str:
    attributes = (f' class="{kind}"' if kind else "") + (' text-anchor="end"' if end else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    """Return a text that is safe in XML: without markup, and without characters that XML does not have."""
    return escape("".join(one if one == "\n" or _is_shown(one) else "\ufffd" for one in text))


def _is_shown(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn")


def _cut(text: str, width: int = _LONGEST) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _cells(text: str) -> int:
    """Return how many characters wide a text is; those of East Asian scripts count twice."""
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)
