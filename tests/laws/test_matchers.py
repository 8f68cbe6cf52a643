"""The matchers as tables: a history, what the code asks for, and what comes of each.

A history is written ``1:a 1.1:x@2 2:b``: the place, the activity, its version. ``~`` is a timer, ``%n`` a branch of that
name, ``&s`` a listener, ``-a`` the mark of a removed activity, ``?2`` a version check that answered 2, ``?2=n`` one of
the name n; ``!1`` behind a step is its gate, ``#k`` its key. Code is written the same, without places; there ``-a`` is a
removed call and ``?2`` a check.
"""

import itertools
import re

import pytest

from resurgam.core import event as events
from resurgam.core.commands import Intent
from resurgam.core.errors import CorruptHistory
from resurgam.core.history import History
from resurgam.core.location import ROOT, Location
from resurgam.core.matchers import (
    MATCHERS,
    Cursor,
    Diverged,
    Ignored,
    Peeked,
    Replayed,
    differs,
    matcher,
    removal,
    version_check,
)

TOKEN = re.compile(
    r"(?:(?P<place>[\d.]+):)?(?P<mark>[-?%&]?)(?P<name>[^@!#=]*)"
    r"(?:=(?P<label>\w+))?(?:@(?P<version>\d+))?(?:!(?P<gate>\d+))?(?:#(?P<key>\w+))?"
)


def _parse(token: str) -> dict[str, str]:
    found = TOKEN.fullmatch(token)
    assert found, token
    return {key: value or "" for key, value in found.groupdict().items()}


def _kind(token: dict[str, str]) -> type[events.Command]:
    if token["mark"]:
        kinds = {"%": events.BranchStarted, "&": events.ListenStarted, "?": events.VersionChecked}
        return kinds.get(token["mark"], events.ActivityScheduled)
    return events.TimerStarted if token["name"] == "~" else events.ActivityScheduled


def _name(token: dict[str, str]) -> str | None:
    return token["label"] or None if token["mark"] == "?" else (token["name"].strip("~") or None)


def recorded(text: str) -> list[events.Command]:
    """Return the commands of a history that is written like above."""
    commands: list[events.Command] = []
    for seq, token in enumerate(map(_parse, text.split()), 2):
        kind = events.StepRemoved if token["mark"] == "-" else _kind(token)
        fields: dict[str, object] = {
            events.ActivityScheduled: {"queue": "q"},
            events.TimerStarted: {"deadline": 1},
            events.ListenStarted: {"names": (token["name"],)},
            events.StepRemoved: {"removed": "activity_scheduled"},
            events.VersionChecked: {"answer": int(token["name"] or 0) if token["mark"] == "?" else 0},
        }.get(kind, {})
        commands.append(
            kind(
                seq=seq,
                location=Location(tuple(map(int, token["place"].split(".")))),
                command="c",
                name=_name(token),
                version=int(token["version"] or 1),
                gate=int(token["gate"]) if token["gate"] else None,
                key=token["key"] or None,
                **fields,
            )
        )
    return commands


def play(history: str, code: str, matching: str = "location", *, quickly: bool = False) -> str:
    """Let code ask for its steps one after another, up to a divergence; return what came of each, and what is left.

    *quickly*: a matcher is asked only for what is not obvious.
    """
    cursor, by_type = Cursor(History(recorded(history)).commands(ROOT)), matching == "sequence"
    said: list[str] = []
    for token in map(_parse, code.split()):
        intent = Intent(_kind(token), _name(token), int(token["version"] or 1), token["key"] or None)
        if token["mark"] == "?":
            verdict = version_check(cursor, intent.name, by_type=by_type)
        elif token["mark"] == "-":
            verdict = removal(cursor, intent, by_type=by_type)
        elif quickly and (found := obvious(cursor, intent, matching)) is not None:
            said.append(found)
            continue
        else:
            verdict = MATCHERS[matching](cursor, intent)
        if isinstance(verdict, Diverged):
            return " ".join([*said, f"x{str(verdict.event.location)[1:-1]}:{verdict.field}"])
        if isinstance(verdict, Ignored):
            said.append(f"ignored{str(verdict.event.location)[1:-1]}")
        elif isinstance(verdict, Peeked):
            said.append(f"peek{verdict.version}")
        elif isinstance(verdict, Replayed):
            said.append(f"={str(verdict.event.location)[1:-1]}")
            cursor.take(verdict)
        else:
            said.append(f"{type(verdict).__name__[0].lower()}{'.'.join(map(str, verdict.coordinate))}")
            cursor.take(verdict)
    left = (command for command in cursor.rest if not isinstance(command, events.StepRemoved))
    return " ".join([*said, *(f"left{str(command.location)[1:-1]}" for command in left)])


