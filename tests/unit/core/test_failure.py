"""Recording exceptions as failures, and rebuilding them."""

import json
import os
import sys
import threading
import traceback
import tracemalloc
import types
from pathlib import Path
from typing import ClassVar, Self

import msgspec
import pytest
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.errors import (
    ActivityCancelled,
    ActivityFailed,
    ChildWorkflowCancelled,
    ChildWorkflowFailed,
    NonRetryable,
    PayloadTooLarge,
    PromiseRejected,
    PromiseTimeout,
    RemoteError,
    ResultTimeout,
    RetryAfter,
    SerializationError,
    SignalFailed,
    SignalTimeout,
    UpdateRejected,
    WorkflowTimeout,
)
from resurgam.core.event import Failure, decode_event, encode_event
from resurgam.core.failure import capture, rebuild

HERE = __name__


class Declined(Exception):
    """Its __init__ needs arguments that are not known when it is rebuilt."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"declined with {code}")
        self.code, self.reason = code, reason
        self.calls = 1


class Refused(OSError):
    """An OSError with an __init__ of its own, as many network libraries have."""

    def __init__(self, *args: object, request: str = "") -> None:
        super().__init__(*args)
        self.request = request


class Holder:
    class Inner(ValueError):
        pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


class Batch(ExceptionGroup):
    pass


def raised(error: BaseException) -> BaseException:
    """Return the error with a traceback, as one that was raised."""
    try:
        raise error
    except BaseException as caught:
        return caught


def through_json(failure: Failure) -> Failure:
    event = decode_event(encode_event(events.WorkflowFailed(seq=1, failure=failure)))
    assert isinstance(event, events.WorkflowFailed)
    return event.failure


def again(error: BaseException) -> BaseException:
    """Return the error after a round trip through a history."""
    return rebuild(through_json(capture(error)))


def failing(function, *args):
    try:
        function(*args)
    except BaseException as caught:
        return caught
    raise AssertionError("it did not fail")


def test_a_plain_error_is_captured_with_type_message_and_args():
    failure = capture(ValueError("bad", 5))
    assert failure == Failure(
        type="builtins.ValueError",
        message="('bad', 5)",
        bases=("builtins.Exception",),
        args=Raw(b'["bad",5]'),
    )


def test_bases_are_recorded_up_to_exception():
    assert capture(FileNotFoundError("x")).bases == ("builtins.OSError", "builtins.Exception")
    assert capture(Holder.Inner("x")).bases == ("builtins.ValueError", "builtins.Exception")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        ValueError(),
        ValueError("a", 1, None),
        KeyError("k"),
        KeyError(5),
        Holder.Inner("inner"),
        Declined(51, reason="funds"),
        ResultTimeout("late"),
        SignalTimeout(("pay", "cancel")),
        NonRetryable("never"),
        RetryAfter(1.5),
        RetryAfter(2, "busy"),
        RemoteError("shop.Gone", "gone", "Traceback ..."),
        SerializationError("order", "bad"),
        WorkflowTimeout("order", "o-1", 1.5),
        ActivityCancelled("charge"),
        ChildWorkflowFailed("ship", "s-1"),
        ChildWorkflowCancelled("ship", "s-1"),
        PromiseRejected("pay"),
        PromiseTimeout("pay"),
        SignalFailed("o-2", "pay"),
        UpdateRejected("add"),
        PayloadTooLarge("order", 3, 2),
        KeyboardInterrupt("stop"),
        failing(open, "/no/such/file"),
        failing(Path("/no/such/file").stat),
        failing(json.loads, "x"),
        failing(lambda: {}["k"]),
        failing(lambda: 1 / 0),
        ExceptionGroup("several", [ValueError("a"), KeyError("k")]),
        ExceptionGroup("outer", [ExceptionGroup("inner", [Declined(1, reason="r")]), OSError(2, "gone")]),
        BaseExceptionGroup("base", [KeyboardInterrupt()]),
    ],
    ids=repr,
)
def test_errors_round_trip(error):
    back = again(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert {key: value for key, value in vars(back).items() if not key.startswith("__")} == {
        key: list(value) if isinstance(value, tuple) else value for key, value in vars(error).items()
    }
    assert capture(back) == capture(error), "capturing it once more keeps everything"
    assert capture(again(back)) == capture(error)


def test_init_is_not_called_when_an_error_is_rebuilt():
    error = Declined(51, reason="funds")
    error.calls = 7
    back = again(error)
    assert (back.code, back.reason, back.calls, back.args) == (51, "funds", 7, ("declined with 51",))


def test_an_os_error_keeps_errno_and_file_name():
    back = again(failing(open, "/no/such/file"))
    assert type(back) is FileNotFoundError
    assert (back.errno, back.strerror, back.filename) == (2, "No such file or directory", "/no/such/file")


def test_an_os_error_without_a_file_name():
    back = again(OSError(5, "I/O error"))
    assert (type(back), back.errno, back.strerror, back.filename) == (OSError, 5, "I/O error", None)


def test_an_os_error_with_two_file_names_is_rebuilt():
    error = failing(os.rename, "/no/such/file", "/no/such/other")
    back = again(error)
    assert type(back) is FileNotFoundError
    assert str(back) == "[Errno 2] No such file or directory: '/no/such/file' -> '/no/such/other'"


def test_an_os_error_with_an_init_of_its_own_is_rebuilt():
    back = again(Refused("connection refused", request="GET /"))
    assert type(back) is Refused
    assert (str(back), back.request, back.args) == ("connection refused", "GET /", ("connection refused",))


def test_the_value_of_a_stop_iteration_is_kept():
    assert again(StopIteration(5)).value == 5


def test_an_error_whose_argument_has_no_json_form_keeps_its_type():
    error = ValueError(Path("/x"))
    back = again(error)
    assert type(back) is ValueError
    assert str(back) == str(error) == "/x"


def test_an_error_whose_arguments_do_not_round_trip_becomes_remote():
    """Its text would differ: ``Line(1)`` would read ``{'x': 1}``."""

    class Line(msgspec.Struct):
        x: int

    back = again(ValueError(Line(1)))
    assert type(back) in (ValueError, RemoteError)
    assert str(back) == "Line(x=1)"


def test_notes_and_traceback_are_kept():
    error = raised(ValueError("bad"))
    error.add_note("first")
    error.add_note("second")
    failure = capture(error)
    assert failure.notes == ("first", "second")
    assert failure.traceback.startswith("Traceback (most recent call last):\n  File ")
    assert "in raised" in failure.traceback
    assert not failure.traceback.endswith("\n")
    back = again(error)
    assert back.__notes__ == ["first", "second", failure.traceback]
    assert back.__remote_traceback__ == failure.traceback
    assert capture(raised(back)) == failure, "where it is raised again does not replace where it came from"


def test_printing_a_rebuilt_error_shows_the_remote_traceback_and_the_chain():
    error = raised(ValueError("bad"))
    error.__cause__ = raised(KeyError("k"))
    printed = "".join(traceback.format_exception(again(error)))
    assert printed.count("in raised") == 2
    assert "KeyError: 'k'" in printed
    assert "ValueError: bad" in printed
    assert "direct cause" in printed


def test_a_runaway_traceback_is_cut_to_its_end():
    def down(depth: int) -> None:
        # Alternating frames keep Python from folding the repetition.
        across(depth - 1) if depth else 1 / 0

    def across(depth: int) -> None:
        down(depth)

    text = capture(failing(down, 200)).traceback
    assert len(text) <= 20_100
    assert text.startswith("(")
    assert "characters were cut)" in text
    assert "1 / 0" in text


class Verbose(Exception):
    """An error with long text and many fields."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.payload = "p" * 3_000_000
        self.code = 7
        for number in range(100):
            self.add_note(f"note {number} {'n' * 100_000}")


