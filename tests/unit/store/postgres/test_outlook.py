"""What a store knows about the work for a worker, while looks are under way."""

from types import SimpleNamespace

import pytest

from resurgam.store.postgres.outlook import KINDS, Outlook
from resurgam.testing import ManualClock


class Server:
    """Keeps the looks that are under way, for the test to answer."""

    def __init__(self) -> None:
        self.looks = []
        self.lifetime = SimpleNamespace(over=False)

    def call(self, verb, part, done):
        assert verb == "look"
        self.looks.append(done)


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def clock():
    return ManualClock(1000)


@pytest.fixture
def touched():
    return []


@pytest.fixture
def outlook(server, clock, touched):
    return Outlook(server, clock, "worker", ["default"], touched.append)


def nothing_until(due, now=1000):
    return [[False, False, False], due, now]


@pytest.mark.parametrize("found", [None, 9000], ids=["nothing", "a later moment"])
async def test_a_moment_that_is_announced_during_a_look_is_kept(outlook, server, clock, touched, found):
    outlook.look(KINDS, lambda _: None, listens=True)
    outlook.note_due(2000)
    server.looks.pop()(nothing_until(found))
    assert not touched
    clock.move_to(2000)
    assert touched == [outlook]


async def test_a_look_brings_an_earlier_moment(outlook, server, clock, touched):
    outlook.note_due(9000)
    outlook.look(KINDS, lambda _: None, listens=True)
    server.looks.pop()(nothing_until(3000))
    clock.move_to(3000)
    assert touched == [outlook]