def obvious(cursor: Cursor, intent: Intent, matching: str) -> str | None:
    """Return what comes of a step without a matcher, written as `play` does; None if one has to be asked."""
    found = cursor.take_obvious(intent.kind, intent.name, intent.version, in_order=matching == "location")
    if isinstance(found, tuple):
        return f"n{'.'.join(map(str, found))}"
    return None if found is None else f"={str(found.location)[1:-1]}"


def test_what_is_obvious_is_what_the_matcher_says():
    histories = (
        "",
        "1:a",
        "1:a 2:b",
        "1:a 1.1:x@2 2:b",
        "1:a@2 2:a",
        "1:-a 2:a",
        "1:~ 2:a",
        "1:%n 2:&s",
        "1:a#k 2:a#l",
    )
    steps = ("a", "b", "x@2", "a@2", "~", "%n", "%", "&s", "&t", "a#k", "a#l")
    for history, first, second in itertools.product(histories, steps, steps):
        for matching in MATCHERS:
            code = f"{first} {second}"
            assert play(history, code, matching, quickly=True) == play(history, code, matching), (history, code)


def test_most_steps_are_obvious():
    cursor = Cursor(recorded("1:a 2:b"))
    assert [obvious(cursor, Intent(events.ActivityScheduled, name), "location") for name in "abcd"] == [
        "=1",
        "=2",
        "n3",
        "n4",
    ]
    assert obvious(Cursor(recorded("1:a")), Intent(events.ActivityScheduled, "a"), "sequence") is None
    assert obvious(Cursor(recorded("1:a")), Intent(events.ActivityScheduled, "b"), "location") is None


