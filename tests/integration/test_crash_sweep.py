"""The engine dies at every write, before it is applied and after, and another goes on: for each verb, the same outcome.

A death that is found here can be had again by itself: its note names the scenario, the write and the place.
"""

import itertools
import logging
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.faults import Death, World, in_file, in_memory
from support.oracle import Verdict, compare, verdict
from support.scenarios import SCENARIOS, Scenario, crossing, families, registry

SEED = 20
EACH = [pytest.param(scenario, id=scenario.name) for scenario in SCENARIOS]
assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
assert {families.__name__, crossing.__name__} <= {scenario.story.__module__ for scenario in SCENARIOS}


@pytest.fixture(autouse=True)
def _quiet():
    """Hundreds of engines die in each of these tests; what they say of failed attempts is not looked at."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


class Place:
    """Where the worlds of a test are made: in memory, or each in a file of its own."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._count = itertools.count()

    def world(self, scenario: Scenario, deaths: list[Death], victim: int) -> Any:
        options = {"registry": registry, "places": scenario.places, "deaths": deaths, "victim": victim}
        if self._kind == "memory":
            return in_memory(**options)
        return in_file(self._folder / f"{next(self._count)}.db", **options)


@pytest.fixture
def memory(tmp_path):
    return Place("memory", tmp_path)


@pytest.fixture
def sqlite(tmp_path):
    return Place("sqlite", tmp_path)


async def _run(place: Place, scenario: Scenario, deaths: list[Death], victim: int = 0) -> tuple[World, Verdict]:
    async with place.world(scenario, deaths, victim) as world:
        try:
            await scenario.story(world)
            await world.finish()
            return world, await verdict(world)
        except BaseException as error:
            error.add_note(f"{scenario.name}, dead {', '.join(world.died)} at place {victim}")
            raise


class Sweep:
    """A scenario that was played undisturbed, to be played again with deaths."""

    def __init__(self, place: Place, scenario: Scenario, expected: Verdict, writes: list[int]) -> None:
        self._place = place
        self._scenario = scenario
        self._expected = expected
        self.writes = writes

    @classmethod
    async def of(cls, place: Place, scenario: Scenario) -> "Sweep":
        world, expected = await _run(place, scenario, [])
        scenario.check(expected)
        return cls(place, scenario, expected, [len(opened.life.writes) for opened in world.opened])

    async def die(self, *deaths: Death, victim: int = 0) -> list[str]:
        """Let engines die, and compare; return how they did: no more than were to."""
        world, found = await _run(self._place, self._scenario, list(deaths), victim)
        try:
            compare(self._expected, found, world)
        except AssertionError as error:
            error.add_note(f"{self._scenario.name}, dead {', '.join(world.died)} at place {victim}")
            raise
        return world.died

    async def everywhere(self, before: tuple[Death, ...] = (), victim: int = 0) -> list[Death]:
        """Die once at every write that comes after earlier deaths; return where that was."""
        points = []
        for write in itertools.count(1):
            died = await self.die(*before, Death(write, applied=True), victim=victim)
            if len(died) == len(before):
                return points
            points.append(Death(write, applied=True))
            # Before a claim is nothing that is not after the write before it.
            if "claim" not in died[-1]:
                points.append(Death(write, applied=False))
                await self.die(*before, points[-1], victim=victim)
        raise AssertionError

    def some(self, number: int, length: int = 1) -> Iterable[tuple[tuple[Death, ...], int]]:
        """Return some deaths, by chance but always the same, and the place of each."""
        chance = random.Random(f"{SEED} {self._scenario.name}")
        for _ in range(number):
            victim = chance.randrange(len(self.writes))
            deaths = [
                Death(chance.randint(1, max(1, self.writes[victim])), chance.random() < 0.5) for _ in range(length)
            ]
            yield tuple(deaths), victim


def _with_company(scenario: Scenario) -> Scenario:
    return replace(scenario, places=(*scenario.places, ("default",)))


@pytest.mark.parametrize("scenario", EACH)
async def test_death_at_every_write(memory, scenario):
    sweep = await Sweep.of(memory, scenario)
    for victim in range(len(scenario.places)):
        assert await sweep.everywhere(victim=victim)


@pytest.mark.parametrize("scenario", EACH)
async def test_death_at_some_writes_to_a_file(sqlite, scenario):
    sweep = await Sweep.of(sqlite, scenario)
    for deaths, victim in sweep.some(3):
        await sweep.die(*deaths, victim=victim)


@pytest.mark.long
@pytest.mark.parametrize("scenario", EACH)
async def test_death_at_every_write_to_a_file(sqlite, scenario):
    sweep = await Sweep.of(sqlite, scenario)
    for victim in range(len(scenario.places)):
        assert await sweep.everywhere(victim=victim)


@pytest.mark.parametrize("scenario", EACH)
async def test_some_who_die_twice(memory, scenario):
    sweep = await Sweep.of(memory, scenario)
    for deaths, victim in sweep.some(6, length=2):
        await sweep.die(*deaths, victim=victim)


@pytest.mark.long
@pytest.mark.parametrize("scenario", EACH)
async def test_all_who_die_twice(memory, scenario):
    sweep = await Sweep.of(memory, scenario)
    for victim in range(len(scenario.places)):
        for first in await sweep.everywhere(victim=victim):
            await sweep.everywhere((first,), victim=victim)


@pytest.mark.long
@pytest.mark.parametrize("scenario", EACH)
async def test_some_who_die_three_times_with_a_file(sqlite, scenario):
    sweep = await Sweep.of(sqlite, scenario)
    for deaths, victim in sweep.some(40, length=3):
        await sweep.die(*deaths, victim=victim)


@pytest.mark.parametrize("scenario", EACH)
async def test_death_of_one_of_two(memory, scenario):
    """Another engine serves the same queue all the time, and has in its cache how things stood before."""
    sweep = await Sweep.of(memory, _with_company(scenario))
    for deaths, victim in sweep.some(6):
        await sweep.die(*deaths, victim=victim)


@pytest.mark.long
@pytest.mark.parametrize("scenario", EACH)
async def test_every_death_of_one_of_two(memory, sqlite, scenario):
    for place in (memory, sqlite):
        sweep = await Sweep.of(place, _with_company(scenario))
        for victim in range(len(sweep.writes)):
            await sweep.everywhere(victim=victim)
