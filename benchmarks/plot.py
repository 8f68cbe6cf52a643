"""Plot the results: ``plot.py``, in the virtual environment of `make bench`.

As PNG beside the results, for the README, and as SVG beside the page of the documentation.
"""

import argparse
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "resurgam"  # the same figures give the same file

from matplotlib import pyplot as plt  # noqa: E402 -- after the backend is chosen

from results import RESULTS, known, order, ratio, title  # noqa: E402 -- as above

PICTURES = Path(__file__).parents[1] / "docs" / "reference"
COLOURS = {"dbos": "#8a8f98", "dbos, tuned": "#2f6f9f", "restate": "#b3572b"}
LABELS = {"dbos": "than DBOS as it comes", "dbos, tuned": "than DBOS, tuned", "restate": "than Restate"}


def main() -> None:
    """Plot the existing results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    results = parser.parse_args().results
    if compare := known(results / "compare.json"):
        ratios(compare["cases"], results)
    if growth := known(results / "growth.json"):
        curves(growth["curves"], results)


def ratios(found: dict[str, Any], results: Path) -> None:
    """Plot how many times faster each workload is than on the peers, on a logarithmic scale."""
    cases = sorted(found.items(), key=lambda item: order(item[0]))[::-1]
    figure, axes = plt.subplots(figsize=(8, 0.7 * len(cases) + 1.2))
    sides = [side for side in COLOURS if any(side in one["sides"] for _, one in cases)]
    wide = 0.8 / len(sides)
    for index, side in enumerate(sides):
        having = [position for position, (_, one) in enumerate(cases) if side in one["sides"]]
        shown = [(ratio(cases[at][0], cases[at][1]["sides"], side), cases[at][1]["sides"][side]) for at in having]
        positions = [position + 0.4 - wide * (index + 0.5) for position in having]
        bars = axes.barh(positions, [(times or 1) - 1 for times, _ in shown], 0.95 * wide, left=1, color=COLOURS[side])
        bars.set_label(LABELS[side])
        axes.bar_label(bars, [label(*one) for one in shown], padding=3, fontsize=8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(cases)), [title(case) for case, _ in cases])
    axes.set_xlabel("times faster (left of 1: slower)")
    axes.margins(x=0.25)
    axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=3)
    scales = {one["scale"] for _, one in cases}
    if scales != {1}:
        figure.suptitle(f"at {min(scales):g} of the size: a trial", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    finish(figure, results / "compare")


def label(times: float | None, side: dict[str, Any]) -> str:
    """Return the label of a bar: the ratio and its conditions, or the reason why there is no bar."""
    if times is None:
        return textwrap.shorten(side.get("failed") or "not measured", 50, placeholder=" ...")
    terms = [f"{side['at_once']:,} in flight" if side.get("refused") else "", side.get("reduced") or ""]
    text = ", ".join(term for term in terms if term)
    shown = f"{times:.1f} x" if times < 10 else f"{times:.0f} x"
    return f"{shown}  ({text})" if text else shown


def curves(found: dict[str, Any], results: Path) -> None:
    """Plot the growth curves."""
    drawn = [name for name in ("history", "instances", "workers", "payload") if found.get(name, {}).get("points")]
    if not drawn:
        return
    figure, grid = plt.subplots(1, len(drawn), figsize=(3.6 * len(drawn), 3.2), squeeze=False)
    for axes, name in zip(grid[0], drawn, strict=True):
        curve = found[name]
        if name == "workers":
            across = [point["x"] for point in curve["points"]]
            axes.plot(across, [point["rate"] for point in curve["points"]], marker="o", color="#2f6f9f")
            axes.set_xticks(across)
        else:
            times(axes, name, curve["points"])
        if curve["scale"] != 1:
            axes.set_title(f"at {curve['scale']:g} of the size: a trial", fontsize=8)
        if name != "payload":
            axes.set_ylim(bottom=0)
        axes.set_xlabel(curve["x"])
        axes.set_ylabel(curve["y"].replace("seconds", "ms") if name != "workers" else "steps/s")
        axes.spines[["top", "right"]].set_visible(False)
    finish(figure, results / "growth")


def times(axes: Any, name: str, points: list[dict[str, float]]) -> None:
    """Plot the times of a curve in milliseconds."""
    across = [point["x"] for point in points]
    lines = {"p50": ("-", "#2f6f9f", "p50"), "p95": (":", "#2f6f9f", "slowest of 5" if name == "payload" else "p95")}
    if name == "instances":
        lines["whole"] = ("-", "#b3572b", "start, 1 step, result")
    for key, (style, colour, name_of_line) in lines.items():
        up = [point[key] * 1000 for point in points]
        axes.plot(across, up, style, marker="o", markersize=3, color=colour, label=name_of_line)
    axes.set_xscale("log")
    if name == "payload":
        axes.set_yscale("log")  # what a step writes grows ten thousandfold
        axes.set_ylim(0.1, 1000)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    axes.legend(frameon=False, fontsize=8)


def finish(figure: Any, file: Path) -> None:
    """Write a figure in both formats."""
    figure.tight_layout()
    figure.savefig(PICTURES / f"{file.stem}.svg", metadata={"Date": None})
    figure.savefig(file.with_suffix(".png"), dpi=160)
    plt.close(figure)


if __name__ == "__main__":
    main()
