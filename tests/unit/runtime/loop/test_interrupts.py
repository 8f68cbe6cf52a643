"""Ctrl-C ends the program wherever it arrives; a KeyboardInterrupt raised by code is that code's failure."""

import contextlib
import functools
import signal
import threading

import pytest
from msgspec import Raw

from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.loop.interrupts import reraise_ctrl_c


def raises_it():
    raise KeyboardInterrupt("by itself")


def raises_it_again():
    try:
        raises_it()
    except KeyboardInterrupt as error:
        raise error


def is_interrupted():
    signal.raise_signal(signal.SIGINT)
    for _ in range(1000):
        pass


def is_interrupted_and_cleans_up():
    with contextlib.ExitStack() as stack:
        stack.callback(int)
        try:
            is_interrupted()
        except BaseException as error:
            raise error


def handle(reason, *_):
    raise KeyboardInterrupt(reason)


@pytest.fixture(params=[signal.default_int_handler, functools.partial(handle, "by hand")], ids=["python's", "own"])
def handler(request):
    """Set a handler of Ctrl-C, because a test runner may have its own."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


def is_passed_on(function):
    try:
        function()
    except KeyboardInterrupt as error:
        try:
            reraise_ctrl_c(error)
        except KeyboardInterrupt:
            return True
        return False
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("function", [is_interrupted, is_interrupted_and_cleans_up])
def test_a_users_ctrl_c_is_raised_again(handler, function):
    assert is_passed_on(function)


@pytest.mark.parametrize("function", [raises_it, raises_it_again])
def test_an_interrupt_raised_by_code_is_not_raised_again(handler, function):
    assert not is_passed_on(function)


def test_outside_the_main_thread_no_interrupt_is_a_users_ctrl_c():
    results = []
    thread = threading.Thread(target=lambda: results.append(is_passed_on(raises_it)))
    thread.start()
    thread.join()
    assert results == [False]


def test_other_errors_are_not_raised_again():
    reraise_ctrl_c(SystemExit(1))


def test_ctrl_c_in_the_middle_of_a_tick_ends_it(handler):
    registry = Registry()

    @registry.workflow
    async def interrupted(ctx: Context) -> None:
        is_interrupted()

    @registry.workflow
    async def interrupting(ctx: Context) -> None:
        raises_it()

    def execution(workflow):
        ids = dict.fromkeys(("entity_id", "execution_id", "run_id", "tree_id"), "w")
        fields = {"name": workflow.name, "queue": "default", "python": "3.11", "input": Raw(b"[]")}
        return Execution(workflow, [events.WorkflowStarted(seq=1, at=1, **ids, **fields)])

    ended = execution(interrupted)
    with pytest.raises(KeyboardInterrupt):
        ended.advance([], 1)
    assert isinstance(ended.raised(), KeyboardInterrupt)
    ended.close()
    assert execution(interrupting).advance([], 1).status is Status.FAILED
