"""Write a report as rows of text."""

from collections.abc import Iterator, Sequence

from resurgam.bench.catalog import Verdict
from resurgam.bench.figures import Figures
from resurgam.bench.run import Report

FIGURES = ("", "WORKLOAD", "P50", "P95", "OF A", "STEPS/S", "RAW LIMIT", "OF RAW", "COMMITS", "STATEMENTS", "RSS")
VERDICTS = ("", "EXPECTED", "MEASURED", "")


def figure_rows(figures: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each workload; commits and statements are per step."""
    for f in figures:
        yield (
            f.workload,
            f.title,
            _time(f.p50),
            _time(f.p95),
            f"{f.sample} (n={f.samples})",
            _number(f.rate),
            _raw(f),
            _of_raw(f),
            "" if f.commits is None else f"{f.commits:.2f}",
            "" if f.statements is None else f"{f.statements:.1f}",
            f"{f.rss / 2**20:.0f} MiB",
        )


def verdict_rows(verdicts: Sequence[Verdict]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each expectation."""
    for v in verdicts:
        measured = "not measured" if v.measured is None else f"{_number(v.measured)} {v.unit}"
        yield v.workload, v.text, measured, {True: "met", False: "NOT MET", None: ""}[v.met]


def heading(report: Report) -> str:
    """Return the line above the table: the folder and the system of the measurement."""
    durability = f"PRAGMA synchronous reads {report.level}" if report.level else "no file"
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
    if f.workload in {"W1", "W2", "W4"} and f.raw.rate is not None:
        return f"{_number(f.raw.rate)}/s: {f.raw.of}"
    return f"{_time(f.raw.p50)}: {f.raw.of}"


def _of_raw(f: Figures) -> str:
    if f.raw is None:
        return ""
    if f.workload in {"W1", "W2", "W4"} and f.raw.rate is not None and f.rate is not None:
        return f"{f.rate / f.raw.rate:.0%}"
    return f"{f.p50 / f.raw.p50:.1f} x"
