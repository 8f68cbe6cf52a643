"""Write the results into docs/reference/performance.md: ``publish.py [--check]``, after `limit`, `compare` and `growth`.

The figures of a Redis server are those of ``resurgam bench --store redis://... --json > benchmarks/results/redis.json``, those
of a Postgres server those of `postgres`.

Each table is between two comments with its name, and everything between them is replaced. A part without results is left
unchanged. ``--check`` writes nothing and reports whether anything would change.
"""

import argparse
import re
import sys
from pathlib import Path

import msgspec

from limit import limits
from results import EXPECTED, HERE, ON_POSTGRES, RESULTS, known
from resurgam.bench.run import Report
from resurgam.bench.table import SERVER_FIGURES, VERDICTS, server_rows, verdict_rows
from tables import CURVES, MEMORY, comparison, growth, table, trial

DOCUMENT = HERE.parent / "docs" / "reference" / "performance.md"


def blocks(results: Path) -> dict[str, str]:
    """Return the text of every block with results."""
    found = {}
    if limit := known(results / "limit.json"):
        found["limit"] = limits(limit)
    if compare := known(results / "compare.json"):
        found["compare"] = comparison(compare, EXPECTED)
    if curves := known(results / "growth.json"):
        found["growth"] = f"![What grows with what](growth.svg)\n\n{growth(curves, CURVES)}"
        found["memory"] = growth(curves, MEMORY)
    if server := known(results / "redis.json"):
        found["redis"] = on_server(msgspec.convert(server, Report))
    if beside := known(results / "postgres.json"):
        found["postgres"] = comparison(beside, ON_POSTGRES)
    if server := known(results / "postgres-bench.json"):
        found["postgres-bench"] = on_server(msgspec.convert(server, Report))
    return found


def on_server(report: Report) -> str:
    """Return the tables of a run on a server."""
    system = f"Python {report.python}, SQLite {report.sqlite}, {report.cores} cores{trial(report.scale)}"
    lines = [
        f"{report.server}, on the same machine; {system}.\n",
        table([head.lower() for head in SERVER_FIGURES], server_rows(report)),
        table(
            [head.lower() for head in VERDICTS], [[*row[:-1], row[-1].lower()] for row in verdict_rows(report.verdicts)]
        ),
        *(f"{name}: {failed}\n" for name, failed in report.failed.items()),
    ]
    return "\n".join(lines)


def filled(text: str, found: dict[str, str]) -> str:
    """Return a document with its blocks replaced."""
    for name, block in found.items():
        found_at = re.search(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end of {name} -->)", text, re.DOTALL)
        if found_at is None:
            sys.exit(
                f"there is no block {name}; it begins with <!-- {name}: ... --> and ends with <!-- end of {name} -->"
            )
        text = f"{text[: found_at.end(1)]}\n{block}\n{text[found_at.start(2) :]}"
    return text


def main() -> None:
    """Write the document, or report whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    before = options.document.read_text("utf-8")
    after = filled(before, blocks(options.results))
    if options.check:
        sys.exit(
            0 if before == after else f"{options.document.name} is not up to date with the results; run publish.py"
        )
    options.document.write_text(after, "utf-8")


if __name__ == "__main__":
    main()
