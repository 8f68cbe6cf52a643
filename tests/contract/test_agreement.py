"""The memory store is the oracle: whatever several workers do to both, another store answers the same and holds the same."""

import pytest

from support.agreement.coverage import Coverage
from support.agreement.subjects import SUBJECTS, tell

STEPS = 200
SEEDS = {"sqlite": 12}
MORE_SEEDS = range(100, 500)


@pytest.mark.parametrize("name", SUBJECTS)
async def test_a_store_tells_the_same_story_as_memory(name):
    coverage = Coverage()
    for seed in range(SEEDS[name]):
        await tell(SUBJECTS[name], seed, STEPS, coverage)
    assert coverage.missing == []


@pytest.mark.long
@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("seeds", [MORE_SEEDS[n : n + 50] for n in range(0, len(MORE_SEEDS), 50)], ids=str)
async def test_a_store_tells_many_stories_as_memory_does(name, seeds):
    for seed in seeds:
        await tell(SUBJECTS[name], seed, STEPS, Coverage())
