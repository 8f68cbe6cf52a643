"""Retry policies and the delay before the next attempt, as tables."""

import math
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resurgam import RetryAfter
from resurgam.core.retry import RetryPolicy, RetryRule, milliseconds


class Declined(ValueError):
    pass


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (0, 0),
        (1, 1000),
        (1.5, 1500),
        (0.0004, 0),
        (0.0006, 1),
        (-2, -2000),
        (timedelta(minutes=1, milliseconds=5), 60_005),
        (timedelta(days=365), 31_536_000_000),
        (timedelta(seconds=-1), -1000),
    ],
)
def test_durations_convert_to_milliseconds(duration, expected):
    assert milliseconds(duration) == expected


@pytest.mark.parametrize(
    "wrong", [True, False, "5", None, math.nan, math.inf, -math.inf, 1e12, 10**400, Decimal(5), [1]]
)
def test_milliseconds_refuses_invalid_durations(wrong):
    with pytest.raises(ValueError) as caught:
        milliseconds(wrong)
    assert str(caught.value) == f"a duration must be seconds or a timedelta, got {wrong!r}"


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [(1, 1000), (2, 2000), (3, 4000), (4, 8000), (5, 16_000), (6, 32_000), (7, 64_000), (8, 100_000), (9, 100_000)],
)
def test_delays_double_up_to_the_cap(attempt, expected):
    assert RetryPolicy(max_attempts=None, jitter=0).rule().delay_after(attempt, 0.9) == expected


@pytest.mark.parametrize(
    ("policy", "pauses"),
    [
        (RetryPolicy(jitter=0), [1000, 2000, 4000, 8000, None, None]),
        (RetryPolicy(jitter=0, max_attempts=1), [None]),
        (RetryPolicy(jitter=0, max_attempts=2), [1000, None]),
        (RetryPolicy(jitter=0, backoff=1), [1000, 1000, 1000, 1000, None]),
        (RetryPolicy(jitter=0, initial_interval=0.25, backoff=3, max_interval=2), [250, 750, 2000, 2000, None]),
        (RetryPolicy(jitter=0, initial_interval=0), [0, 0, 0, 0, None]),
        (RetryPolicy(jitter=0, initial_interval=0, max_interval=0), [0, 0, 0, 0, None]),
        (RetryPolicy(jitter=0, initial_interval=300, max_interval=300), [300_000] * 4 + [None]),
        (RetryPolicy(jitter=0, linear=True, initial_interval=0.5, max_interval=1.5), [500, 1000, 1500, 1500, None]),
    ],
)
def test_delays_follow_the_policy(policy, pauses):
    assert [policy.rule().delay_after(attempt, 0.5) for attempt in range(1, len(pauses) + 1)] == pauses
    assert policy.rule().policy() == policy


@pytest.mark.parametrize(
    ("jitter", "chance", "expected"),
    [(0.1, 0.0, 900), (0.1, 0.5, 1000), (0.1, 0.999999, 1100), (1, 0.0, 0), (1, 0.999999, 2000), (0, 0.0, 1000)],
)
def test_jitter_spreads_both_ways(jitter, chance, expected):
    assert RetryPolicy(jitter=jitter).rule().delay_after(1, chance) == expected


@pytest.mark.parametrize(
    ("chance", "expected"), [(0.0, 90_000), (0.25, 95_000), (0.5, 100_000), (0.75, 100_000), (0.999999, 100_000)]
)
def test_jitter_shortens_a_delay_at_the_cap_and_does_not_lengthen_it(chance, expected):
    assert RetryPolicy(max_attempts=None).rule().delay_after(20, chance) == expected


RULES = st.builds(
    RetryRule,
    max_attempts=st.none(),
    initial_interval=st.floats(0, 1e6),
    backoff=st.floats(1, 1e9),
    max_interval=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
    linear=st.booleans(),
)