def everything_large(depth: int = 30) -> BaseException:
    members = [ValueError("m" * 50_000) for _ in range(100)]
    error: BaseException = ExceptionGroup("g" * 100_000, members)
    for _ in range(depth):
        outer = Verbose("é" * 1_000_000)
        outer.__cause__ = error
        error = outer
    return error


@pytest.mark.parametrize("limit", [1_000_000, 50_000, 1])
def test_all_parts_of_a_failure_together_are_bounded(limit):
    failure = capture(everything_large(), limit=limit)
    assert len(msgspec.json.encode(failure)) <= max(1.2 * min(limit, 256 * 1024), 10_000)
    assert type(rebuild(failure)) is Verbose
    group = capture(everything_large(depth=0), limit=limit)
    assert len(msgspec.json.encode(group)) <= max(1.2 * min(limit, 256 * 1024), 10_000)
    assert isinstance(rebuild(group), ExceptionGroup)


def test_every_cut_is_noted():
    failure = capture(everything_large(depth=1))
    assert failure.cause is not None
    assert "exceptions of the group were cut)" in failure.cause.notes[-1]
    assert failure.message == "é" * 20_000 + "... (980000 characters were cut)"
    assert "(100 notes were cut)" in failure.notes
    assert "(field 'payload' of type str could not be recorded)" in failure.notes
    assert failure.fields == {"code": Raw(b"7")}
    alone = Verbose("alone")
    notes = capture(alone).notes
    assert notes[0].endswith("characters were cut)")
    assert any(note.endswith("notes were cut)") for note in notes)


