"""Rules of retention: which rule covers a run, and which passes they lead to."""

from datetime import timedelta
from itertools import product

import pytest

from resurgam import Engine, Retain, Status
from resurgam.store.retention_rules import CLOSED, Pass, dead_letter_age, plan, rules_of

DAY = 86_400_000
FAILED = Status.FAILED
OTHERS = [status for status in CLOSED if status is not FAILED]


def days(number, *args, **kwargs):
    return Retain(timedelta(days=number), *args, **kwargs)


def test_a_duration_is_one_pass_over_everything():
    assert plan(rules_of(60)) == [Pass(60_000)]


def test_without_rules_nothing_is_removed():
    assert plan(rules_of([])) == []
    assert plan([Retain(None), Retain(None, "ping"), Retain(None, status="failed")]) == []


def test_a_rule_for_a_name_is_one_pass_over_that_name():
    assert plan([days(1, "ping")]) == [Pass(DAY, "ping")]


def test_a_rule_for_a_name_leaves_statuses_with_a_rule_of_their_own_to_them():
    found = plan([days(1, "ping"), days(90, "ping", "failed")])
    assert set(found) == {Pass(90 * DAY, "ping", FAILED), *(Pass(DAY, "ping", status) for status in OTHERS)}


def test_the_general_pass_skips_only_names_whose_runs_are_kept_longer():
    found = plan([days(30), days(1, "short"), days(90, "long"), Retain(None, "kept")])
    assert found[-1] == Pass(30 * DAY, None, None, frozenset({"long", "kept"}))
    assert set(found[:-1]) == {Pass(DAY, "short"), Pass(90 * DAY, "long")}


def test_the_general_pass_runs_by_status_where_statuses_differ():
    found = plan([days(30), days(365, status="failed"), days(90, "ping", "failed"), days(400, "ping", "completed")])
    assert set(found) == {
        *(Pass(90 * DAY, "ping", FAILED), Pass(400 * DAY, "ping", Status.COMPLETED), Pass(365 * DAY, None, FAILED)),
        Pass(30 * DAY, None, Status.COMPLETED, frozenset({"ping"})),
        *(Pass(30 * DAY, None, status) for status in OTHERS if status is not Status.COMPLETED),
    }


def expected(rules, name, status):
    """Return after how many days a run is removed by the most specific rule; None: never."""
    ages = {(rule.name, rule.status): rule.age for rule in rules}
    for key in ((name, status), (name, None), (None, status), (None, None)):
        if key in ages:
            return None if ages[key] is None else ages[key].days
    return None


KEYS = [("a", "failed"), ("a", None), (None, "failed"), (None, None)]


@pytest.mark.parametrize("ages", [*product([0, 1, 2, None], repeat=4)], ids=str)
def test_passes_remove_each_run_when_its_most_specific_rule_says(ages):
    """0 stands for no rule."""
    rules = [
        Retain(None if age is None else timedelta(days=age), *key)
        for age, key in zip(ages, KEYS, strict=True)
        if age != 0
    ]
    for name, status in product(("a", "b"), (FAILED, Status.COMPLETED)):
        removed = [
            one.age // DAY
            for one in plan(rules)
            if one.name in (None, name) and one.status in (None, status) and name not in one.skipped
        ]
        assert min(removed, default=None) == expected(rules, name, status)


def test_dead_letters_have_a_rule_of_their_own():
    assert dead_letter_age([days(1)]) is None
    assert dead_letter_age([Retain(None, dead_letters=True)]) is None
    assert dead_letter_age([days(1), days(30, dead_letters=True)]) == 30 * DAY
    assert plan([days(30, dead_letters=True)]) == []


def test_a_status_is_accepted_as_text():
    assert Retain(1, status="failed") == Retain(1, status=FAILED)
    assert isinstance(Retain(1, status="failed").status, Status)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: Retain(0), ValueError, "age must be longer than 0, got 0 s; pass None to keep runs for ever"),
        (lambda: Retain("1d"), ValueError, "a duration must be seconds or a timedelta, got '1d'"),
        (lambda: Retain(1, ""), ValueError, "name must be a non-empty string, got ''; leave it out"),
        (lambda: Retain(1, 5), ValueError, "name must be a non-empty string, got 5"),
        (
            lambda: Retain(1, status="running"),
            ValueError,
            r"status must be that of a closed run \(completed, failed, .*",
        ),
        (lambda: Retain(1, "a", dead_letters=True), ValueError, "a rule for dead letters covers all of them"),
        (lambda: Retain(1, dead_letters=1), TypeError, "dead_letters must be True or False, got 1"),
        (
            lambda: Engine(retain=Retain(1)),
            TypeError,
            "retain must be a duration or a list of rules, .*put it into a list",
        ),
        (lambda: Engine(retain=[30]), TypeError, r"a list of Retain\(...\) rules, got 30 in the list"),
        (lambda: Engine(retain=[Retain(1), Retain(2)]), ValueError, "one rule for all runs, got several"),
        (
            lambda: Engine(retain=[Retain(1, "a", "failed"), Retain(2, "a", FAILED)]),
            ValueError,
            r"one rule for runs of 'a' \(failed\), got several",
        ),
        (
            lambda: Engine(retain=[Retain(1, dead_letters=True)] * 2),
            ValueError,
            "one rule for dead letters, got several",
        ),
        (lambda: Engine(retain=[Retain(1)], worker=False), ValueError, "retain needs a worker"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(make, kind, text):
    with pytest.raises(kind, match=text):
        make()
