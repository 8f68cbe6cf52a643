"""Measure the workloads and the raw limit for publication: ``limit.py [--repeats 3] [--scale 1] [--only W1,W4]``.

This runs `resurgam bench` several times. Of each workload the median run is kept with the raw limit of the same run, and
the rates of all runs beside it. Results are written after every workload, and added to the existing ones.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from machine import load, machine
from results import RESULTS, Results, keep, known, print_progress
from resurgam.bench.catalog import WORKLOADS, verdicts
from resurgam.bench.figures import Figures
from resurgam.bench.run import run
from resurgam.bench.table import FIGURES, VERDICTS, figure_rows, verdict_rows
from tables import measured_on, table, trial


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--folder", type=Path, default=Path(), help="where the files are made; this folder without it")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the results are written")
    options = parser.parse_args()
    where = machine(options.folder)
    print_progress(f"{', '.join(f'{key} {text}' for key, text in where.items())}{load()}")
    for name in options.only.upper().split(","):
        measure(name, options, where)
    print(limits(known(options.results / "limit.json")))


def measure(name: str, options: argparse.Namespace, where: Results) -> None:
    """Run one workload several times and write the results, or the reason why it failed."""
    runs: list[list[Figures]] = []
    failed: str | None = None
    for repeat in range(options.repeats):
        print_progress(f"{name} {repeat + 1}/{options.repeats}")
        report = run([name], url=f"sqlite:///{options.folder.resolve()}/limit.db", scale=options.scale)
        failed = report.failed.get(name, failed)
        runs += [report.figures] if report.figures else []
    file = options.results / "limit.json"
    found = {
        "scale": options.scale,
        "repeats": options.repeats,
        "failed": failed,
        "figures": msgspec.to_builtins([middle(same) for same in zip(*runs, strict=True)]),
        "all": [[judged(figures) for figures in figures_of_run] for figures_of_run in runs],
    }
    keep(file, {"machine": where, "workloads": known(file).get("workloads", {}) | {name: found}})


def judged(figures: Figures) -> float:
    """Return the number by which the runs of a workload are sorted."""
    return figures.p50 if figures.rate is None else figures.rate


def middle(same: Sequence[Figures]) -> Figures:
    """Return the median run."""
    return sorted(same, key=judged)[len(same) // 2]


def limits(report: Results) -> str:
    """Return the tables of figures and of expectations."""
    found = sorted(report["workloads"].items(), key=lambda item: int(item[0][1:]))  # W10 after W9
    figures = [msgspec.convert(one, Figures) for _, workload in found for one in workload["figures"]]
    judgements = [
        row
        for _, workload in found
        for row in verdict_rows(verdicts(msgspec.convert(workload["figures"], list[Figures]), scale=workload["scale"]))
    ]
    runs = " or ".join(str(number) for number in sorted({workload["repeats"] for _, workload in found}))
    lines = [
        f"The run in the middle of {runs}; {measured_on(report['machine'], [one.level for one in figures])}"
        + "".join(f"{trial(scale)}" for scale in sorted({workload["scale"] for _, workload in found}))
        + "\n",
        table([head.lower() for head in FIGURES], figure_rows(figures)),
        table([head.lower() for head in VERDICTS], [[*row[:-1], row[-1].lower()] for row in judgements]),
        *(f"{name}: {workload['failed']}\n" for name, workload in found if workload["failed"]),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
