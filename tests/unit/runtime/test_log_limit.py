"""Long tracebacks are cut in the middle before they are logged."""

import logging

import pytest

from resurgam.runtime.log_limit import LIMIT, TracebackLimit, cut_middle


def logged(error: BaseException) -> str:
    """Return the text that a formatter makes of a record with this exception."""
    record = logging.LogRecord("x", logging.WARNING, __file__, 1, "failed", None, (type(error), error, None))
    assert TracebackLimit().filter(record)
    return logging.Formatter("%(message)s").format(record)


def test_a_short_traceback_is_logged_whole():
    assert logged(ValueError("no money")) == "failed\nValueError: no money"


@pytest.mark.parametrize("nested", [False, True], ids=["itself", "its cause"])
def test_a_long_message_is_cut_in_the_middle_and_the_cut_is_named(nested):
    error = ValueError("begin" + "x" * 1_000_000 + "end")
    if nested:
        outer = RuntimeError("outer")
        outer.__cause__ = error
        error = outer
    text = logged(error)

    assert len(text) < LIMIT + 100
    assert "ValueError: begin" in text
    assert "characters cut from the log ...]" in text
    assert text.endswith("RuntimeError: outer" if nested else "xend")


def test_an_exception_whose_text_cannot_be_made_is_logged():
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert "Broken" in logged(Broken())


def test_the_cut_says_how_much_is_missing():
    assert cut_middle("a" * 10 + "b" * 10, limit=10) == "aaaaa\n[... 10 characters cut from the log ...]\nbbbbb"
