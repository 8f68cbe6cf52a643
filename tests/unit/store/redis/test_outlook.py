"""What a store knows about work without asking: by a server that is played by the test."""

import pytest

from resurgam.core.errors import StoreError
from resurgam.store.lifetime import Lifetime
from resurgam.store.redis.outlook import ACTIVITIES, INSTANCES, KINDS, Outlook
from resurgam.testing import ManualClock

HERE = 1_700_000_000_000
THERE = HERE + 5000
"""The server's clock is five seconds ahead."""


class Server:
    """Answers looks at once, or when it is told to; *due* and *work* are by partition."""

    partitions = 2

    def __init__(self):
        self.lifetime = Lifetime()
        self.due, self.work, self.looks = {}, set(), []
        self.held = None
        self.now = THERE

    def call(self, partition, verb, part, done):
        assert verb == "look"
        self.looks.append(partition)
        answer = [partition in self.work, self.due.get(partition, -1), self.now]
        if self.held is None:
            done(answer)
        else:
            self.held.append((done, answer))


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def clock():
    return ManualClock(HERE)


@pytest.fixture
def touched():
    return []


@pytest.fixture
def outlook(server, clock, touched):
    return Outlook(server, clock, "worker", ["default"], touched.append)


def look(outlook, kinds=KINDS):
    answers = []
    outlook.look(kinds, answers.append)
    [answer] = answers
    return answer


def test_at_first_every_partition_is_asked(outlook):
    assert outlook.take(INSTANCES) == {0, 1}


def test_a_partition_that_was_found_empty_is_not_asked_again(outlook, server):
    assert look(outlook) is False
    server.looks.clear()
    assert look(outlook) is False
    assert outlook.take(INSTANCES) == outlook.take(ACTIVITIES) == set()
    assert server.looks == []


def test_a_partition_with_work_is_asked_until_it_was_claimed(outlook, server):
    server.work.add(1)
    assert look(outlook) is True
    assert outlook.take(INSTANCES) == {1}
    outlook.give_back(INSTANCES, [1])
    assert outlook.take(INSTANCES) == {1}
    assert outlook.take(INSTANCES) == set()


def test_a_look_for_one_kind_leaves_the_others_unknown(outlook):
    look(outlook, [INSTANCES])
    assert outlook.take(INSTANCES) == set()
    assert outlook.take(ACTIVITIES) == {0, 1}


def test_work_that_is_announced_is_asked_for_where_it_is(outlook, touched):
    look(outlook)
    outlook.note_work(1)
    assert touched == [outlook]
    assert outlook.take(ACTIVITIES) == {1}


def test_work_that_is_announced_during_a_look_is_not_forgotten(outlook, server):
    look(outlook)
    outlook.note_work(1)
    server.held, answers = [], []
    outlook.look(KINDS, answers.append)
    outlook.note_work(1)  # after the server has looked
    for done, answer in server.held:
        done(answer)
    assert answers == [False]
    assert outlook.take(INSTANCES) == {1}


def test_a_moment_that_is_announced_during_a_look_is_not_forgotten(outlook, server, clock, touched):
    server.held = []
    outlook.look(KINDS, [].append)
    outlook.note_due(1, HERE + 50)  # after the server has looked, whose clock is not known yet
    for done, answer in server.held:
        done(answer)
    clock.move_to(HERE + 50)
    assert touched == [outlook]
    assert outlook.take(INSTANCES) == {1}


def test_a_moment_of_another_kind_of_work_is_not_forgotten_by_a_look_after_it(outlook, server, clock):
    """The clock of the server says that it has come, that of the store not yet."""
    server.due[1] = THERE + 50
    look(outlook)
    outlook.note_work(1)
    server.due[1], server.now = THERE + 900, THERE + 51
    clock.move_to(HERE + 49)
    assert outlook.take(ACTIVITIES) == {1}
    assert look(outlook, [INSTANCES]) is False
    clock.move_to(HERE + 50)
    assert outlook.take(ACTIVITIES) == {1}


def test_a_moment_of_the_server_is_reached_by_the_clock_of_the_server(outlook, server, clock, touched):
    server.due[1] = THERE + 100
    look(outlook)
    clock.move_to(HERE + 99)
    assert touched == []
    clock.move_to(HERE + 100)
    assert touched == [outlook]
    assert outlook.take(INSTANCES) == {1}