@pytest.mark.parametrize(
    ("history", "code", "expected"),
    [
        # appended
        ("", "a b c", "n1 n2 n3"),
        ("1:a 2:b", "a b c", "=1 =2 n3"),
        ("1:a 3:b 6:c", "a b c d e", "=1 =3 =6 n7 n8"),
        ("2.1:p 4:q", "p q r", "=2.1 =4 n5"),
        ("1:a", "a x@2 b", "=1 n2 n3"),
        ("0.1:a", "a b", "=0.1 n1"),
        ("1:a 1.1:b", "a b c", "=1 =1.1 n2"),
        # inserted
        ("1:a 2:b 3:c", "a x@2 b c", "=1 i1.1 =2 =3"),
        ("1:a 2:b", "a x@2 y@2 z@2 b", "=1 i1.1 i1.2 i1.3 =2"),
        ("1:a 1.1:x@2 1.2:y@2 2:b", "a x@2 z@3 y@2 b", "=1 =1.1 i1.1.1 =1.2 =2"),
        ("1:a 1.1:x@2 2:b", "a q@3 x@2 b", "=1 i1.0.1 =1.1 =2"),
        ("1:a 1.0.1:q@3 1.1:x@2 2:b", "a p@4 q@3 x@2 b", "=1 i1.0.0.1 =1.0.1 =1.1 =2"),
        ("1:a 2:b", "x@2 y@2 a b", "i0.1 i0.2 =1 =2"),
        ("0.1:x@2 1:a", "y@3 x@2 a", "i0.0.1 =0.1 =1"),
        ("0.0.1:y@3 0.1:x@2 1:a", "z@4 y@3 x@2 a", "i0.0.0.1 =0.0.1 =0.1 =1"),
        ("0.1:x@2 1:a", "x@2 y@2 a", "=0.1 i0.2 =1"),
        ("1:a 2:b@2 3:c", "a x@3 b@2 y@2 c", "=1 i1.1 =2 i2.1 =3"),
        ("1:a 2:~", "a x@2 ~", "=1 i1.1 =2"),
        # diverged
        ("1:a 2:b", "a x b", "=1 x2:name"),
        ("1:a 2:b@2 3:c", "a x@2", "=1 x2:name"),
        ("1:a 2:b@2", "a b", "=1 x2:version"),
        ("1:a 2:b@2", "a c", "=1 x2:version"),
        ("1:a 2:~@2", "a c", "=1 x2:type"),
        ("1:a 2:~", "a b", "=1 x2:type"),
        ("1:a 2:b 3:c", "a c", "=1 x2:name"),
        ("1:a 2:b 3:c", "a b", "=1 =2 left3"),
        ("1:a 2:-b 3:c", "a b", "=1 x3:name"),
        # names of branches and listeners
        ("1:%one", "%one", "=1"),
        ("1:%one", "%two", "x1:name"),
        ("1:%", "%two", "=1"),
        ("1:%one", "%", "=1"),
        ("1:&s", "&t", "=1"),
        # removed
        ("1:a 2:b 3:c", "a -b c", "=1 =2 =3"),
        ("", "a -b c", "n1 n2 n3"),
        ("1:a 2:-b 3:c", "a -b c d", "=1 =2 =3 n4"),
        ("1:a 2:c", "a -b c", "=1 ignored2 =2"),
        ("1:a 2:~", "a -b ~", "=1 ignored2 =2"),
        ("1:a 2:-c 3:d", "a -b -c d", "=1 ignored3 =2 =3"),
        # a mark whose note is gone is passed over
        ("1:a 2:-b 3:c", "a c", "=1 =3"),
        ("1:a 2:-b", "a b", "=1 n3"),
        ("1:a 2:-b", "a", "=1"),
        ("1:a 2:-b 3:-c 4:d", "a d e", "=1 =4 n5"),
        ("1:a 2:-b 3:-c 4:d", "a -c d", "=1 =3 =4"),
        ("1:a 2:-b 3:c 4:d", "a -c d", "=1 =3 =4"),
        ("1:a 2:-b 3:c@2 4:d", "a c@2 d", "=1 =3 =4"),
        ("1:a 2:-b 3:c", "a x@2 c", "=1 i1.1 =3"),
        ("1:a 2:-b 3:c 4:d", "a c x@2 d", "=1 =3 i3.1 =4"),
        ("1:a 2:-b 3:c 4:d", "a -c x@2 d", "=1 =3 i3.1 =4"),
        ("1:a 2:-b 3:-c 4:d", "a -c x@2 d", "=1 =3 i3.1 =4"),
        ("1:a 2:-b 3:c", "a x@2 -b c", "=1 i1.1 =2 =3"),
        ("1:a 2:b 3:c", "a -b n@2 c", "=1 =2 i2.1 =3"),
        ("", "a -b n@2 c", "n1 n2 n3 n4"),
        ("1:a", "a -b c", "=1 n2 n3"),
        ("1:a 2:~ 3:b", "a -b ~ b", "=1 ignored2 =2 =3"),
        # checks of the version
        ("1:a 2:b", "a ?2 b", "=1 peek1 =2"),
        ("1:a 2:b@3", "a ?4 b@3", "=1 peek3 =2"),
        ("1:a", "a ?2 x@2", "=1 n2 n3"),
        ("1:a 2:?2@2 3:x@2", "a ?2 x@2", "=1 =2 =3"),
        ("1:a 2:?2@2 3:x@2", "a ?3 x@2", "=1 =2 =3"),
        ("1:a 2:b", "a ?2 x@2 b", "=1 peek1 i1.1 =2"),
        ("1:a 1.1:x@2!1 2:b", "a ?2 x@2 b", "=1 peek1 =1.1 =2"),
        ("1:a 2:?2=n@2 3:b", "a ?2=n b", "=1 =2 =3"),
        ("1:a 2:?2=n@2 3:b", "a ?3=m ?2=n b", "=1 peek2 =2 =3"),
        ("1:a 2:?2@2 3:b", "a ?3=m b", "=1 =2 =3"),
        ("1:a 2:?2=n@2 3:b", "a ?3 b", "=1 =2 =3"),
        ("1:a 2:b 3:?2@2", "a ?2 b ?2", "=1 peek1 =2 =3"),
        ("1:a 2:?2@2 3:b", "a b", "=1 x2:type"),
        ("1:a 2:?2@2 3:b", "a x@3 ?2 b", "=1 i1.1 =2 =3"),
    ],
)
def test_by_location(history, code, expected):
    assert play(history, code) == expected


