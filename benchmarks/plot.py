"""Draws what was measured, as SVG and PNG: ``plot.py``, in the virtual environment of `make bench`."""

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "resurgam"  # the same figures give the same file

from matplotlib import pyplot as plt  # noqa: E402 -- after the backend is chosen

RESULTS = Path(__file__).parent / "results"
COLOURS = {"dbos": "#8a8f98", "dbos, tuned": "#2f6f9f"}
LABELS = {"dbos": "than DBOS as it comes", "dbos, tuned": "than DBOS, tuned"}


def main() -> None:
    """Draw whatever results there are."""
    compare, growth = RESULTS / "compare.json", RESULTS / "growth.json"
    if compare.exists():
        ratios(json.loads(compare.read_text()))
    if growth.exists():
        curves(json.loads(growth.read_text())["curves"])


def ratios(report: dict[str, Any]) -> None:
    """Draw how many times faster each workload is than on the peer, on a logarithmic scale."""
    rows = [row for row in report["rows"] if row["ratios"]][::-1]
    figure, axes = plt.subplots(figsize=(8, 0.75 * len(rows) + 1.2))
    for index, (side, colour) in enumerate(COLOURS.items()):
        places = [place + 0.2 - 0.4 * index for place, row in enumerate(rows) if side in row["ratios"]]
        values = [row["ratios"][side] for row in rows if side in row["ratios"]]
        bars = axes.barh(places, [value - 1 for value in values], 0.38, left=1, color=colour, label=LABELS[side])
        axes.bar_label(
            bars, [f"{value:.1f} x" if value < 10 else f"{value:.0f} x" for value in values], padding=3, fontsize=8
        )
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row["title"] for row in rows])
    axes.set_xlabel("times faster (left of 1: slower)")
    axes.margins(x=0.12)
    axes.legend(frameon=False, fontsize=8)
    if report["scale"] != 1:
        axes.set_title(f"at {report['scale']:g} of the size: a trial")
    finish(figure, axes, "compare")


def curves(found: dict[str, Any]) -> None:
    """Draw what grows with what."""
    drawn = [name for name in ("history", "instances", "workers", "payload") if name in found]
    if not drawn:
        return
    figure, grid = plt.subplots(1, len(drawn), figsize=(3.6 * len(drawn), 3.2), squeeze=False)
    for axes, name in zip(grid[0], drawn, strict=True):
        curve = found[name]
        across = [point["x"] for point in curve["points"]]
        if name == "workers":
            axes.plot(across, [point["rate"] for point in curve["points"]], marker="o", color="#2f6f9f")
            axes.set_xticks(across)
        else:
            for share, style in (("p50", "-"), ("p95", ":")):
                up = [point[share] * 1000 for point in curve["points"]]
                axes.plot(across, up, style, marker="o", markersize=3, color="#2f6f9f", label=share)
            if name == "instances":
                wholes = [point["whole"] * 1000 for point in curve["points"]]
                axes.plot(across, wholes, "-", marker="o", markersize=3, color="#b3572b", label="start, 1 step, result")
            axes.set_xscale("log")
            axes.legend(frameon=False, fontsize=8)
        if curve["scale"] != 1:
            axes.set_title(f"at {curve['scale']:g} of the size: a trial", fontsize=8)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(curve["x"])
        axes.set_ylabel(curve["y"].replace("seconds", "ms") if name != "workers" else "steps/s")
        axes.spines[["top", "right"]].set_visible(False)
    finish(figure, None, "growth")


def finish(figure: Any, axes: Any, name: str) -> None:
    """Write a drawing in both formats."""
    if axes is not None:
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.svg", metadata={"Date": None})
    figure.savefig(RESULTS / f"{name}.png", dpi=160)
    plt.close(figure)


if __name__ == "__main__":
    main()
