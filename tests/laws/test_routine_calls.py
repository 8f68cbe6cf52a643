"""Routine calls, which leave out every check but that of the history, come to the same as with all checks."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laws import random_programs
from laws.test_edits import Line
from laws.test_replay import live, resume
from resurgam.core.event import encode_event
from resurgam.runtime.loop.verdict import Verdict
from resurgam.testing import Simulation

PROGRAMS = 60
LINES = 40
CRASH_POINTS = 4


@contextmanager
def every_check() -> Iterator[None]:
    """Let no call be routine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Verdict, "routine", property(lambda _: False, lambda _, __: None))
        yield


def written(world: Simulation) -> dict[str, list[bytes]]:
    """Return every history of a world as it is stored."""
    return {of: [encode_event(entry) for entry in log] for of, log in world.histories.items()}


def test_random_programs_and_their_resumed_runs_write_the_same_histories():
    @settings(
        max_examples=PROGRAMS, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(tree=random_programs.trees, seed=st.integers(0, 2**32))
    def holds(tree: random_programs.Node, seed: int) -> None:
        asyncio.run(check(tree, seed))

    async def check(tree: random_programs.Node, seed: int) -> None:
        world = await live(tree, seed)
        with every_check():
            assert written(await live(tree, seed)) == written(world)
        points = random.Random(seed).sample(world.points[:-1], min(CRASH_POINTS, len(world.points) - 1))
        for point in points:
            quickly = await resume(world, seed, point)
            with every_check():
                assert written(await resume(world, seed, point)) == written(quickly)

    holds()


async def test_edited_programs_write_the_same_histories():
    for seed in range(LINES):
        line, checked = Line(seed), Line(seed)
        await line.live()
        whole = written(await line.run())
        with every_check():
            await checked.live()
            assert written(await checked.run()) == whole, f"seed {seed}"
