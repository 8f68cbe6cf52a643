import pytest

from resurgam.flows.http.answer import (
    LONGEST_PAUSE,
    PROBLEM,
    Accepted,
    Incomplete,
    Outputs,
    Rejection,
    Response,
    read_answer,
    retry_after,
)

NOW = 1_000_000_000_000  # Sun, 09 Sep 2001 01:46:40 GMT


def _read(status, body=b"", mode="sync", **headers):
    return read_answer(mode, Response(status=status, body=body, **headers), NOW)


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_a_success_without_a_body_has_no_outputs(status):
    assert _read(status) == Outputs({})
    assert _read(status, b" \n") == Outputs({})


def test_the_object_in_a_success_is_the_outputs_whatever_its_content_type_says():
    assert _read(200, b'{"a":{"b":[1,null]}}', content_type="text/plain") == Outputs({"a": {"b": [1, None]}})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[1]", "an array"),
        (b"3", "a number"),
        (b'"text"', "a string"),
        (b"null", "null"),
        (b"true", "a boolean"),
        (b"<html>", "not JSON"),
        (b'{"a":NaN}', "not JSON"),
        (b'{"a":1}{', "not JSON"),
        (b'{"\xff":1}', "not JSON"),
        (b'{"a":' + b"[" * 100_000, "not JSON"),
    ],
)
def test_a_success_with_anything_but_an_object_fails_for_good(body, why):
    answer = _read(200, body)

    assert isinstance(answer, Rejection)
    assert why in answer.reason


def test_a_body_that_is_too_long_or_compressed_fails_for_good():
    cut = _read(200, b'{"a"', cut=True)
    packed = _read(200, b"\x1f\x8b", content_encoding="gzip")

    assert isinstance(cut, Rejection)
    assert "max_payload" in cut.reason
    assert isinstance(packed, Rejection)
    assert "'gzip'" in packed.reason


@pytest.mark.parametrize("body", [b"", b"accepted", b'{"a":1}', b"[1]", b"\xff"])
@pytest.mark.parametrize("status", [200, 202, 204])
def test_any_success_acknowledges_an_async_step(status, body):
    assert _read(status, body, mode="async") == Accepted()


def test_any_success_completes_a_compensation():
    assert _read(200, b"done", mode="compensate") == Outputs({})


@pytest.mark.parametrize("mode", ["sync", "async", "compensate"])
@pytest.mark.parametrize("status", [500, 502, 503, 504, 599])
def test_an_error_of_the_server_is_not_completed(status, mode):
    answer = _read(status, b'{"detail":"busy"}', mode=mode, content_type=PROBLEM)

    assert isinstance(answer, Incomplete)
    assert answer.reason.endswith(": busy")


@pytest.mark.parametrize("mode", ["sync", "async", "compensate"])
@pytest.mark.parametrize("status", [400, 401, 404, 409, 410, 422, 499])
def test_a_refusal_is_permanent(status, mode):
    assert isinstance(_read(status, mode=mode), Rejection)


@pytest.mark.parametrize("status", [408, 425, 429])
def test_a_refusal_that_is_temporary_by_its_name_is_not_completed_unless_it_is_a_problem(status):
    assert isinstance(_read(status), Incomplete)
    assert isinstance(_read(status, b"{}", content_type=PROBLEM), Rejection)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_a_redirect_is_permanent_and_says_what_to_do(status):
    answer = _read(status, retry_after="1")

    assert isinstance(answer, Rejection)
    assert "redirects are not followed" in answer.reason


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"detail":"card expired","title":"No"}', "card expired"),
        (b'{"title":"No"}', "No"),
        (b'{"detail":"  ","title":"No"}', "No"),
        (b'{"detail":7}', "Unprocessable"),
        (b"[]", "Unprocessable"),
        (b"{", "Unprocessable"),
    ],
)
def test_the_error_is_the_detail_of_the_problem_or_its_title_or_the_status(body, said):
    answer = _read(422, body, content_type="Application/Problem+JSON; charset=utf-8")

    assert isinstance(answer, Rejection)
    assert said in answer.reason


def test_a_problem_in_a_success_is_a_failure():
    assert _read(200, b'{"detail":"no"}', content_type=PROBLEM) == Rejection("answered 200 OK: no")


def test_the_text_of_an_error_is_shown_in_one_line_and_cut():
    answer = _read(500, b"no\r\n  room " + b"x" * 5000, content_type="text/plain")

    assert answer.reason.startswith("answered 500 Internal Server Error: no room xxx")
    assert len(answer.reason) < 600


@pytest.mark.parametrize(
    ("text", "date", "pause"),
    [
        ("2", "", 2000),
        ("0", "", 0),
        ("Sun, 09 Sep 2001 01:46:45 GMT", "", 5000),
        ("Sunday, 09-Sep-01 01:46:45 GMT", "", 5000),
        ("Sun, 09 Sep 2001 01:46:30 GMT", "", 0),
        ("Sun, 09 Sep 2001 03:00:07 GMT", "Sun, 09 Sep 2001 03:00:00 GMT", 7000),
        ("999999999999", "", LONGEST_PAUSE),
        ("Sun, 09 Sep 2040 01:46:40 GMT", "", LONGEST_PAUSE),
        ("9" * 5000, "", None),
        ("-1", "", None),
        ("1.5", "", None),
        ("soon", "", None),
        ("\u0663", "", None),
        ("Sun, 99 Sep 2001 01:46:45 GMT", "", None),
        ("", "", None),
    ],
)
def test_the_pause_that_a_service_asks_for_is_respected_within_reason(text, date, pause):
    assert retry_after(Response(status=503, retry_after=text, date=date), NOW) == pause


def test_a_refusal_with_a_pause_is_not_completed():
    assert _read(409, retry_after="3") == Incomplete("answered 409 Conflict", 3000)
    assert _read(503, retry_after="3") == Incomplete("answered 503 Service Unavailable", 3000)
    assert isinstance(_read(409, retry_after="never"), Rejection)
