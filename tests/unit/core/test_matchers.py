"""Matching as data: a history, the code's intents, and the match of each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resurgam.core import event as events
from resurgam.core.commands import Intent
from resurgam.core.history import History
from resurgam.core.location import ROOT, Location
from resurgam.core.matchers import Cursor, Diverged, New, Replayed, by_location

A, B, C, D, X, P, Q, R = (Intent(events.ActivityScheduled, name) for name in "abcdxpqr")
SLEEP = Intent(events.TimerStarted)
BRANCH = Intent(events.BranchStarted)
EXTRAS = {
    events.ActivityScheduled: {"queue": "q"},
    events.TimerStarted: {"deadline": 5},
    events.ListenStarted: {"names": ("s",)},
    events.RaceStarted: {"size": 2},
}


def recorded(places: str, *intents: Intent) -> list[events.Command]:
    """Return commands at these locations, given like ``{1} {2, 1}``."""
    texts = [text + "}" for text in places.split("}") if text.strip()]
    return [
        intent.kind(
            seq=seq, location=Location.parse(text), command="c", name=intent.name, **EXTRAS.get(intent.kind, {})
        )
        for seq, (text, intent) in enumerate(zip(texts, intents, strict=True), 2)
    ]


def run(log: list[events.Command], intents: list[Intent], scope: Location = ROOT) -> list[str]:
    """Match the intents of one scope in order; return each match, up to a divergence."""
    cursor, said = Cursor(History(log).commands(scope)), []
    for intent in intents:
        verdict = by_location(cursor, intent)
        if isinstance(verdict, Diverged):
            text = f"diverged at {verdict.event.location}: {verdict.field} {verdict.code_value}"
            return [*said, f"{text}, history {verdict.history_value}"]
        if isinstance(verdict, Replayed):
            said.append(f"replay {verdict.event.location}")
        else:
            said.append(f"write {scope.child(verdict.coordinate)}")
        cursor.take(verdict)
    return said


@pytest.mark.parametrize(
    ("log", "intents", "expected"),
    [
        ([], [], []),
        ([], [A, B, C], ["write {1}", "write {2}", "write {3}"]),
        (recorded("{1} {2}", A, B), [A, B, C], ["replay {1}", "replay {2}", "write {3}"]),
        (recorded("{1} {2}", A, B), [A, B], ["replay {1}", "replay {2}"]),
        (recorded("{1} {2}", A, B), [A], ["replay {1}"]),
        # a step inserted between others without a version
        (
            recorded("{1} {2} {3} {4}", A, B, C, D),
            [A, X, B, C, D],
            ["replay {1}", "diverged at {2}: name x, history b"],
        ),
        # a step inserted before all others
        (recorded("{1} {2}", A, B), [X, A, B], ["diverged at {1}: name x, history a"]),
        # a step removed, and two in another order
        (recorded("{1} {2} {3}", A, B, C), [A, C], ["replay {1}", "diverged at {2}: name c, history b"]),
        (recorded("{1} {2}", A, B), [B, A], ["diverged at {1}: name b, history a"]),
        # holes and sparse histories
        (recorded("{1} {3} {6}", A, B, C), [A, B, C, D], ["replay {1}", "replay {3}", "replay {6}", "write {7}"]),
        (recorded("{2.1} {4}", P, Q), [P, Q, R], ["replay {2.1}", "replay {4}", "write {5}"]),
        (recorded("{1} {1.1}", A, B), [A, B, C], ["replay {1}", "replay {1.1}", "write {2}"]),
        (recorded("{0.1}", A), [A, B, C], ["replay {0.1}", "write {1}", "write {2}"]),
        # the order of locations counts, not that of entries
        (recorded("{2} {1.1} {1}", C, B, A), [A, B, C], ["replay {1}", "replay {1.1}", "replay {2}"]),
        # another kind
        (
            recorded("{1}", A),
            [SLEEP],
            ["diverged at {1}: type timer_started, history activity_scheduled"],
        ),
        (
            recorded("{1}", SLEEP),
            [A],
            ["diverged at {1}: type activity_scheduled, history timer_started"],
        ),
        # the kind is compared before the name
        (
            recorded("{1}", Intent(events.StateSet, "v")),
            [Intent(events.StateCleared, "w")],
            ["diverged at {1}: type state_cleared, history state_set"],
        ),
        # names of other kinds
        (recorded("{1}", SLEEP), [SLEEP], ["replay {1}"]),
        (
            recorded("{1}", Intent(events.StateSet, "v")),
            [Intent(events.StateSet, "w")],
            ["diverged at {1}: name w, history v"],
        ),
        (
            recorded("{1}", Intent(events.ListenStarted, "pay")),
            [Intent(events.ListenStarted)],
            ["replay {1}"],
        ),
    ],
)
def test_intents_of_one_scope_match_as_listed(log, intents, expected):
    assert run(log, intents) == expected


@pytest.mark.parametrize(
    ("in_history", "in_code", "expected"),
    [
        (None, None, ["replay {1}"]),
        ("pay", "pay", ["replay {1}"]),
        ("pay", None, ["replay {1}"]),
        (None, "pay", ["replay {1}"]),
        ("pay", "ship", ["diverged at {1}: name ship, history pay"]),
    ],
)
def test_names_of_branches_are_compared_only_where_both_are_given(in_history, in_code, expected):
    log = recorded("{1}", Intent(events.BranchStarted, in_history))
    assert run(log, [Intent(events.BranchStarted, in_code)]) == expected


def test_each_scope_is_replayed_by_itself():
    """A step, two branches with one and two steps of their own, and a step after them."""
    assert run([], [A, BRANCH, BRANCH, B]) == ["write {1}", "write {2}", "write {3}", "write {4}"]
    assert run([], [P], Location((2,))) == ["write {2, 1}"]
    assert run([], [Q, R], Location((3,))) == ["write {3, 1}", "write {3, 2}"]
    log = recorded("{1} {2} {3} {3, 1} {2, 1} {4} {3, 2}", A, BRANCH, BRANCH, Q, P, B, R)
    assert run(log, [A, BRANCH, BRANCH, B]) == ["replay {1}", "replay {2}", "replay {3}", "replay {4}"]
    assert run(log, [P, X], Location((2,))) == ["replay {2, 1}", "write {2, 2}"]
    assert run(log, [Q, R], Location((3,))) == ["replay {3, 1}", "replay {3, 2}"]
    assert run(log, [X], Location((4,))) == ["write {4, 1}"]


def test_a_history_holds_commands_only_and_no_scope_merely_looked_up():
    log = [*recorded("{2} {1} {1, 1}", B, A, P), events.ActivityCompleted(seq=5, ref=2)]
    history = History(log)
    assert [str(command.location) for command in history.commands(ROOT)] == ["{1}", "{2}"]
    assert [str(command.location) for command in history.commands(Location((1,)))] == ["{1, 1}"]
    assert history.commands(Location((9,))) == ()
    assert Location((9,)) not in history._scopes


def test_a_history_is_a_snapshot():
    log = recorded("{1}", A)
    history = History(log)
    log.extend(recorded("{2}", B))
    assert len(history.commands(ROOT)) == 1


def test_matching_has_no_side_effects():
    """Only `take` moves the cursor."""
    commands = tuple(recorded("{1} {2}", A, B))
    cursor = Cursor(commands)
    for intent in (A, X, SLEEP, A):
        first, second = by_location(cursor, intent), by_location(cursor, intent)
        assert first == second
        assert (cursor.next, cursor.rest) == (commands[0], [*commands])
    cursor.take(Replayed(commands[0]))
    assert (cursor.next, cursor.rest) == (commands[1], [commands[1]])
    cursor.take(Replayed(commands[1]))
    assert (cursor.next, cursor.rest) == (None, [])
    assert by_location(cursor, C) == by_location(cursor, C) == New((3,))
    cursor.take(New((3,)))
    assert (cursor.next, cursor.rest, cursor.appended) == (None, [], (4,))


def test_a_match_holds_its_event_and_difference():
    (command,) = recorded("{1}", A)
    assert by_location(Cursor([command]), A) == Replayed(command)
    assert by_location(Cursor([command]), B) == Diverged(command, "name", "b", "a")
    assert by_location(Cursor([]), A) == New((1,))


@given(st.lists(st.sampled_from([A, B, SLEEP, BRANCH]), max_size=8), st.integers(0, 8))
def test_the_same_code_replays_any_cut_of_its_own_history(intents, cut):
    log = recorded("".join(f"{{{index}}}" for index in range(1, len(intents) + 1)), *intents)[:cut]
    expected = [
        f"replay {{{index}}}" if index <= len(log) else f"write {{{index}}}" for index in range(1, len(intents) + 1)
    ]
    assert run(log, intents) == expected
