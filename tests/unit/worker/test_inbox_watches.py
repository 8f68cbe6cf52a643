"""An instance that waits is watched once its attempts have lasted for a while; others are watched at once."""

import asyncio

import pytest

from resurgam.store.records import ExecutionRef
from resurgam.worker.held import HeldInstance
from resurgam.worker.inbox_watches import InboxWatches
from resurgam.worker.tasks import Tasks


class Waited:
    """A store that remembers what is waited for."""

    def __init__(self):
        self.watches = []

    async def wait(self, watch, until=None):
        self.watches.append((watch.execution_id, until))
        await asyncio.Event().wait()


class World:
    """Watches whose looks happen when a test wants them to."""

    def __init__(self, monkeypatch):
        self.store, self.tasks, self.looks = Waited(), Tasks(), []
        self.watches = InboxWatches(self.store, self.tasks, lambda *_: None)
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda _, look: self.looks.append(look))

    def instance(self, name="x"):
        """Return an instance that waits for an attempt."""
        held = HeldInstance(ExecutionRef(entity_id=name, execution_id=name))
        held.waiting, held.attempts = True, {2: None}
        return held

    async def watched(self):
        await asyncio.sleep(0)
        return [name for name, _ in self.store.watches]

    async def look(self, between=lambda: None):
        """Let the time of a look come, and call *between* before the second one."""
        [look] = self.looks
        self.looks.clear()
        look()
        between()
        await asyncio.sleep(0)


@pytest.fixture
async def world(monkeypatch):
    world = World(monkeypatch)
    yield world
    monkeypatch.undo()
    await world.tasks.finish()


async def test_it_is_watched_if_it_still_waits_when_attempts_have_made_a_step(world):
    held = world.instance()
    world.watches.add(held)
    assert await world.watched() == []
    await world.look()
    assert await world.watched() == ["x"]
    assert not held.looked_for
    assert world.looks == []


async def test_one_that_makes_steps_is_not_watched(world):
    """However long the loop takes from one look to the next."""
    busy, slow = world.instance("busy"), world.instance("slow")

    def step():
        busy.base_seq += 2

    world.watches.add(slow)
    world.watches.add(busy)
    for _ in range(5):
        await world.look(step)
        assert busy.looked_for
    assert await world.watched() == ["slow"]


async def test_one_that_commits_is_looked_for_until_it_waits(world):
    held = world.instance()
    world.watches.add(held)
    held.waiting = False
    for _ in range(3):
        await world.look()
        assert held.looked_for
        assert await world.watched() == []
    held.waiting = True
    await world.look()
    assert await world.watched() == ["x"]


async def test_one_that_is_released_is_forgotten(world):
    held = world.instance()
    world.watches.add(held)
    held.released, held.waiting = True, False
    await world.look()
    assert await world.watched() == []
    assert world.looks == []


async def test_one_with_a_deadline_is_watched_at_once(world):
    held = world.instance()
    held.wake_at = 7
    world.watches.add(held)
    assert await world.watched() == ["x"]
    assert world.store.watches == [("x", 7)]
    assert world.looks == []


async def test_one_that_waits_for_an_operation_is_watched_at_once(world):
    held = world.instance()
    held.attempts.clear()
    world.watches.add(held)
    assert await world.watched() == ["x"]
