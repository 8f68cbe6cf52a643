"""The process dies just before or just after the n-th call of a verb, for every n: one result, the same commands."""

import asyncio
from collections import Counter

import pytest

from resurgam import Engine
from support import shop
from support.cluster import Cluster, check_effects, check_run, commands, eventually
from support.limits import HANGS

POINTS = (
    "create:before",
    "create:after",
    "commit:before",
    "commit:after",
    "claim:after",
    "claim_activities:after",
)
TOGETHER = 3  # processes at a time
HOUR = 3600.0


def _start(cluster, plan: str):
    return cluster.spawn(cluster.command("--once", "--lease", str(HOUR)), SHOP_DIE=plan)


async def _finish(cluster) -> list[tuple]:
    """Go on in this process from whatever is there; return the commands of the whole run."""
    async with Engine(cluster.url, registry=shop.registry, lease=HOUR) as engine:
        handle = await engine.start(shop.small, 4, id=shop.SMALL, if_exists="attach")
        result = await handle.result(timeout=HANGS)
        history = await handle.history()
    assert result == shop.SMALL_RESULT
    await check_run(shop.small, history, result)
    check_effects(history, cluster.effects())
    return commands(history)


@pytest.fixture
def clusters(tmp_path):
    """Makes clusters, each with a file of its own."""
    made = []

    def make():
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Cluster(folder))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


async def _die(cluster, monkeypatch, process) -> tuple[bool, list[tuple]]:
    """Wait for the death and go on; whether the process died, and the commands of the whole run."""
    code = process.wait(HANGS)
    assert code in (0, 9), cluster.said(process)
    monkeypatch.setenv("SHOP_EFFECTS", str(cluster.effects_file))
    return code == 9, await _finish(cluster)


@pytest.mark.parametrize("point", POINTS)
async def test_death_at_the_nth_call(clusters, monkeypatch, point):
    """The lease is an hour, so that only the death of its owner can have ended it."""
    ends = []
    for first in range(1, 50, TOGETHER):
        numbers = range(first, first + TOGETHER)
        started = [(cluster := clusters(), _start(cluster, f"{point}:{number}")) for number in numbers]
        ends += [await _die(cluster, monkeypatch, process) for cluster, process in started]
        if not ends[-1][0]:
            break
    deaths = sum(died for died, _ in ends)
    assert 1 <= deaths < len(ends)
    assert all(commands == ends[0][1] for _, commands in ends)
    print(f"{deaths} deaths at {point}")


async def _die_elsewhere(cluster, plan: str, *, dies: bool) -> list[tuple]:
    """Let activities be done by a process of their own, which dies by *plan*; return the commands of the whole run."""
    async with Engine(cluster.url, registry=shop.registry, lease=HOUR) as here:
        handle = await here.start(shop.apart, 4, id="apart")
        mortal = cluster.start_worker(lease=HOUR, queue=shop.APART, SHOP_DIE=plan)
        result = asyncio.ensure_future(handle.result(timeout=HANGS))
        # The last result may be seen here before the process that handed it in is gone.
        await eventually(lambda: mortal.poll() is not None if dies else result.done(), "it dies, or all is done")
        assert mortal.poll() == (9 if dies else None), cluster.said(mortal)
        async with Engine(cluster.url, registry=shop.registry, lease=HOUR, queues=[shop.APART]):
            assert await result == shop.APART_RESULT
        history = await handle.history()
    await check_run(shop.apart, history, shop.APART_RESULT)
    check_effects(history, cluster.effects())
    return commands(history)


@pytest.mark.parametrize(("when", "done"), [("before", 2), ("after", 1)])
async def test_death_at_the_nth_handing_in(clusters, monkeypatch, when, done):
    """What a worker does for a run that it does not hold is handed in by itself; *done* says how often it was done then."""
    runs = []
    for number, dies in ((1, True), (2, True), (3, False)):
        cluster = clusters()
        monkeypatch.setenv("SHOP_EFFECTS", str(cluster.effects_file))
        runs.append(await _die_elsewhere(cluster, f"complete_activities:{when}:{number}", dies=dies))
        times = Counter(effect.key for effect in cluster.effects() if effect.key)
        assert list(times.values()) == [1, *(done if n == number else 1 for n in (1, 2))]
    assert all(commands == runs[0] for commands in runs)


async def test_death_between_scheduling_and_start(clusters, monkeypatch):
    """The activity is scheduled and not started: the next worker starts it, once."""
    cluster = clusters()
    monkeypatch.setenv("SHOP_EFFECTS", str(cluster.effects_file))
    process = _start(cluster, "create:after:1")
    assert process.wait(HANGS) == 9, cluster.said(process)
    assert cluster.effects() == []
    async with cluster.client() as engine:
        last = (await engine.handle(shop.SMALL).history())[-1]
        assert (last.type, last.name) == ("activity_scheduled", "reserve")
    await _finish(cluster)
    assert [effect.name for effect in cluster.effects()] == ["reserve", "stamp", "price"]
