"""The process dies just before or just after the n-th call of a verb, for every n: one result, the same commands."""

import pytest

from acceptance import shop
from acceptance.town import Town, check_effects, check_run, commands
from resurgam import Engine

POINTS = (
    "commit:before",
    "commit:after",
    "complete_activities:before",
    "complete_activities:after",
    "claim:after",
    "claim_activities:after",
)
TOGETHER = 3  # processes at a time


def _start(town, plan: str):
    return town.spawn(town.command("--once", "--lease", "60"), SHOP_DIE=plan)


async def _finish(town) -> list[tuple]:
    """Go on in this process from whatever is there; return the commands of the whole run."""
    async with Engine(town.url, registry=shop.registry, lease=60) as engine:
        handle = await engine.start(shop.small, 4, id=shop.SMALL, if_exists="attach")
        result = await handle.result(timeout=20)
        history = await handle.history()
    assert result == shop.SMALL_RESULT
    await check_run(shop.small, history, result)
    check_effects(history, town.effects())
    return commands(history)


@pytest.fixture
def towns(tmp_path):
    """Makes towns, each with a file of its own."""
    made = []

    def make():
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Town(folder))
        return made[-1]

    yield make
    for town in made:
        town.close()


async def _die(town, monkeypatch, process) -> tuple[bool, list[tuple]]:
    """Wait for the death and go on; whether the process died, and the commands of the whole run."""
    code = process.wait(40)
    assert code in (0, 9), town.said(process)
    monkeypatch.setenv("SHOP_EFFECTS", str(town.effects_file))
    return code == 9, await _finish(town)


@pytest.mark.parametrize("point", POINTS)
async def test_death_at_the_nth_call(towns, monkeypatch, point):
    """The lease is a minute, so that only the death of its owner can have ended it."""
    ends = []
    for first in range(1, 50, TOGETHER):
        numbers = range(first, first + TOGETHER)
        started = [(town := towns(), _start(town, f"{point}:{number}")) for number in numbers]
        ends += [await _die(town, monkeypatch, process) for town, process in started]
        if not ends[-1][0]:
            break
    deaths = sum(died for died, _ in ends)
    # An activity that the commit itself hands out is answered by a commit too: then one verb is not called at all.
    assert (0 if point.startswith("complete_activities") else 1) <= deaths < len(ends)
    assert all(commands == ends[0][1] for _, commands in ends)
    print(f"{deaths} deaths at {point}")


async def test_death_between_scheduling_and_start(towns, monkeypatch):
    """The commit that schedules the activity is there, and nobody has begun it: it is begun by the next, once."""
    town = towns()
    monkeypatch.setenv("SHOP_EFFECTS", str(town.effects_file))
    process = _start(town, "commit:after:1")
    assert process.wait(30) == 9, town.said(process)
    assert town.effects() == []
    async with town.client() as engine:
        last = (await engine.handle(shop.SMALL).history())[-1]
        assert (last.type, last.name) == ("activity_scheduled", "reserve")
    await _finish(town)
    assert [effect.name for effect in town.effects()] == ["reserve", "stamp", "price"]
