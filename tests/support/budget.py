"""Check counts against the budget in `tests/budget.json`. A change that makes a step dearer raises it and says why."""

import json
from collections.abc import Mapping
from pathlib import Path

BUDGET: dict[str, float] = json.loads((Path(__file__).parents[1] / "budget.json").read_text())


def within(what: str, measured: float) -> None:
    """Hold a count against its budget; one that is far below it would no longer guard anything."""
    all_within({what: measured})


def all_within(counts: Mapping[str, float]) -> None:
    """Hold several counts against their budgets; all of them are printed, and all that do not fit are reported."""
    faults = []
    for what, measured in counts.items():
        budget = BUDGET[what]
        print(f"{what}: {measured:,.1f} of {budget:,}")
        if measured > budget:
            faults.append(f"{what}: {measured:,.1f}, and the budget is {budget:,}")
        elif measured <= budget / 2:
            faults.append(f"{what}: {measured:,.1f}; the budget of {budget:,} can be lowered")
    assert not faults, "\n".join(faults)
