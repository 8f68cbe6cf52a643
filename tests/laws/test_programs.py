"""Every named program, under permuted orders of completion: replay is exact, and every prefix can be gone on from."""

import random

import pytest

from resurgam.core.state import Status
from resurgam.testing.simulation import First
from support.programs import BOUND_TO_MINOR, EXPECTED, FAILING, PROGRAMS
from support.programs.simulated import misfit, simulate, terminal_event

ORDERS = 12
each_program = pytest.mark.parametrize("name", PROGRAMS)


def text_of(log):
    """Return a history as text."""
    return "".join(entry.to_json() for entry in log)


async def histories(name):
    """Return the different histories that a program has under so many orders of completion."""
    logs = [await simulate(name, random.Random(seed)).run() for seed in range(ORDERS)]
    return {text_of(log): log for log in logs}.values()


def test_there_are_enough_programs():
    assert len(PROGRAMS) >= 40
    assert all(workflow.function.__doc__ for workflow in PROGRAMS.values())
    assert PROGRAMS.keys() >= BOUND_TO_MINOR.keys() | EXPECTED.keys() | FAILING


@each_program
async def test_a_complete_history_replays_exactly(name):
    for log in await histories(name):
        assert await misfit(name, log) == ""


@each_program
async def test_programs_end_as_they_should(name):
    for log in await histories(name):
        end = terminal_event(log)
        assert (end.type == "workflow_failed") == (name in FAILING), end.to_json()
        if name in EXPECTED:
            assert PROGRAMS[name].result.decode(end.result, "result") == EXPECTED[name]


@each_program
async def test_the_same_choices_give_the_same_history(name):
    first, second = [await simulate(name, random.Random(7)).run() for _ in range(2)]
    assert [entry.to_json() for entry in first] == [entry.to_json() for entry in second]


@each_program
async def test_every_prefix_can_be_gone_on_from(name):
    """Each prefix once, though several histories begin with it; each history that comes of one is replayed once."""
    begun, replayed = set(), set()
    for log in await histories(name):
        for length in range(1, len(log) + 1):
            prefix = text_of(log[:length])
            if prefix in begun:
                continue
            begun.add(prefix)
            for chooser in (First(), random.Random(length)):
                resumed = simulate(name, chooser, log[:length])
                await resumed.run()
                assert resumed.status is not Status.DIVERGED, f"{length=}\n{resumed.show()}"
                assert resumed.log[:length] == log[:length]
                if text_of(resumed.log) not in replayed:
                    replayed.add(text_of(resumed.log))
                    assert await misfit(name, resumed.log) == "", f"{length=}\n{resumed.show()}"