@pytest.mark.parametrize(
    ("history", "code", "expected"),
    [
        ("1:a 2:b", "a b c", "=1 =2 n3"),
        ("1:a 2:~ 3:b", "a b ~", "=1 =3 =2"),
        ("1:a 2:~ 3:b 4:~", "~ ~ ~ a b", "=2 =4 n5 =1 =3"),
        ("1:a 2:~ 3:~ 4:b", "~ ~ a b c", "=2 =3 =1 =4 n5"),
        ("1:a 2:~ 3:b 4:c", "~ a b", "=2 =1 =3 left4"),
        ("1:a 2:b", "b", "x1:name"),
        ("1:a 2:~", "a", "=1 left2"),
        ("1:a@3", "a", "=1"),
        ("1:a", "a@7", "=1"),
        ("1:a 2:~", "a x", "=1 n3 left2"),
        # removed
        ("1:a 2:~ 3:b", "-a b", "=1 =3 left2"),
        ("1:~ 2:-a 3:b", "-a b", "=2 =3 left1"),
        ("1:~ 2:-b 3:-a", "-a ~", "=3 =1"),
        ("1:~ 2:b", "-a b", "n3 =2 left1"),
        ("1:a 2:-b 3:-c 4:d", "a -c d", "=1 =3 =4"),
        ("1:a 2:-b 3:c", "a c", "=1 =3"),
        ("", "-a", "n1"),
        # checks
        ("1:a 2:?2@2", "?2 a", "=2 =1"),
        ("1:a 2:?2=n@2", "?2=m", "x2:name"),
        ("1:a 2:?2=n@2", "?2=n", "=2 left1"),
        ("1:a@2 2:b", "?3 a b", "peek2 =1 =2"),
        ("1:a@2!1 2:b", "?3 a b", "peek1 =1 =2"),
        ("", "?3", "n1"),
        ("1:a 2:~ 3:b@3", "~ a ?4 b", "=2 =1 peek3 =3"),
    ],
)
def test_by_sequence(history, code, expected):
    assert play(history, code, "sequence") == expected


@pytest.mark.parametrize(
    ("workflow", "target", "expected"),
    [
        ("ship", None, None),
        ("ship", "o-1", None),
        ("ship", "o-2", ("name", "o-2", "o-1")),
        ("pack", None, ("kind", "pack", "ship")),
        ("pack", "o-1", ("kind", "pack", "ship")),
        ("pack", "o-2", ("name", "o-2", "o-1")),
    ],
)
def test_a_child_by_sequence(workflow, target, expected):
    child = events.ChildScheduled(
        seq=2, location=Location((1,)), command="c", name="ship", queue="q", entity_id="o-1", run_id="r"
    )
    match = MATCHERS["sequence"](Cursor([child]), Intent(events.ChildScheduled, workflow, target=target))
    if expected is None:
        assert match == Replayed(child)
    else:
        assert isinstance(match, Diverged)
        assert (match.field, match.code_value, match.history_value) == expected


