"""Write a report as rows of text."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from resurgam.bench.catalog import Verdict
from resurgam.bench.figures import Figures
from resurgam.bench.run import Report

_FIRST = ("", "WORKLOAD", "P50", "P95", "OF A", "STEPS/S", "RAW LIMIT", "OF RAW")
FIGURES = (*_FIRST, "COMMITS", "STATEMENTS", "RSS")
SERVER_FIGURES = (*_FIRST, "ROUND TRIPS", "RSS")
_IN_RATES = ("W1", "W2", "W4", "W14")
"""The workloads whose limit is a rate."""

VERDICTS = ("", "EXPECTED", "MEASURED", "")


def figure_rows(figures: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each workload; commits and statements are per step."""
    for f in figures:
        commits = "" if f.commits is None else f"{f.commits:.2f}"
        statements = "" if f.statements is None else f"{f.statements:.1f}"
        yield *_first(f), commits, statements, _memory(f)


def server_rows(report: Report) -> Iterator[tuple[str, ...]]:
    """Yield a row for each workload on a server, and for those on SQLite; round trips are per step."""
    for f in report.figures:
        yield *_first(f), "" if f.round_trips is None else f"{f.round_trips:.3f}", _memory(f)
    for f in report.beside:
        yield *_first(replace(f, title=f"on SQLite: {f.title}")), "", _memory(f)


def _first(f: Figures) -> tuple[str, ...]:
    times = (_time(f.p50), _time(f.p95), f"{f.sample} (n={f.samples})")
    return f.workload, f.title, *times, _number(f.rate), _raw(f), _of_raw(f)


def _memory(f: Figures) -> str:
    """Return the memory of the process, and what the server holds for a sleeper."""
    held = f.more.get("server_bytes_per_sleeper")
    return f"{f.rss / 2**20:.0f} MiB" + ("" if held is None else f", on the server {held:,.0f} B a sleeper")


def verdict_rows(verdicts: Sequence[Verdict]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each expectation."""
    for v in verdicts:
        measured = "not measured" if v.measured is None else f"{_number(v.measured)} {v.unit}"
        yield v.workload, v.text, measured, {True: "met", False: "NOT MET", None: ""}[v.met]


def heading(report: Report) -> str:
    """Return the line above the table: the folder and the system of the measurement."""
    durability = report.server or (f"PRAGMA synchronous reads {report.level}" if report.level else "no file")
    system = f"Python {report.python}, SQLite {report.sqlite}, {report.cores} cores"
    size = "" if report.scale == 1 else f"; at scale {report.scale:g}, so expectations do not apply"
    skipped = "".join(f"; this store does not support {name}" for name in report.skipped)
    return f"measured in {report.place}; {durability}; {system}{size}{skipped}"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _number(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.2f}"


def _raw(f: Figures) -> str:
    """Return the limit in the unit of the workload's expectation."""
    if f.raw is None:
        return ""
    if f.workload in _IN_RATES and f.raw.rate is not None:
        return f"{_number(f.raw.rate)}/s: {f.raw.of}"
    return f"{_time(f.raw.p50)}: {f.raw.of}"


def _of_raw(f: Figures) -> str:
    if f.raw is None:
        return ""
    if f.workload in _IN_RATES and f.raw.rate is not None and f.rate is not None:
        return f"{f.rate / f.raw.rate:.0%}"
    return f"{f.p50 / f.raw.p50:.1f} x"
