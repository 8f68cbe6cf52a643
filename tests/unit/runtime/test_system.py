"""The system clock: calls at a wall-clock time, made by a loop with its own monotonic clock."""

import asyncio

import pytest

from resurgam.runtime.system import SystemClock, new_id, new_ids

HOUR = 3_600_000


class Machine:
    """The timers of a loop and a wall clock, which a test moves together or separately."""

    def __init__(self) -> None:
        self.wall = 1_000_000
        self.time = 0.0
        self.timers: list[tuple[float, object]] = []

    def call_later(self, delay, callback):
        entry = (self.time + delay, callback)
        self.timers.append(entry)
        return type("Handle", (), {"cancel": lambda _: self.timers.remove(entry)})()

    def run(self, seconds: float) -> None:
        """Advance both clocks, and make the calls that become due."""
        end = self.time + seconds
        while self.timers and min(self.timers)[0] <= end:
            entry = min(self.timers, key=lambda timer: timer[0])
            self.timers.remove(entry)
            self.wall += round((entry[0] - self.time) * 1000)
            self.time = entry[0]
            entry[1]()
        self.wall += round((end - self.time) * 1000)
        self.time = end


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    loop = type("Loop", (), {"time": lambda _: made.time, "call_later": lambda _, *given: made.call_later(*given)})()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    monkeypatch.setattr(SystemClock, "now", lambda _: made.wall)
    return made


def test_a_call_made_overdue_by_a_clock_step_happens_within_seconds(machine):
    calls = []
    SystemClock().call_at(machine.wall + HOUR, lambda: calls.append(machine.time))
    machine.run(10)
    machine.wall += 2 * HOUR  # as after a suspended machine wakes: the loop's clock stood still
    machine.run(3)
    assert len(calls) == 1
    assert machine.timers == []


@pytest.mark.parametrize("seconds", [0.5, 3, 3.5, 100])
def test_a_scheduled_call_happens_once_at_its_time(machine, seconds):
    calls = []
    SystemClock().call_at(machine.wall + round(seconds * 1000), lambda: calls.append(machine.time))
    machine.run(1000)
    assert calls == pytest.approx([seconds])


def test_setting_the_clock_back_does_not_delay_a_call(machine):
    calls = []
    SystemClock().call_at(machine.wall + 60_000, lambda: calls.append(machine.time))
    machine.run(10)
    machine.wall -= HOUR
    machine.run(1000)
    assert calls == pytest.approx([60])


def test_a_call_can_be_cancelled_after_several_strides(machine):
    call_off = SystemClock().call_at(machine.wall + 60_000, lambda: pytest.fail("it was called off"))
    machine.run(20)
    call_off()
    machine.run(1000)
    assert machine.timers == []


@pytest.mark.parametrize(
    "make",
    [lambda now: [new_id(now) for _ in range(999)], lambda now: [one for _ in range(333) for one in new_ids(now)]],
)
def test_an_id_is_the_digits_of_its_moment_and_sixteen_random_ones(make):
    made = make(1_794_807_352_839)
    assert {len(one) for one in made} == {26}
    assert {one[:10] for one in made} == {"01M7HDNKG7"}
    assert len(set(made)) == 999
    assert {digit for one in made for digit in one[10:]} == set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
    moments = [0, 1, 31, 32, 2**40, 2**48 - 1]
    assert sorted(moments, key=new_id) == moments
