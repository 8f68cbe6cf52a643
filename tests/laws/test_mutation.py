"""Every small mistake in the matchers is noticed: by the tables first, then by the laws."""

import asyncio
import inspect
import logging
import signal
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

import pytest

from laws import test_edits, test_illegal_edits, test_matchers
from laws.mutation import Mutant, alive, mutants
from resurgam.core import matchers

PATIENCE = 60
"""Seconds that a mutant is given: one that goes round in circles is noticed too."""

_INDEX = "self._by_type = {} for command in self.rest: self._by_type.setdefault(COMMANDS[type(command)].type, deque())"
_KEYS = "self._by_key = {command.key: command for command in self.rest}"
_PASSED = "(follower := self.next) is not None and"
_MARKED = "if type(found) is events.StepRemoved: found, marks = (cursor.step, len(cursor.marks))"
SPARED = {
    f"Cursor.next_of: if self._by_type is None: {_INDEX}.append(command) -> if True: {_INDEX}.append(command)": (
        "the index is made anew each time, which is only slower"
    ),
    f"Cursor.with_key: if self._by_key is None: {_KEYS} -> if True: {_KEYS}": "as above",
    f"Cursor.take: while self._ahead and {_PASSED} (follower.seq in self._ahead): self._ahead.discard(follower.seq) "
    f"self._index += 1 -> while self._ahead and {_PASSED} (follower.seq in self._ahead): pass self._index += 1": (
        "what was asked for ahead of its turn stays noted when its turn has come, and is not read again"
    ),
    f"Cursor.take: self._ahead and {_PASSED} (follower.seq in self._ahead) -> {_PASSED} follower.seq in self._ahead": (
        "an empty set holds nothing; asking it first is only quicker"
    ),
    "Cursor.take: if match.marks: self._index += match.marks -> if True: self._index += match.marks": (
        "adding 0 changes nothing; the check is only quicker"
    ),
    "by_location: 0 -> 1": "the index passes the match, which is then noted as matched ahead of its turn",
    f"by_location: {_MARKED} -> {_MARKED.replace('type(found) is events.StepRemoved', 'True')}": (
        "without a mark the step is the next command, and there are no marks; the check is only quicker"
    ),
    "removal: mark.location < first.location -> mark.location <= first.location": "as `by_location: 0 -> 1`",
}
"""Mutants that no test notices, each with the reason why it is equivalent."""


def tables(module: ModuleType) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Return the tests of a module that are plain tables, each with its arguments."""
    for name, function in vars(module).items():
        if not name.startswith("test_") or inspect.iscoroutinefunction(function):
            continue
        marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
        if not marks:
            yield function, {}
        for mark in marks:
            names = [mark.args[0]] if isinstance(mark.args[0], str) else mark.args[0]
            for row in mark.args[1]:
                yield function, dict(zip(names, row, strict=True))


TABLES = list(tables(test_matchers))


async def laws() -> None:
    await test_edits.hold(range(40))
    await test_illegal_edits.hold(range(20))


def is_noticed(mutant: Mutant) -> bool:
    def out_of_patience(_: int, __: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, out_of_patience)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        with alive(matchers, mutant):
            for function, arguments in TABLES:
                function(**arguments)
            asyncio.run(laws())
    except (Exception, pytest.fail.Exception):
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return False


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Mutants diverge by the hundred, and leave coroutines behind."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_no_mutant_of_the_matchers_survives():
    everyone = list(mutants(matchers))
    survived = [str(mutant) for mutant in everyone if not is_noticed(mutant)]

    print(f"{len(everyone)} mutants, {len(survived)} survived")
    assert sorted(set(survived)) == sorted(SPARED)


@pytest.mark.filterwarnings("ignore")
def test_the_tables_pass_without_a_mutant_and_notice_one():
    for function, arguments in TABLES:
        function(**arguments)
    flipped = next(
        m for m in mutants(matchers) if m.where == "by_location" and m.was == "intent.version > found.version"
    )
    assert is_noticed(flipped)
    for function, arguments in TABLES:
        function(**arguments)