def test_an_error_whose_text_was_cut_keeps_its_type_and_its_fields():
    error = ActivityFailed("charge", 2)
    error.__cause__ = ValueError("x" * 100_000)
    back = rebuild(capture(error))
    assert isinstance(back, ActivityFailed)
    assert type(back.__cause__) is ValueError


def test_a_huge_message_is_not_copied():
    error = ValueError("y" * 50_000_000)
    tracemalloc.start()
    try:
        capture(error)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_the_cause_is_kept():
    error = ValueError("outer")
    error.__cause__ = Declined(5, reason="r")
    back = again(error)
    assert type(back.__cause__) is Declined
    assert back.__cause__.code == 5


def test_a_context_is_kept_as_the_cause():
    error = ValueError("while handling")
    error.__context__ = failing(lambda: {}["k"])
    back = again(error)
    assert (type(back), str(back)) == (ValueError, "while handling")
    assert (type(back.__cause__), str(back.__cause__)) == (KeyError, "'k'")


def test_a_context_that_was_suppressed_is_not_recorded():
    def fail():
        try:
            {}["k"]
        except KeyError:
            raise ValueError("clean") from None

    assert capture(failing(fail)).cause is None


def test_a_falsy_cause_is_kept():
    error = ValueError("outer")
    error.__cause__ = Falsy("inner")
    assert capture(error).cause.message == "inner"


def test_a_chain_is_recorded_to_a_depth_of_twenty():
    error = ValueError("0")
    newest = error
    for index in range(1, 100):
        following = ValueError(str(index))
        following.__cause__ = newest
        newest = following
    failure, messages = capture(newest), []
    while failure is not None:
        messages.append(failure.message)
        failure = failure.cause
    assert messages == [str(index) for index in range(99, 78, -1)]


def test_a_cyclic_cause_chain_is_bounded():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    back = again(one)
    assert str(back.__cause__) == "two"


def test_a_cyclic_exception_group_is_bounded():
    members = [ValueError(str(index)) for index in range(3)]
    group = ExceptionGroup("all", members)
    for member in members:
        member.__cause__ = group
    assert len(encode_event(events.WorkflowFailed(failure=capture(group)))) < 1_000_000


def test_a_field_without_a_json_form_is_dropped_with_a_note():
    error = Declined(51, reason="funds")
    error.lock = threading.Lock()
    back = again(error)
    assert (back.code, back.reason) == (51, "funds")
    assert not hasattr(back, "lock")
    assert back.__notes__ == ["(field 'lock' of type lock could not be recorded)"]


def test_a_nan_field_is_dropped_with_a_note():
    error = Declined(51, reason="funds")
    error.rate = float("nan")
    assert capture(error).notes == ("(field 'rate' of type float could not be recorded)",)


def test_a_local_class_is_rebuilt_as_a_remote_error():
    class Local(Exception):
        pass

    error = raised(Local("here only"))
    error.add_note("note")
    error.__cause__ = KeyError("k")
    failure = capture(error)
    back = again(error)
    assert type(back) is RemoteError
    assert back.type_name == f"{HERE}.test_a_local_class_is_rebuilt_as_a_remote_error.<locals>.Local"
    assert back.message == str(back) == "here only"
    assert back.traceback == failure.traceback
    assert back.__notes__ == ["note", failure.traceback]
    assert type(back.__cause__) is KeyError


def test_a_remote_error_stays_remote_when_recorded_again():
    failure = Failure(type="shop.Gone", message="gone", traceback="Traceback X", notes=("n",))
    once = rebuild(failure)
    twice = again(once)
    assert type(twice) is RemoteError
    assert (twice.type_name, twice.message, twice.traceback) == ("shop.Gone", "gone", "Traceback X")
    assert twice.__notes__ == once.__notes__ == ["n", "Traceback X"]