@pytest.mark.parametrize(
    ("history", "code", "expected"),
    [
        ("1:a#x 2:a#y", "a#y a#x", "=2 =1"),
        ("1:a#x 2:a#y 3:a#z", "a#z a#w a#x", "=3 n4 =1 left2"),
        ("1:a#x 2:a#y", "a#x a#x", "=1 n3 left2"),
        ("1:a#x 2:a#y", "a#y a#y", "=2 n3 left1"),
        ("1:a#x", "b#x", "x1:name"),
        ("1:~#x", "b#x", "x1:type"),
        ("1:a#x", "a#x@2", "=1"),
        ("1:a#x 2:a#y 3:a#z", "a#y a#x a#y a#z", "=2 =1 n4 =3"),
        ("", "a#x", "n1"),
    ],
)
def test_by_key(history, code, expected):
    code = " ".join(token if "@" not in token else f"{token.split('#')[0]}@2#x" for token in code.split())
    assert play(history, code, "keyed") == expected


@pytest.mark.parametrize(
    ("kind", "name", "digest", "wished", "given", "expected"),
    [
        (events.ActivityScheduled, "a", "1", "a", "1", None),
        (events.ActivityScheduled, "a", "1", "a", "2", ("input", "2", "1")),
        (events.ActivityScheduled, "a", None, "a", "2", None),
        (events.ActivityScheduled, "a", "1", "a", None, None),
        (events.ListenStarted, "s", "1", "t", "1", ("name", "t", "s")),
        (events.TimerStarted, None, "1", None, "2", ("duration", "2", "1")),
        (events.BranchStarted, None, None, "n", None, ("name", "n", "None")),
    ],
)
def test_fingerprints(kind, name, digest, wished, given, expected):
    extras = {
        events.ActivityScheduled: {"queue": "q"},
        events.TimerStarted: {"deadline": 1},
        events.ListenStarted: {"names": ("s",)},
    }.get(kind, {})
    found = kind(seq=2, location=Location((1,)), command="c", name=name, digest=digest, **extras)
    difference = differs(found, Intent(kind, wished), given)
    told = None if difference is None else (difference.field, difference.code_value, difference.history_value)
    assert told == expected


@pytest.mark.parametrize(
    ("held", "removed", "skips"),
    [
        (Intent(events.BranchStarted, "n"), Intent(events.BranchStarted, "n"), True),
        (Intent(events.BranchStarted, "n"), Intent(events.BranchStarted), True),
        (Intent(events.BranchStarted), Intent(events.BranchStarted, "n"), False),
        (Intent(events.ListenStarted, "s"), Intent(events.ListenStarted), True),
        (Intent(events.ListenStarted, "s"), Intent(events.ListenStarted, "t"), False),
        (Intent(events.VersionChecked, "n"), Intent(events.VersionChecked), True),
        (Intent(events.VersionChecked, "n"), Intent(events.VersionChecked, "m"), False),
        (Intent(events.ActivityScheduled, "a"), Intent(events.ActivityScheduled), False),
        (Intent(events.TimerStarted), Intent(events.TimerStarted), True),
        (Intent(events.TimerStarted), Intent(events.LoopStarted), False),
    ],
)
def test_what_a_removed_call_stands_for(held, removed, skips):
    extras = {
        events.ActivityScheduled: {"queue": "q"},
        events.TimerStarted: {"deadline": 1},
        events.ListenStarted: {"names": ("s",)},
        events.VersionChecked: {"answer": 2},
    }.get(held.kind, {})
    found = held.kind(seq=2, location=Location((1,)), command="c", name=held.name, **extras)
    verdict = removal(Cursor([found]), removed, by_type=False)
    assert verdict == (Replayed(found) if skips else Ignored(found))


def test_an_unknown_matching_is_a_corrupt_history():
    assert matcher("location") is MATCHERS["location"]
    with pytest.raises(CorruptHistory, match="matching 'magic'"):
        matcher("magic")
