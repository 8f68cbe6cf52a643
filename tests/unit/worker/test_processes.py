"""Which functions may run in a process of their own, how they are found there, and what comes back."""

import asyncio
import os
import re
import signal
import socket
import sys
import threading
import types

import msgspec
import pytest
from msgspec import Raw

from resurgam import Engine, Registry, errors
from resurgam.core.codec import MAX_PAYLOAD
from resurgam.core.failure import rebuild
from resurgam.runtime.definitions.definition import ActivityOptions
from resurgam.runtime.definitions.info import ActivityInfo
from resurgam.worker import process_main
from resurgam.worker.process_main import Answer, Beat, Call, ProcessAttempt, Wire, message, run_attempt
from resurgam.worker.processes import Processes, _exit_text, import_path_of, processors
from support import process_activities

HERE = __name__
registry = Registry()


def call(activity, arguments: bytes = b"[]", **place) -> Call:
    info = ActivityInfo(name=activity.name, entity_id="e", execution_id="e#1", workflow_id="w", attempt=1, queue="q")
    return Call(**{**import_path_of(activity), **place}, info=info, input=Raw(arguments))


class Heard:
    """An attempt whose heartbeats are noted here."""

    max_payload = MAX_PAYLOAD

    def __init__(self) -> None:
        self.beats = []

    def cancelled(self) -> bool:
        return False

    def beat(self, details) -> None:
        self.beats.append(details)


def made(call: Call) -> Answer:
    return run_attempt(call, Heard())


def test_an_async_function_has_no_process():
    async def fetch() -> None: ...

    with pytest.raises(errors.DefinitionError, match="requires a plain function") as refused:
        registry.activity(executor="process")(fetch)
    assert __file__ in str(refused.value)
    with pytest.raises(errors.DefinitionError, match="requires a plain function"):
        registry.activity(fetch).options(executor="process")


def test_a_local_function_has_no_process():
    def local() -> None: ...

    with pytest.raises(errors.DefinitionError, match="module level") as refused:
        registry.activity(executor="process")(local)
    assert __file__ in str(refused.value)
    with pytest.raises(errors.DefinitionError, match="module level"):
        registry.activity(local).options(executor="process")


def test_there_are_two_executors():
    with pytest.raises(errors.DefinitionError, match="'thread' or 'process'"):
        ActivityOptions(executor="fiber")
    assert process_activities.where.options(executor="process").runs_in_process(None)
    assert process_activities.where.runs_in_process("process")
    assert not process_activities.where.runs_in_process(None)
    assert process_activities.double.runs_in_process(None)
    assert not process_activities.double.runs_in_process("thread")


def test_what_stands_in_for_a_function_stays_here():
    twin = process_activities.known.copy()
    twin.replace("double", lambda parcel: parcel)
    twin.replace("unknown", lambda: None)

    assert not twin.activities.find("double").runs_in_process("process")
    assert not twin.activities.find("unknown").runs_in_process("process")


def test_a_function_is_found_by_its_module_and_its_name():
    assert import_path_of(process_activities.double) == {
        "module": process_activities.__name__,
        "qualname": "double",
        "main": {},
    }


def test_a_function_that_goes_by_another_name_is_not_found():
    hidden = registry.activity(name="hidden", executor="process")(lambda_of_the_module)
    with pytest.raises(errors.DefinitionError, match=re.escape(f"{HERE}.<lambda>; define it at module level")):
        import_path_of(hidden)


lambda_of_the_module = lambda: 1  # noqa: E731


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"__file__": __file__, "__spec__": None}, {"init_main_from_path": __file__}),
        ({"__file__": "<stdin>", "__spec__": None}, None),
        ({"__spec__": types.SimpleNamespace(name="shop.app")}, {"init_main_from_name": "shop.app"}),
        ({"__spec__": types.SimpleNamespace(name="shop.__main__"), "__file__": "x"}, None),
        ({"__spec__": None}, None),
    ],
    ids=["script", "stdin", "python -m", "__main__.py", "notebook"],
)
def test_the_main_program_is_named_as_multiprocessing_does(monkeypatch, fields, expected):
    main = types.ModuleType("__main__")
    main.__dict__.update(fields)
    exec("def work(): pass", main.__dict__)
    activity = Registry().activity(executor="process")(main.work)
    monkeypatch.setitem(sys.modules, "__main__", main)

    if expected is None:
        with pytest.raises(errors.DefinitionError, match="define it in a module"):
            import_path_of(activity)
    else:
        assert import_path_of(activity)["main"] == expected


def test_an_attempt_gives_the_bytes_of_its_result():
    answer = made(call(process_activities.double, b'[{"weight":2,"sent_at":"2026-07-01T12:00:00Z"}]'))

    assert answer.failure is None
    assert bytes(answer.result) == b'{"weight":4,"sent_at":"2026-07-01T12:00:00Z"}'


def test_an_attempt_gives_what_is_recorded_of_its_error():
    answer = made(call(process_activities.tear, b"[3]"))

    assert answer.failure is not None
    error = rebuild(answer.failure)
    assert isinstance(error, process_activities.TornError)
    assert isinstance(error.__cause__, KeyError)
    assert made(call(process_activities.tear, b"[]")).failure.type == "resurgam.core.errors.DefinitionError"
    assert made(call(process_activities.tear, b'["x"]')).failure.type == "resurgam.core.errors.SerializationError"


def test_a_function_that_cannot_be_imported_is_a_clear_failure():
    failure = made(call(process_activities.double, module="no.such.module")).failure

    assert failure.type == "resurgam.core.errors.DefinitionError"
    assert "no.such.module.double cannot be imported" in failure.message


