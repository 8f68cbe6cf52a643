"""The lock that processes on a store share: who has it, and when it is lost."""

import os
import socket

import msgspec
import pytest

from resurgam.store.lock import LEASE, Lock, LockLost, _namespace
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import ManualClock


class World:
    """A store, and locks on it of any number of processes."""

    def __init__(self):
        self.clock = ManualClock()
        self.values = MemoryStore(self.clock, lease=1000).values

    def lock(self):
        return Lock(self.values, self.clock, key="lock", work="counting", strict=True)

    async def hold(self, *, pid, host=None, namespace=None):
        """Let a process have the lock."""
        holder = {
            "host": host or socket.gethostname(),
            "pid": pid,
            "token": "x",
            "namespace": _namespace() if namespace is None else namespace,
        }
        await self.values.put("lock", msgspec.json.encode(holder), expires_at=self.clock.now() + LEASE)

    def stand_still(self):
        self.clock.move_to(self.clock.now() + LEASE)


@pytest.fixture
def world():
    return World()


def ended_pid():
    """Return the number of a process that has ended."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    return pid


async def test_a_process_that_has_ended_does_not_keep_the_lock(world):
    await world.hold(pid=ended_pid())
    assert await world.lock().try_take()


@pytest.mark.parametrize("where", [{"host": "elsewhere"}, {"namespace": "pid:[4026531836] of another container"}])
async def test_nothing_is_known_of_processes_that_are_numbered_elsewhere(world, where):
    """Containers may share the name of their host."""
    await world.hold(pid=ended_pid(), **where)
    assert not await world.lock().try_take()
    world.stand_still()
    assert await world.lock().try_take()


async def test_a_lock_that_has_expired_is_lost_though_no_other_process_has_it(world):
    lock = world.lock()
    assert await lock.try_take()
    world.stand_still()
    with pytest.raises(LockLost, match="this process stood still for more than 10 s while it was counting"):
        await lock.confirm()
    assert await lock.try_take()
    await lock.confirm()


async def test_a_lock_that_another_process_has_taken_is_lost(world):
    lock = world.lock()
    assert await lock.try_take()
    world.stand_still()
    other = world.lock()
    assert await other.try_take()
    with pytest.raises(LockLost, match="another process has taken over: it is counting, and finishes it"):
        await lock.confirm()
    await lock.release()
    await other.confirm()
