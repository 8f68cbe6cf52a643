"""Write results as Markdown tables; depends on the files of results only."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from results import PEERS, SIDES, UNITS, Results, order, ratio, title, value

MARKS = "¹²³⁴⁵⁶⁷⁸⁹"
MEMORY_BUDGET = 300_000_000

Expected = Mapping[str, Mapping[str, int]]
Keys = Sequence[tuple[str, Callable[[Any], str]]]
Shown = dict[str, tuple[Sequence[str], Keys]]
"""For each curve the headings of its table, and the fields of a point with their formats."""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows under heads."""
    lines = ["|".join(["", *(f" {cell} " if cell else " " for cell in line), ""]) for line in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:], ""])


def measured_on(machine: Results, levels: Iterable[str | None]) -> str:
    """Return the line that describes the machine."""
    read = " and ".join(sorted({level for level in levels if level})) or "nothing"
    peers = f", DBOS {machine['dbos']}" if "dbos" in machine else ""
    syncs = ""
    if "restate" in machine:
        peers += f", Restate {machine['restate']} (SDK {machine['restate_sdk']})"
        syncs = f", Restate's `rocksdb-disable-wal-fsync` {machine['restate_disable_wal_fsync']}"
    if "server" in machine:
        return (
            f"{machine['processor']}, {machine['cores']} cores, {machine['file_system']}; Python {machine['python']}{peers}; "
            f"all on one server on the same cores: {machine['server']}."
        )
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['file_system']}; Python {machine['python']}, "
        f"SQLite {machine['sqlite']}{peers}; `synchronous` reads {read}{syncs}."
    )


def duration(seconds: float) -> str:
    """Return a time as text."""
    return f"{seconds * 1000:,.2f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def trial(scale: float) -> str:
    """Return a warning for results that were not measured at full size."""
    return "" if scale == 1 else f" **(a trial, at {scale:g} of the size)**"


# Beside the peers.


def comparison(report: Results, expected: Expected) -> str:
    """Return the comparison with the peers, and which expectations it meets."""
    cases = sorted(report["cases"].items(), key=lambda item: order(item[0]))
    peers = [peer for peer in PEERS if any(peer in found["sides"] for _, found in cases)]
    notes: list[str] = []
    rows = []
    for case, found in cases:
        sides = found["sides"]
        row = [order(case)[0], title(case) + trial(found["scale"]), cell(case, sides.get(SIDES[0], {}), notes)]
        for peer in peers:
            row += [cell(case, sides[peer], notes) if peer in sides else "", times(ratio(case, sides, peer))]
        rows.append(row)
    levels = [side.get("level") for _, found in cases for side in found["sides"].values()]
    runs = " or ".join(str(number) for number in sorted({found["repeats"] for _, found in cases}))
    heads = ["", "workload", "Resurgam", *(head for peer in peers for head in (PEERS[peer], "ratio"))]
    lines = [
        f"Medians of {runs} runs each, taking turns; {measured_on(report['machine'], levels)}\n",
        table(heads, rows),
    ]
    if notes:
        lines.append("".join(f"- {MARKS[number]} {note}\n" for number, note in enumerate(notes)))
    if why := report["machine"].get("no_restate"):
        lines.append(f"Restate was not measured: {why}.\n")
    if judged := list(expectations(cases, expected)):
        lines.append(table(["", "expected", "measured", ""], judged))
    return "\n".join(lines)


def expectations(cases: Sequence[tuple[str, Results]], wanted: Expected) -> Iterator[Sequence[str]]:
    """Yield a row for each expected ratio of the cases that were measured at full size."""
    for peer, expected in wanted.items():
        for case, found in cases:
            name, length = order(case)
            measured = ratio(case, found["sides"], peer)
            if name in expected and found["scale"] == 1 and peer in found["sides"]:
                what = f"{name} ({length:,} steps)" if length else name
                met = "" if measured is None else "met" if measured >= expected[name] else "not met"
                yield what, f"at least {expected[name]} x {PEERS[peer]}", times(measured) or "not measured", met


def cell(case: str, side: Results, notes: list[str]) -> str:
    """Return the figure of a side, or the reason why there is none; add its footnote to *notes*."""
    middle = value(side)
    if middle is None:
        return side.get("failed") or "not measured"
    name = case.partition(" ")[0]
    shown = f"{middle:,.0f} {UNITS[name]}" if name in UNITS else duration(middle)
    note = footnote(side)
    if not note:
        return shown
    if note not in notes:
        notes.append(note)
    return f"{shown} {MARKS[notes.index(note)]}"


def footnote(side: Results) -> str:
    """Return the conditions under which a figure was measured."""
    lines = [side["note"]] if side.get("note") else []
    if side.get("reduced"):
        lines.append(f"With {side['reduced']}, as all would take minutes.")
    if side.get("refused"):
        refused = " and ".join(f"{int(number):,}" for number in sorted(side["refused"], key=int))
        why = side["refused"][min(side["refused"], key=int)]
        lines.append(f"With at most {side['at_once']:,} in flight; {refused} at once ended with `{why}`.")
    if side.get("failed"):
        lines.append(f"A later run gave nothing: {side['failed']}.")
    return " ".join(lines)


def times(number: float | None) -> str:
    """Return a ratio."""
    return "" if number is None else f"{number:.1f} x"


# What grows with what.


def points(heads: Sequence[str], keys: Keys, curve: Results) -> str:
    """Return the points of a curve as a table, or the reason why it failed."""
    if "failed" in curve:
        return f"{curve['failed']}\n"
    rows = [[show(point[key]) for key, show in keys] for point in curve["points"]]
    cut = "\nCut off where its time was up.\n" if curve.get("cut") else ""
    return table([heads[0] + trial(curve["scale"]), *heads[1:]], rows) + cut


def whole(number: float) -> str:
    """Return a number without decimals."""
    return f"{number:,.0f}"


def megabytes(number: float) -> str:
    """Return bytes in MB."""
    return f"{number / 1_000_000:,.0f} MB"


def bytes_each(number: float) -> str:
    """Return the bytes of one instance; a negative number is noise and counts as 0."""
    return whole(max(0.0, number))


def verdict(peak: float) -> str:
    """Return whether a worker stayed within its memory budget."""
    return "met" if peak < MEMORY_BUDGET else "**not met**"


SPREAD = (("x", whole), ("p50", duration), ("p95", duration))
CURVES: Shown = {
    "history": (["events in the history", "a step, p50", "p95"], SPREAD),
    "instances": (
        ["open instances", "a step, p50", "p95", "start, 1 step, result, p50"],
        [*SPREAD, ("whole", duration)],
    ),
    "workers": (["worker processes", "steps/s"], [("x", whole), ("rate", whole)]),
    "payload": (["bytes of the payload", "a step, p50", "slowest of 5 rounds"], SPREAD),
}
MEMORY: Shown = {
    "memory": (["a sleeper that is", "bytes"], [("x", str), ("bytes", bytes_each)]),
    "budget": (
        ["a worker through", "RSS at the end", "most ever", "within 300 MB"],
        [("x", str), ("rss", megabytes), ("peak", megabytes), ("peak", verdict)],
    ),
}


def growth(report: Results, shown: Shown) -> str:
    """Return the tables of the measured curves."""
    curves = {name: found for name, found in report["curves"].items() if name in shown}
    if not curves:
        return "Not published yet.\n"
    lines = [measured_on(report["machine"], [found.get("level") for found in curves.values()]) + "\n"]
    lines += [points(heads, keys, curves[name]) for name, (heads, keys) in shown.items() if name in curves]
    return "\n".join(lines)
