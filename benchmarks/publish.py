"""Writes what was measured into docs/performance.md: ``publish.py [--check]``, after `limit`, `compare` and `growth`.

A table stands there between two comments that name it; whatever is between them is replaced. A part that has no results
is left as it is. ``--check`` writes nothing and says whether anything would change.
"""

import argparse
import re
import sys
from pathlib import Path

from limit import limits
from results import HERE, RESULTS, known
from tables import CURVES, MEMORY, comparison, growth

DOCUMENT = HERE.parent / "docs" / "performance.md"


def blocks(results: Path) -> dict[str, str]:
    """Return the text of every block that there are results for."""
    found = {}
    if limit := known(results / "limit.json"):
        found["limit"] = limits(limit)
    if compare := known(results / "compare.json"):
        found["compare"] = comparison(compare)
    if curves := known(results / "growth.json"):
        found["growth"] = f"![What grows with what](../benchmarks/results/growth.svg)\n\n{growth(curves, CURVES)}"
        found["memory"] = growth(curves, MEMORY)
    return found


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
    """Write the document, or say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    before = asked.document.read_text("utf-8")
    after = filled(before, blocks(asked.results))
    if asked.check:
        sys.exit(0 if before == after else f"{asked.document.name} is not what publish.py makes of the results")
    asked.document.write_text(after, "utf-8")


if __name__ == "__main__":
    main()