def test_an_announced_moment_comes_by_the_clock_of_the_server_too(outlook, server, clock, touched):
    look(outlook)
    outlook.note_due(0, THERE + 50)
    outlook.note_due(0, THERE + 80)
    clock.move_to(HERE + 49)
    assert touched == []
    clock.move_to(HERE + 50)
    assert outlook.take(INSTANCES) == {0}


def test_a_moment_that_has_come_is_work(outlook, touched):
    look(outlook)
    outlook.note_due(1, THERE)
    assert touched == [outlook]
    assert outlook.take(INSTANCES) == {1}


def test_after_a_moment_the_next_one_is_asked_for(outlook, server, clock):
    server.due[0] = THERE + 10
    look(outlook)
    server.due[0], server.now = THERE + 500, THERE + 10
    clock.move_to(HERE + 10)
    server.looks.clear()
    assert outlook.take(INSTANCES) == {0}
    assert server.looks == [0]
    assert clock.next_due() == HERE + 500


def test_a_look_that_fails_leaves_what_is_not_known(outlook, server):
    server.held, answers = [], []
    outlook.look(KINDS, answers.append)
    for done, _ in server.held:
        done(StoreError("no"))
    assert isinstance(answers[0], StoreError)
    server.held = None
    assert outlook.take(INSTANCES) == {0, 1}


def test_a_look_does_not_wait_for_a_partition_that_is_late(outlook, server, clock, touched):
    server.held, answers = [], []
    outlook.look(KINDS, answers.append)
    (first, answer), (second, _) = server.held
    first(answer)
    assert answers == []
    clock.move_to(HERE + 200)
    assert answers == [False]
    server.looks.clear()
    outlook.look(KINDS, answers.append)
    assert (answers, server.looks) == ([False, False], [])  # it is not asked again before it has answered
    second([True, -1, THERE])
    assert touched == [outlook]
    server.held = None
    server.work.update(range(server.partitions))
    assert look(outlook) is True


def test_a_late_look_that_fails_is_repeated(outlook, server, clock, touched):
    server.held = []
    outlook.look(KINDS, [].append)
    clock.move_to(HERE + 200)
    for done, _ in server.held:
        done(StoreError("no"))
    assert touched == []
    clock.move_to(HERE + 1200)
    assert touched == [outlook]
    assert outlook.take(INSTANCES) == {0, 1}


def test_a_look_fails_only_if_no_partition_answers(outlook, server, clock, touched):
    server.held, answers = [], []
    outlook.look(KINDS, answers.append)
    (first, answer), (second, _) = server.held
    first(StoreError("no"))
    second(answer)
    assert answers == [False]
    clock.move_to(HERE + 1000)
    assert touched == [outlook]


def test_late_claims_are_kept_for_the_next_one(outlook, touched):
    look(outlook)
    outlook.expect_late(INSTANCES, [1])
    outlook.note_work(1)
    assert outlook.take(INSTANCES) == set()
    assert outlook.take(ACTIVITIES) == {1}
    outlook.keep_late(INSTANCES, 1, [0, "one", "two", "three"])
    assert touched == [outlook, outlook]
    assert look(outlook, [INSTANCES]) is True
    assert outlook.take_late(INSTANCES, 2) == ["one", "two"]
    assert outlook.take_late(INSTANCES, 2) == ["three"]
    assert outlook.take(INSTANCES) == {1}


def test_missed_messages_make_everything_unknown(outlook, touched):
    look(outlook)
    outlook.forget()
    assert touched == [outlook]
    assert outlook.take(INSTANCES) == {0, 1}


def test_a_store_that_hears_nothing_asks_every_time(server, clock):
    hears = [True]
    outlook = Outlook(server, clock, "worker", ["default"], lambda _: None, lambda: hears[-1])
    look(outlook)
    hears.append(False)
    for _ in range(2):
        assert outlook.take(INSTANCES) == {0, 1}
    server.work.add(1)
    assert look(outlook) is True


def test_a_closed_outlook_rings_no_more(outlook, server, clock, touched):
    server.due[1] = THERE + 100
    look(outlook)
    outlook.close()
    assert clock.next_due() is None
    clock.move_to(HERE + 100)
    assert touched == []
