"""Calls in threads: an interruption hits the call it is meant for, or none."""

import asyncio
import random
import threading

import pytest

from resurgam.worker import threads
from resurgam.worker.threads import ThreadCall
from support.limits import HANGS


@pytest.fixture
def raised(monkeypatch):
    """Count what is raised in threads; it is raised all the same."""
    hits = []
    really = threads.raise_in

    def note(thread, error):
        hits.append((thread, error))
        really(thread, error)

    monkeypatch.setattr(threads, "raise_in", note)
    return hits


def ended(call: ThreadCall) -> None:
    """Wait until the thread is gone. What it did not catch would be an error of the test."""
    call._thread.join(HANGS)
    assert not call._thread.is_alive()


class Busy:
    """A function that executes Python code until it is interrupted."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.caught = []

    def __call__(self):
        self.begun.set()
        try:
            while True:
                pass
        except BaseException as error:
            self.caught.append(type(error))
            raise


async def test_a_call_gives_its_value_or_what_it_raised():
    assert await ThreadCall(lambda: 5, "five").ended == (5, None)
    value, error = await ThreadCall(lambda: int("x"), "x").ended
    assert value is None
    assert isinstance(error, ValueError)
    _, error = await ThreadCall(lambda: next(iter([])), "nothing").ended
    assert isinstance(error, StopIteration)


async def test_a_call_that_is_stopped_is_interrupted_as_soon_as_it_executes_python(raised):
    busy = Busy()
    call = ThreadCall(busy, "busy")
    busy.begun.wait(HANGS)
    call.stop()
    ended(call)

    assert busy.caught == [asyncio.CancelledError]
    assert call.ended.cancelled()
    assert len(raised) == 1


async def test_a_call_that_waits_is_interrupted_when_it_goes_on():
    gate, begun, told = threading.Event(), threading.Event(), []

    def waits():
        begun.set()
        try:
            gate.wait()
            told.append("went on")
        except asyncio.CancelledError:
            told.append("interrupted")

    call = ThreadCall(waits, "waits")
    begun.wait(HANGS)
    call.stop()
    assert call._thread.is_alive()
    gate.set()
    ended(call)
    assert told == ["interrupted"]


async def test_a_call_that_swallows_the_interruption_is_not_hit_again(raised):
    begun, told = threading.Event(), []

    def stubborn():
        begun.set()
        try:
            while True:
                pass
        except asyncio.CancelledError:
            told.append("caught")
        told.append(sum(range(100_000)))

    call = ThreadCall(stubborn, "stubborn")
    begun.wait(HANGS)
    call.stop()
    call.stop()
    ended(call)
    assert told == ["caught", 4999950000]
    assert len(raised) == 1


async def test_a_call_that_is_stopped_before_it_begins_is_not_made(monkeypatch, raised):
    gate, made = threading.Event(), []
    really = ThreadCall._enter

    def late(self):
        gate.wait(HANGS)
        return really(self)

    monkeypatch.setattr(ThreadCall, "_enter", late)
    call = ThreadCall(lambda: made.append(1), "late")
    call.stop()
    gate.set()
    ended(call)
    assert (made, raised) == ([], [])


async def test_a_call_that_has_ended_is_not_hit(raised):
    call = ThreadCall(lambda: 5, "five")
    assert await call.ended == (5, None)
    call.stop()
    ended(call)
    assert raised == []


async def test_an_interruption_that_crosses_the_end_arrives_before_the_thread_goes_on(monkeypatch, raised):
    """It is asked for while the thread is on its way out: it is taken there, and nothing comes later."""
    really, calls = ThreadCall._leave, []

    def crossed(self):
        calls.append(1)
        if len(calls) == 1:
            asked = threading.Thread(target=call.stop)
            asked.start()
            while not raised and asked.is_alive():
                pass
        really(self)

    ready = threading.Event()
    monkeypatch.setattr(ThreadCall, "_leave", crossed)
    call = ThreadCall(ready.wait, "crossed")
    call.ended.cancel()  # a future of another thread's loop is not to be touched by that helper
    ready.set()
    ended(call)
    assert len(raised) == 1


async def test_an_interruption_at_any_moment_hits_no_other_call():
    chance = random.Random(7)
    for _ in range(300):
        length = chance.randrange(3000)
        call = ThreadCall(lambda length=length: sum(range(length)), "short")
        for _ in range(chance.randrange(3000)):
            pass
        call.stop()
        ended(call)
