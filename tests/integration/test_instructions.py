"""What a unit of each workload may cost in instructions, counted by callgrind.

Python cannot count what its own C code does; callgrind counts it, the same on every run but for a few in a thousand.
The budget is that of `test_budget.py`. `tests/support/count_instructions.py` prints the same figures, also by function.
"""

import pytest

from support import count_instructions
from support.budget import all_within
from support.count_workloads import WORKLOADS


@pytest.mark.timeout(900)
@pytest.mark.skipif(
    count_instructions.VALGRIND is None, reason="instructions are counted by valgrind, which is not on this machine"
)
def test_instructions(tmp_path) -> None:
    # On Postgres the client's cost depends on how many connections it opens in time, which varies between runs; there the
    # calls of Python functions have a budget, and round trips. Over HTTP only the calls have one too: callgrind would take
    # longer for the imports than for all other workloads.
    names = [name for name in WORKLOADS if not name.endswith("-postgres") and name != "W14"]
    counted = count_instructions.count(names, tmp_path)
    all_within({f"instructions per {WORKLOADS[dumps.name].unit}": dumps.instructions() for dumps in counted})