def test_a_main_program_that_is_being_imported_opens_no_engine():
    """It would start everything a second time, on the same store."""

    async def start() -> None:
        async with Engine():
            pass

    process_main.importing_main.set()
    try:
        with pytest.raises(errors.DefinitionError, match="__main__"):
            asyncio.run(start())
    finally:
        process_main.importing_main.clear()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (3, "ended with exit code 3"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-signal.SIGKILL, "was killed by SIGKILL (was the machine out of memory?)"),
        (-40, "was killed by signal 40"),
    ],
)
def test_how_a_process_ended_is_said(code, said):
    assert _exit_text(code) == said
    assert str(errors.ProcessDied("press", said)) == f"the process that ran activity 'press' {said}"


async def ask(processes, activity, arguments=b"[]", beats=None, **more):
    async with processes.borrow(activity.name) as process:
        heard = [] if beats is None else beats
        return process.pid, await process.call(call(activity, arguments, **more), heard.append)


async def test_there_are_no_more_processes_than_places_and_they_are_used_again():
    processes = Processes(2)
    try:
        answers = await asyncio.gather(*(ask(processes, process_activities.whoami) for _ in range(6)))
        assert {answer.failure for _, answer in answers} == {None}
        assert len({pid for pid, _ in answers}) == 2
    finally:
        await processes.close()
    assert not any(process_activities.lives(pid) for pid, _ in answers)


async def test_one_that_died_while_it_was_idle_is_replaced():
    processes = Processes(1)
    try:
        first, _ = await ask(processes, process_activities.whoami)
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        second, answer = await ask(processes, process_activities.whoami)
        assert (first != second, answer.failure) == (True, None)
    finally:
        await processes.close()


async def test_one_that_dies_gives_its_place_to_another():
    processes = Processes(1)
    try:
        with pytest.raises(errors.ProcessDied, match="exit code 3"):
            await ask(processes, process_activities.dies)
        _, answer = await ask(processes, process_activities.whoami)
        assert answer.failure is None
    finally:
        await processes.close()


async def test_closing_what_was_never_used_starts_nothing():
    processes = Processes(processors())
    await processes.close()
    await processes.close()
    assert processes._lifeline is None


def test_a_message_says_how_long_it_is():
    written = message(None)
    assert written == len(written[process_main.HEAD :]).to_bytes(process_main.HEAD, "big") + b"null"


@pytest.fixture
def wire():
    """The end of a process, with its other end in the hands of the test."""
    mine, theirs = socket.socketpair()
    ours = Wire(theirs.detach())
    yield ours, mine
    ours._socket.close()
    mine.close()


def taken(socket) -> list[Beat | Answer]:
    """Return all messages that have come."""
    socket.setblocking(False)
    data, found = socket.recv(1 << 20), []
    while data:
        length = process_main.HEAD + int.from_bytes(data[: process_main.HEAD], "big")
        found.append(msgspec.json.decode(data[process_main.HEAD : length], type=Beat | Answer))
        data = data[length:]
    return found


def test_heartbeats_go_over_the_wire_before_the_answer(wire):
    ours, mine = wire
    line = ProcessAttempt(call(process_activities.whoami).info, ours)
    line.beat(Raw(b"[1]"))
    line.beat(None)
    line.answer(Answer(result=Raw(b"5")))
    assert taken(mine) == [Beat(details=Raw(b"[1]")), Beat(), Answer(result=Raw(b"5"))]


def test_what_an_attempt_left_behind_does_not_speak_for_the_next(wire):
    ours, mine = wire
    line = ProcessAttempt(call(process_activities.whoami).info, ours)
    assert not line.cancelled()
    line.answer(Answer())
    line.beat(Raw(b"1"))
    assert line.cancelled()
    assert taken(mine) == [Answer()]


def test_a_process_learns_that_its_attempt_is_cancelled(wire):
    ours, mine = wire
    line = ProcessAttempt(call(process_activities.whoami).info, ours)
    assert not line.cancelled()
    mine.sendall(message(None))
    assert line.cancelled()
    assert line.cancelled()


def test_a_process_whose_worker_has_hung_up_is_not_waited_for(wire):
    ours, mine = wire
    line = ProcessAttempt(call(process_activities.whoami).info, ours)
    mine.close()
    assert line.cancelled()
    assert ours.read() == b""


def test_a_long_message_is_read_to_its_end(wire):
    ours, mine = wire
    long = call(process_activities.whoami, b'["' + b"x" * (3 << 20) + b'"]')
    sending = threading.Thread(target=mine.sendall, args=(message(long),))
    sending.start()
    assert msgspec.json.decode(ours.read(), type=Call) == long
    sending.join()


def test_a_fork_has_no_line_to_the_worker(wire):
    ours, _ = wire
    line = ProcessAttempt(call(process_activities.whoami).info, ours)
    ours._socket.close()  # as after a fork
    for verb in (line.cancelled, lambda: line.beat(None)):
        with pytest.raises(RuntimeError, match="a fork of an activity's process has no connection to the worker"):
            verb()


def test_details_are_read_where_the_function_runs():
    heard = Heard()
    told = run_attempt(call(process_activities.counts, details=Raw(b'{"seen":[7]}')), heard)
    assert told.failure.type == "resurgam.core.errors.RetryAfter"
    assert [None if beat is None else bytes(beat) for beat in heard.beats] == [b'{"seen":[7,1]}', None]


async def test_heartbeats_are_heard_while_a_process_is_asked():
    processes, heard = Processes(1), []
    try:
        _, answer = await ask(processes, process_activities.counts, beats=heard, details=Raw(b'{"seen":[7]}'))
        assert answer.failure.type == "resurgam.core.errors.RetryAfter"
        assert heard == [Raw(b'{"seen":[7,1]}'), None]
    finally:
        await processes.close()
