"""The load of a worker is measured between two announcements."""

import os
import time

import pytest

from resurgam.worker.load import LoadMeter


class Times:
    """Clocks of a process, in seconds."""

    def __init__(self, monkeypatch) -> None:
        self.monotonic = self.thread_time = self.process_time = 100.0
        for name in ("monotonic", "thread_time", "process_time"):
            monkeypatch.setattr(time, name, lambda name=name: getattr(self, name))

    def pass_by(self, passed: float, *, loop: float, process: float) -> None:
        self.monotonic += passed
        self.thread_time += loop
        self.process_time += process


@pytest.fixture
def times(monkeypatch) -> Times:
    return Times(monkeypatch)


def test_the_first_reading_has_nothing_to_compare_with(times):
    found = LoadMeter().read()
    assert (found.loop, found.process) == (None, None)
    assert found.processors == os.cpu_count()


def test_a_reading_tells_the_shares_of_the_time_since_the_last_one(times):
    meter = LoadMeter()
    meter.read()
    times.pass_by(10, loop=2.5, process=15)
    busy = meter.read()
    times.pass_by(10, loop=0, process=0)
    idle = meter.read()
    assert (busy.loop, busy.process) == (0.25, 1.5)
    assert (idle.loop, idle.process) == (0, 0)


def test_a_loop_is_not_busier_than_all_the_time(times):
    """The clocks of a system are not read at the same moment."""
    meter = LoadMeter()
    meter.read()
    times.pass_by(1, loop=1.01, process=1.01)
    assert meter.read().loop == 1


def test_two_readings_at_the_same_moment_tell_nothing(times):
    meter = LoadMeter()
    meter.read()
    assert meter.read().loop is None


def test_a_system_without_a_load_average_tells_none(monkeypatch):
    def unavailable():
        raise OSError

    monkeypatch.setattr(os, "getloadavg", unavailable)
    assert LoadMeter().read().machine is None
    monkeypatch.delattr(os, "getloadavg")
    assert LoadMeter().read().machine is None


def test_work_of_the_loop_counts():
    """By the real clocks: the thread that reads is the one that computes."""
    meter = LoadMeter()
    meter.read()
    begin = time.thread_time()
    while time.thread_time() - begin < 0.02:
        pass
    found = meter.read()
    assert 0 < found.loop <= found.process + 0.001
