"""Sequence matching as a pure function: recorded commands, intents, and what each intent is bound to.

The matcher compares a command's kind and name. A child is written as ``child WORKFLOW ID``: its workflow is what the
rows call its kind, and the id that the code gives it, if any, is what they call its name.
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS, Intent
from resurgam.core.errors import CorruptHistory, DeterminismViolation
from resurgam.core.history import History
from resurgam.core.location import ROOT, Location
from resurgam.core.matchers import (
    MATCHERS,
    Cursor,
    Diverged,
    New,
    Replayed,
    by_key,
    by_sequence,
    matcher,
    removal,
    version_check,
)
from resurgam.runtime.loop.scope import Scope
from resurgam.runtime.matching.divergence import diverged

KINDS: dict[str, type[events.Command]] = {
    "task": events.ActivityScheduled,
    "timer": events.TimerStarted,
    "op": events.OperationStarted,
    "set": events.StateSet,
    "clear": events.StateCleared,
    "listen": events.ListenStarted,
    "branch": events.BranchStarted,
    "race": events.RaceStarted,
    "loop": events.LoopStarted,
    "child": events.ChildScheduled,
    "promise": events.PromiseCreated,
}
EXTRAS = {
    events.ActivityScheduled: {"queue": "q"},
    events.TimerStarted: {"deadline": 5},
    events.ListenStarted: {"names": ("s",)},
    events.RaceStarted: {"size": 2},
    events.ChildScheduled: {"queue": "q", "entity_id": "e", "run_id": "r"},
    events.PromiseCreated: {"promise_id": "p"},
}


def intents(text):
    """Return intents that are written as ``task P; timer; child W id``."""
    parts = [(*part.split(), None, None)[:3] for part in text.split(";") if part.strip()]
    return [Intent(KINDS[kind], name, target=target) for kind, name, target in parts]


def recorded(text):
    """Return the commands of the root that came of these intents."""
    numbers, log = Counter(), []
    for seq, intent in enumerate(intents(text), 2):
        command = f"{intent.type}({numbers[intent.type]})"
        numbers[intent.type] += 1
        place = ROOT.child((seq - 1,))
        extras = EXTRAS.get(intent.kind, {}) | ({"entity_id": intent.target} if intent.target else {})
        log.append(intent.kind(seq=seq, location=place, command=command, name=intent.name, **extras))
    return log


def bound(log, asked):
    """Return what each intent is bound to, up to a violation, and what is left."""
    scope = Scope(ROOT, Cursor(History(log).commands(ROOT)), seed="", owner=None, version=1, matching="sequence")
    said = []
    for intent in asked:
        command_id = scope.command_id(intent.type)
        verdict = scope.match(scope.cursor, intent)
        if isinstance(verdict, Diverged):
            error = diverged(verdict, scope, command_id, intent)
            assert isinstance(error, DeterminismViolation)
            return [*said, str(error)], []
        scope.cursor.take(verdict)
        if isinstance(verdict, Replayed):
            assert verdict.event.command == command_id
            said.append(command_id)
        else:
            said.append(f"new {command_id}")
    return said, [left.command for left in scope.cursor.rest]


ROWS = {
    "1": ("", "task P", ["new Task(0)"], []),
    "2": ("task P; task P; task P", "task P; task P; task P", ["Task(0)", "Task(1)", "Task(2)"], []),
    "3": ("task P; task P", "task P; task P; task P", ["Task(0)", "Task(1)", "new Task(2)"], []),
    "4": ("task P; task P; task P", "task P; task P", ["Task(0)", "Task(1)"], ["Task(2)"]),
    "5": ("task P; task P", "task P", ["Task(0)"], ["Task(1)"]),
    "6": (
        "task ProcessPayment",
        "task SendEmail",
        ["Task type mismatch at Task(0): expected 'SendEmail', got 'ProcessPayment'"],
        [],
    ),
    "7": ("task A; task B", "task B; task A", ["Task type mismatch at Task(0): expected 'B', got 'A'"], []),
    "8": (
        "task A; task B; task A; task B",
        "task A; task B; task A; task B",
        ["Task(0)", "Task(1)", "Task(2)", "Task(3)"],
        [],
    ),
    "10": ("", "task A; task B; timer", ["new Task(0)", "new Task(1)", "new Timer(0)"], []),
    "11": ("task A; task B; timer", "task A; task B; timer", ["Task(0)", "Task(1)", "Timer(0)"], []),
    "15": (
        "task u; task o; child rec; timer",
        "task u; task o; child rec; timer",
        ["Task(0)", "Task(1)", "ChildWorkflow(0)", "Timer(0)"],
        [],
    ),
    "15, in another order of types": (
        "task u; task o; child rec; timer",
        "timer; child rec; task u; task o",
        ["Timer(0)", "ChildWorkflow(0)", "Task(0)", "Task(1)"],
        [],
    ),
    "16": ("timer", "task X", ["new Task(0)"], ["Timer(0)"]),
    "17": ("timer", "timer; timer", ["Timer(0)", "new Timer(1)"], []),
    "28": ("child process-order-1", "child process-order-1", ["ChildWorkflow(0)"], []),
    "29": (
        "child c original-child",
        "child c renamed-child",
        ["Child workflow name mismatch at ChildWorkflow(0): expected 'renamed-child', got 'original-child'"],
        [],
    ),
    "30": (
        "child original-kind c",
        "child changed-kind c",
        ["Child workflow kind mismatch at ChildWorkflow(0): expected 'changed-kind', got 'original-kind'"],
        [],
    ),
    "31": ("child c", "child c", ["ChildWorkflow(0)"], []),
    "32": (
        "child c1; child c2; child c3",
        "child c1; child c2; child c3",
        ["ChildWorkflow(0)", "ChildWorkflow(1)", "ChildWorkflow(2)"],
        [],
    ),
    "35": ("op op-1", "op op-1; op op-2", ["Operation(0)", "new Operation(1)"], []),
    "36": (
        "op fetch-user",
        "op calculate-total",
        ["Operation name mismatch at Operation(0): expected 'calculate-total', got 'fetch-user'"],
        [],
    ),
    "38": ("op op-1; timer; op op-2", "op op-1; timer; op op-2", ["Operation(0)", "Timer(0)", "Operation(1)"], []),
    "39": ("set counter; clear temp", "set counter; clear temp", ["State(0)", "State(1)"], []),
    "40": (
        "set user-id",
        "set order-id",
        ["State key mismatch at State(0): expected 'order-id', got 'user-id'"],
        [],
    ),
    "41": ("set k", "clear k", ["Type mismatch at State(0): expected 'state_cleared', got 'state_set'"], []),
    "44": ("promise approval", "promise approval", ["Promise(0)"], []),
    "45": (
        "promise approval-promise",
        "promise payment-confirmation",
        ["Promise name mismatch at Promise(0): expected 'payment-confirmation', got 'approval-promise'"],
        [],
    ),
    # Whether the second may be created is for the verb to say; to the matcher they are two.
    "46": ("", "promise p; promise p", ["new Promise(0)", "new Promise(1)"], []),
    "54": ("task A", "task B", ["Task type mismatch at Task(0): expected 'B', got 'A'"], []),
    "56": ("task A; task B", "task A; timer; task B", ["Task(0)", "new Timer(0)", "Task(1)"], []),
    "58": ("task A; task B; child c", "task A; task B; child c", ["Task(0)", "Task(1)", "ChildWorkflow(0)"], []),
    "63": (
        "task A; timer; child c; set k",
        "task A",
        ["Task(0)"],
        ["Timer(0)", "ChildWorkflow(0)", "State(0)"],
    ),
    "65": (
        "task P; task P",
        "task P; task Q",
        ["Task(0)", "Task type mismatch at Task(1): expected 'Q', got 'P'"],
        [],
    ),
}


def test_the_number_of_rows():
    assert len(ROWS) == 33


@pytest.mark.parametrize(("log", "asked", "expected", "left"), ROWS.values(), ids=ROWS)
def test_row(log, asked, expected, left):
    assert bound(recorded(log), intents(asked)) == (expected, left)


TEXTS = {
    # Row 18 has no other place: a timer has no id.
    ("Settlement(0)", "name", "p-2", "p-1"): "Promise ID mismatch at Settlement(0): expected 'p-2', got 'p-1'",
    ("ChildWorkflow(4)@{2, 1}", "name", "b", "a"): (
        "Child workflow name mismatch at ChildWorkflow(4)@{2, 1}: expected 'b', got 'a'"
    ),
    ("Task(0)", "name", "SendEmail", "ProcessPayment"): (
        "Task type mismatch at Task(0): expected 'SendEmail', got 'ProcessPayment'"
    ),
    ("Operation(3)", "name", "b", "a"): "Operation name mismatch at Operation(3): expected 'b', got 'a'",
    ("Promise(1)", "name", "b", "a"): "Promise name mismatch at Promise(1): expected 'b', got 'a'",
    ("State(1)", "name", "b", "a"): "State key mismatch at State(1): expected 'b', got 'a'",
    ("State(1)", "type", "state_set", "state_cleared"): (
        "Type mismatch at State(1): expected 'state_set', got 'state_cleared'"
    ),
    ("Timer(0)", "duration", "5 ms", "9 ms"): "Timer duration mismatch at Timer(0): expected '5 ms', got '9 ms'",
}


@pytest.mark.parametrize(("fields", "text"), TEXTS.items(), ids=TEXTS.values())
def test_every_text(fields, text):
    command, field, code_value, history_value = fields
    place = Location.parse("{2, 1, 5}")
    error = DeterminismViolation(
        place, command, field, code_value=code_value, history_value=history_value, event_seq=7, source="w.py:3"
    )

    assert str(error) == text
    assert not isinstance(error, Exception)
    assert (error.location, error.command, error.field, error.event_seq) == (place, command, field, 7)
    assert (error.code_value, error.history_value, error.source) == (code_value, history_value, "w.py:3")


def test_a_child_whose_workflow_was_not_recorded_takes_any():
    """Row 31: what the history does not tell is not compared."""
    assert bound(recorded("child c"), [Intent(events.ChildScheduled, "c")]) == (["ChildWorkflow(0)"], [])


# The cursor, held against a model that is too simple to be wrong.

some = st.sampled_from(["task P", "task Q", "timer", "set k", "clear k", "op o", "child c", "promise p", "branch"])


@given(st.lists(some, max_size=8), st.lists(some, max_size=8))
def test_each_type_has_a_line_of_its_own(held, asked):
    log, expected = recorded("; ".join(held)), []
    lines: dict[str, list[events.Command]] = {}
    for command in log:
        lines.setdefault(COMMANDS[type(command)].type, []).append(command)
    left = list(log)
    for intent in intents("; ".join(asked)):
        line = lines.get(intent.type)
        if not line:
            expected.append("new")
            continue
        found = line.pop(0)
        if (type(found), found.name) != (intent.kind, intent.name):
            expected.append("mismatch")
            left = []
            break
        expected.append(found.command)
        left.remove(found)
    said, rest = bound(log, intents("; ".join(asked)))
    short = ["mismatch" if "mismatch" in text else "new" if text.startswith("new") else text for text in said]
    assert (short, rest) == (expected, [command.command for command in left])


@given(st.lists(some, max_size=8), st.permutations(range(8)))
def test_new_places_come_after_all_others_whatever_was_taken(held, order):
    log = recorded("; ".join(held))
    cursor = Cursor(log)
    for index in order[: len(log) // 2]:
        if index < len(log):
            verdict = by_sequence(cursor, Intent(type(log[index]), log[index].name))
            if isinstance(verdict, Replayed):
                cursor.take(verdict)
    assert cursor.appended == (len(log) + 1,)
    cursor.take(New(cursor.appended))
    assert cursor.appended == (len(log) + 2,)


def test_asking_changes_nothing():
    log = recorded("task P; timer; task P")
    cursor = Cursor(log)
    for _ in range(3):
        assert by_sequence(cursor, Intent(events.TimerStarted)) == Replayed(log[1])
        assert by_sequence(cursor, Intent(events.ActivityScheduled, "P")) == Replayed(log[0])
    cursor.take(Replayed(log[1]))
    assert (cursor.next, cursor.rest) == (log[0], [log[0], log[2]])
    cursor.take(Replayed(log[0]))
    assert (cursor.next, cursor.rest) == (log[2], [log[2]])
    assert by_sequence(cursor, Intent(events.TimerStarted)) == New((4,))


def test_versions_are_not_compared():
    (command,) = recorded("task P")
    for version in (1, 2, 9):
        assert by_sequence(Cursor([command]), Intent(events.ActivityScheduled, "P", version)) == Replayed(command)


def test_a_matcher_of_a_later_version_is_refused():
    assert set(MATCHERS) == {"location", "sequence", "keyed"}
    with pytest.raises(CorruptHistory, match="recorded under matching 'by_moon'"):
        matcher("by_moon")


# Removals and checks.


def removed_one(name):
    return Intent(events.ActivityScheduled, name)


def test_a_removed_call_is_the_next_of_its_type_if_its_name_fits():
    log = recorded("timer; task P; task Q")
    assert removal(Cursor(log), removed_one("P"), by_type=True) == Replayed(log[1])
    assert removal(Cursor(log), removed_one("Q"), by_type=True) == New((4,))


def test_the_mark_of_a_removal_comes_before_a_call_of_that_name_behind_it():
    """The code ``removed(P); P`` finds its own mark again, not the call that it made after it."""
    mark = events.StepRemoved(seq=2, location=ROOT.child((1,)), command="c", name="P", removed="activity_scheduled")
    call = events.ActivityScheduled(seq=3, location=ROOT.child((2,)), command="c", name="P", queue="q")
    assert removal(Cursor([mark, call]), removed_one("P"), by_type=True) == Replayed(mark)
    early = events.ActivityScheduled(seq=2, location=ROOT.child((1,)), command="c", name="P", queue="q")
    late = events.StepRemoved(seq=3, location=ROOT.child((2,)), command="c", name="P", removed="activity_scheduled")
    assert removal(Cursor([early, late]), removed_one("P"), by_type=True) == Replayed(early)


def test_a_check_is_answered_by_the_entry_of_its_own_number():
    """The first check was answered by what was recorded, and wrote nothing; the second one's entry is not its."""
    step = events.ActivityScheduled(seq=2, location=ROOT.child((1,)), command="Task(0)", name="P", queue="q")
    check = events.VersionChecked(seq=3, location=ROOT.child((2,)), command="VersionCheck(1)", answer=3, version=3)
    cursor = Cursor([step, check])
    assert version_check(cursor, None, by_type=True, command="VersionCheck(0)").version == 1
    assert version_check(cursor, None, by_type=True, command="VersionCheck(1)") == Replayed(check)


# Keys.


def keyed(*keys):
    return [
        events.ActivityScheduled(seq=seq, location=ROOT.child((seq - 1,)), command="c", name="P", queue="q", key=key)
        for seq, key in enumerate(keys, 2)
    ]


@given(st.permutations("abcde"), st.lists(st.sampled_from("abcdefgh"), unique=True))
def test_a_key_finds_its_own_whatever_the_order(held, asked):
    log = keyed(*held)
    cursor, by_its_key = Cursor(log), {command.key: command for command in log}
    for key in asked:
        verdict = by_key(cursor, Intent(events.ActivityScheduled, "P", key=key))
        if key in by_its_key:
            assert verdict == Replayed(by_its_key[key])
        else:
            assert verdict == New(cursor.appended)
        cursor.take(verdict)
        if key in by_its_key:
            assert by_key(cursor, Intent(events.ActivityScheduled, "P", key=key)) == New(cursor.appended)
    assert {command.key for command in cursor.rest} == set(held) - set(asked)


def test_another_name_under_the_same_key_diverges():
    (command,) = keyed("a")
    verdict = by_key(Cursor([command]), Intent(events.ActivityScheduled, "Q", key="a"))
    assert verdict == Diverged(command, "name", "Q", "P")