@given(RULES, st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_a_delay_is_never_negative_and_never_longer_than_the_cap(rule, attempt, chance):
    assert 0 <= rule.delay_after(attempt, chance) <= round(rule.max_interval * 1000)


@given(RULES, st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_the_policy_of_any_stored_rule_has_the_same_delays(rule, attempt, chance):
    """An older store has rules whose initial interval is longer than the cap."""
    assert rule.policy().rule().delay_after(attempt, chance) == rule.delay_after(attempt, chance)


def test_a_stored_rule_whose_initial_interval_exceeds_the_cap_still_loads():
    assert RetryRule(initial_interval=300).policy() == RetryPolicy(initial_interval=100.0)
    assert RetryRule(max_interval=0).policy() == RetryPolicy(initial_interval=0, max_interval=0)


@pytest.mark.parametrize("attempt", [65, 66, 1100, 10**6, 10**18])
def test_large_attempt_numbers_stay_at_the_cap(attempt):
    assert RetryPolicy(max_attempts=None, jitter=0).rule().delay_after(attempt, 0.5) == 100_000


def test_a_steep_backoff_does_not_overflow():
    assert RetryPolicy(max_attempts=None, jitter=0, backoff=1e6).rule().delay_after(100, 0.5) == 100_000


def test_a_small_backoff_reaches_the_cap_too():
    """1.01 ** 499 is 143, so the cap of 100 seconds has been reached."""
    assert RetryPolicy(max_attempts=None, jitter=0, backoff=1.01).rule().delay_after(500, 0.5) == 100_000


def test_without_a_limit_there_is_always_another_attempt():
    assert RetryPolicy(max_attempts=None).rule().delay_after(10**9, 0.5) is not None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_attempts": 0}, "max_attempts must be None or at least 1, got 0; it counts all attempts"),
        ({"max_attempts": -1}, "max_attempts must be None or at least 1, got -1; it counts all attempts"),
        ({"initial_interval": -1}, "initial_interval must be at least 0, got -1"),
        ({"max_interval": -0.5}, "max_interval must be at least 0, got -0.5"),
        ({"backoff": 0.5}, "backoff must be at least 1, got 0.5"),
        ({"initial_interval": math.nan}, "initial_interval must be at least 0, got nan"),
        ({"max_interval": math.nan}, "max_interval must be at least 0, got nan"),
        ({"backoff": math.nan}, "backoff must be at least 1, got nan"),
        (
            {"initial_interval": 300},
            "initial_interval must not be longer than max_interval, got 300 and 100.0; give max_interval too",
        ),
        (
            {"max_interval": 0.5},
            "initial_interval must not be longer than max_interval, got 1.0 and 0.5; give initial_interval too",
        ),
        (
            {"initial_interval": 20, "max_interval": 10},
            "initial_interval must not be longer than max_interval, got 20 and 10",
        ),
        ({"jitter": -0.1}, "jitter must be between 0 and 1, got -0.1"),
        ({"jitter": 1.1}, "jitter must be between 0 and 1, got 1.1"),
        ({"jitter": math.nan}, "jitter must be between 0 and 1, got nan"),
    ],
)
def test_a_bad_policy_is_refused_on_construction(wrong, message):
    with pytest.raises(ValueError) as caught:
        RetryPolicy(**wrong)
    assert str(caught.value) == message


def test_a_bare_name_instead_of_a_list_is_refused():
    """A string is a sequence too: of letters, none of which names an error."""
    with pytest.raises((TypeError, ValueError)):
        RetryPolicy(non_retryable="ValueError")


def test_a_policy_is_keyword_only_and_immutable():
    with pytest.raises(TypeError):
        RetryPolicy(3)
    with pytest.raises(AttributeError):
        RetryPolicy().max_attempts = 3


def test_types_are_stored_as_names():
    policy = RetryPolicy(non_retryable=(ValueError, "KeyError", Declined))
    assert policy.non_retryable_names() == ("builtins.ValueError", "KeyError", f"{__name__}.Declined")


@pytest.mark.parametrize(
    ("listed", "names", "expected"),
    [
        ((ValueError,), ["builtins.ValueError"], True),
        (("ValueError",), ["builtins.ValueError"], True),
        (("builtins.ValueError",), ["builtins.ValueError"], True),
        (("shop.ValueError",), ["builtins.ValueError"], False),
        ((ValueError,), ["shop.Declined", "builtins.ValueError", "builtins.Exception"], True),
        (("ValueError",), ["shop.Declined", "builtins.ValueError"], True),
        (("Declined",), ["shop.errors.Declined"], True),
        ((KeyError,), ["shop.Declined", "builtins.ValueError"], False),
        (("Value",), ["builtins.ValueError"], False),
        ((), ["builtins.ValueError"], False),
        ((ValueError,), [], False),
    ],
)
def test_listed_types_and_names_are_not_retried(listed, names, expected):
    assert RetryPolicy(non_retryable=listed).rule().excludes(names) is expected


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"max_attempts": 0}, ValueError, "max_attempts must be None or at least 1, got 0; it counts all attempts"),
        ({"max_attempts": "3"}, ValueError, "max_attempts must be None or at least 1, got 3; it counts all attempts"),
        ({"max_attempts": 2.5}, ValueError, "max_attempts must be None or at least 1, got 2.5; it counts all attempts"),
        ({"backoff": 0.5}, ValueError, "backoff must be at least 1, got 0.5"),
        ({"backoff": float("nan")}, ValueError, "backoff must be at least 1, got nan"),
        ({"initial_interval": -1}, ValueError, "initial_interval must be at least 0, got -1"),
        ({"jitter": 2}, ValueError, "jitter must be between 0 and 1, got 2"),
        ({"non_retryable": (5,)}, TypeError, "non_retryable must be a list of types or names, got (5,)"),
        (
            {"non_retryable": ValueError},
            TypeError,
            "non_retryable must be a list of types or names, got <class 'ValueError'>",
        ),
        (
            {"non_retryable": "ValueError"},
            TypeError,
            "non_retryable must be a list of types or names, got 'ValueError'",
        ),
        ({"non_retryable": None}, TypeError, "non_retryable must be a list of types or names, got None"),
    ],
)
def test_a_wrong_option_of_a_policy_is_refused(options, kind, text):
    """The error names the option and its value."""
    with pytest.raises(kind) as found:
        RetryPolicy(**options)

    assert text in str(found.value)


@pytest.mark.parametrize("pause", [None, "a", float("nan"), 1e300])
def test_retry_after_takes_a_duration(pause):
    """RetryAfter refuses an invalid duration on construction."""
    with pytest.raises(ValueError, match="a duration must be"):
        RetryAfter(pause)


def test_a_negative_retry_after_retries_immediately():

    assert RetryAfter(-1).pause_ms == 0


def test_the_number_of_attempts_must_not_be_a_boolean():
    with pytest.raises(ValueError, match="max_attempts must be None or at least 1, got True"):
        RetryPolicy(max_attempts=True)