@pytest.mark.parametrize(
    "name",
    [
        "no.such.module.Error",
        "NoDots",
        "",
        "builtins.NoSuchError",
        "builtins.int",
        "builtins.print",
        "os.path.join",
        f"{HERE}.Holder",
        f"{HERE}.Holder.Missing",
    ],
)
def test_an_unknown_type_is_rebuilt_as_a_remote_error(name):
    back = rebuild(Failure(type=name, message="m"))
    assert (type(back), back.type_name, str(back)) == (RemoteError, name, "m")


def test_rebuild_imports_no_module(tmp_path, monkeypatch):
    (tmp_path / "resurgam_not_imported.py").write_text("class Gone(Exception): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    back = rebuild(Failure(type="resurgam_not_imported.Gone", message="m"))
    assert type(back) is RemoteError
    assert set(sys.modules) == before


def test_rebuild_does_not_trigger_lazy_imports(monkeypatch):
    lazy, asked = types.ModuleType("resurgam_lazy"), []

    def module_getattr(name):
        asked.append(name)
        raise ImportError(f"{name} would be imported now")

    lazy.__getattr__ = module_getattr
    monkeypatch.setitem(sys.modules, "resurgam_lazy", lazy)
    back = rebuild(Failure(type="resurgam_lazy.heavy.Gone", message="m"))
    assert type(back) is RemoteError
    assert asked == []


def test_a_broken_str_does_not_lose_the_failure():
    failure = capture(Mute("x"))
    assert failure.message == "<Mute whose text cannot be made: RuntimeError('no words')>"
    back = again(Mute("x"))
    assert type(back) is RemoteError
    assert (back.type_name, str(back)) == (f"{HERE}.Mute", failure.message)


def test_text_with_lone_surrogates_is_recorded():
    error = ValueError("name \udcff")
    error.add_note("note \udcff")
    back = again(error)
    assert str(back).startswith("name ")
    assert back.__notes__[0].startswith("note ")


def test_a_group_keeps_its_members_its_notes_and_its_cause():
    error = ExceptionGroup("several", [Declined(5, reason="r"), ExceptionGroup("inner", [KeyError("k")])])
    error.add_note("note")
    error.__cause__ = OSError(2, "gone")
    back = again(error)
    assert back.message == "several"
    assert [type(member) for member in back.exceptions] == [Declined, ExceptionGroup]
    assert back.exceptions[0].code == 5
    assert str(back.exceptions[1].exceptions[0]) == "'k'"
    assert back.__notes__ == ["note"]
    assert back.__cause__.errno == 2


class Careful(ExceptionGroup):
    """A group whose initialiser has other parameters."""

    made: ClassVar[list[str] | None] = []

    def __new__(cls, first: str, second: str) -> Self:
        return super().__new__(cls, first, [ValueError(second)])

    def __init__(self, first: str, second: str) -> None:
        self.made.append(first)  # fails once there is nothing to append to


def test_neither_new_nor_init_is_called_when_a_group_is_rebuilt(monkeypatch):
    failure = capture(Careful("first", "second"))
    monkeypatch.setattr(Careful, "made", None)
    back = rebuild(failure)
    assert type(back) is Careful
    assert (back.message, [str(one) for one in back.exceptions]) == ("first", ["second"])


def test_a_group_keeps_its_fields():
    error = Batch("several", [ValueError("a")])
    error.code = 5
    back = again(error)
    assert type(back) is Batch
    assert back.code == 5


def test_a_group_nested_too_deeply_ends_in_a_remote_error():
    error: Exception = ValueError("innermost")
    for index in range(30):
        error = ExceptionGroup(str(index), [error])
    back: BaseException = again(error)
    depth = 0
    while isinstance(back, BaseExceptionGroup):
        back, depth = back.exceptions[0], depth + 1
    assert depth == 20
    assert type(back) is RemoteError
    assert back.type_name == "builtins.ExceptionGroup"


def test_a_resurgam_error_keeps_its_text_and_its_cause():
    error = ActivityFailed("charge", 3)
    error.__cause__ = Declined(5, reason="r")
    back = again(error)
    assert type(back) is ActivityFailed
    assert str(back) == "activity 'charge' failed after 3 attempts: Declined: declined with 5"
    assert back.cause.code == 5
