"""Check counts against the budget in `tests/budget.json`. A change that makes a step dearer raises it and says why."""

import json
from pathlib import Path

BUDGET: dict[str, float] = json.loads((Path(__file__).parents[1] / "budget.json").read_text())


def within(what: str, measured: float) -> None:
    """Hold a count against its budget; one that is far below it would no longer guard anything."""
    print(f"{what}: {measured:,.1f} of {BUDGET[what]:,}")
    assert measured <= BUDGET[what], f"{what}: {measured:,.1f}, and the budget is {BUDGET[what]:,}"
    assert measured > BUDGET[what] / 2, f"{what}: {measured:,.1f}; the budget of {BUDGET[what]:,} can be lowered"
