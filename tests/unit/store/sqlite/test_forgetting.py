"""What is forgotten in a SQLite file, and in the lines of an export."""

import json
import sqlite3
from contextlib import asynccontextmanager, closing

import pytest
from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Forgotten, Outcome, Span
from resurgam.errors import CorruptHistory, SerializationError
from resurgam.store import export
from resurgam.store import records as r
from resurgam.store.sqlite.session import Session
from resurgam.store.sqlite.statements import queries
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock

LOG = "execution-1"
EXECUTION = r.ExecutionRef(entity_id="order", execution_id=LOG)
ITERATION = Location.parse("{2, 5}")
NEXT = Location.parse("{2, 6}")


@asynccontextmanager
async def opened(path):
    store = SqliteStore(path, ManualClock(), name="one", synchronous="OFF")
    try:
        yield store
    finally:
        await store.close()


def entry(seq):
    return events.TimerStarted(seq=seq, location=Location((seq,)), command=f"Timer({seq})", deadline=0)


def marks(*seqs, place=ITERATION):
    return tuple(Forgotten(seq, place) for seq in seqs)


async def grow(store, last):
    """Begin an execution whose log goes up to *last*; return its claim."""
    started = events.WorkflowStarted(
        seq=1,
        name="sell",
        entity_id="order",
        execution_id=LOG,
        run_id="run-1",
        tree_id="run-1",
        queue="default",
        input=Raw(b"[]"),
        python="3.11",
    )
    await store.create([r.Creation(started=started)])
    [claim] = await store.claim("w", ["default"], 1)
    await commit(store, claim, 1, events=tuple(entry(seq) for seq in range(2, last + 1)))
    return claim


async def commit(store, claim, base_seq, **outcome):
    part = r.Commit(
        execution_id=LOG,
        entity_id="order",
        epoch=claim.epoch,
        base_seq=base_seq,
        wake=claim.wake,
        outcome=Outcome(**outcome),
        release=False,
    )
    [answer] = await store.commit([part])
    assert isinstance(answer, r.Committed)


def seqs(log):
    return [entry.seq for entry in log]


# The file.


async def test_what_is_forgotten_is_so_when_the_file_is_opened_again(tmp_path):
    async with opened(tmp_path / "shop.db") as store:
        claim = await grow(store, 6)
        await commit(store, claim, 6, forgotten=(*marks(2, 3), *marks(4, place=NEXT)), dropped=())

    async with opened(tmp_path / "shop.db") as store:
        assert seqs(await store.read(EXECUTION)) == [1, 5, 6]
        assert seqs(await store.inspector.history(EXECUTION, forgotten=True)) == [1, 2, 3, 4, 5, 6]
        [copy] = await store.transfer.copies("order")
        assert copy.forgotten == (*marks(2, 3), *marks(4, place=NEXT))
        await commit(store, claim, 6, dropped=(Span(ITERATION, NEXT),))

    async with opened(tmp_path / "shop.db") as store:
        assert seqs(await store.inspector.history(EXECUTION, forgotten=True)) == [1, 4, 5, 6]


async def test_an_entry_that_cannot_be_read_is_named_by_its_number_behind_a_gap(tmp_path):
    async with opened(tmp_path / "shop.db") as store:
        claim = await grow(store, 6)
        await commit(store, claim, 6, forgotten=marks(2, 3))
        with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
            connection.execute("UPDATE events SET body = '{}' WHERE seq = 5")
            connection.commit()
        for reading in (
            store.read(EXECUTION),
            store.inspector.history(EXECUTION, forgotten=True),
            store.transfer.copies("order"),
        ):
            with pytest.raises(CorruptHistory, match=f"entry 5 of execution {LOG} cannot be read"):
                await reading


@pytest.mark.parametrize(
    ("statement", "plan"),
    [
        ("events_after", "SEARCH events USING INDEX events_log (execution_id=? AND seq>?)"),
        ("forget_event", "SEARCH events USING INDEX events_log (execution_id=? AND seq=?)"),
        (
            "drop_events",
            "SEARCH events USING INDEX events_forgotten (execution_id=? AND forgotten>? AND forgotten<?)",
        ),
    ],
)
async def test_each_statement_is_one_range_of_an_index(statement, plan, tmp_path):
    names = ("execution_id", "seq", "after", "location", "start", "end")
    async with opened(tmp_path / "shop.db"):
        with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
            steps = connection.execute(f"EXPLAIN QUERY PLAN {queries()[statement]}", dict.fromkeys(names)).fetchall()
    assert [step[3].replace("COVERING ", "") for step in steps] == [plan]


async def test_forgetting_much_takes_as_many_statements_as_forgetting_little(tmp_path, monkeypatch):
    used = []
    for name in ("fetch", "execute", "execute_many", "run"):
        verb = getattr(Session, name)
        monkeypatch.setattr(
            Session, name, lambda self, query, *a, _verb=verb, **k: [used.append(query), _verb(self, query, *a, **k)][1]
        )
    counts = []
    async with opened(tmp_path / "shop.db") as store:
        claim = await grow(store, 200)
        for forgotten, dropped in ((), ()), (marks(2), (Span(ITERATION, NEXT),)), (marks(*range(3, 150)), ()):
            used.clear()
            await commit(store, claim, 200, forgotten=forgotten, dropped=dropped)
            counts.append(len(used))
        assert seqs(await store.read(EXECUTION)) == [1, *range(150, 201)]
    assert counts[1] == counts[2] == counts[0] + 2


# The lines.


def exported(*forgotten):
    """Return the lines of an execution with five entries."""
    started = events.WorkflowStarted(
        seq=1, name="sell", entity_id="o", execution_id=LOG, run_id="r", tree_id="r", queue="q", python="3.11"
    )
    instance = replace(r.Instance.of(started), last_seq=5)
    log = (started, *(entry(seq) for seq in range(2, 6)))
    return export.write([r.Copy(instance=instance, log=log, forgotten=forgotten)])


def test_a_forgotten_entry_is_a_line_where_it_stood_with_its_location():
    written = exported(*marks(4, 5))
    assert [json.loads(line)["type"] for line in written] == [
        "instance",
        "workflow_started",
        "timer_started",
        "timer_started",
        "forgotten",
        "forgotten",
    ]
    assert json.loads(written[0])["events"] == 5
    assert json.loads(written[4]) == {
        "type": "forgotten",
        "location": "{2, 5}",
        "event": json.loads(entry(4).to_json()),
    }
    [copy] = export.read(written)
    assert (seqs(copy.log), copy.forgotten) == ([1, 2, 3, 4, 5], marks(4, 5))
    assert seqs(export.newest_history(written)) == [1, 2, 3]


def test_an_export_in_which_nothing_is_forgotten_is_as_it_always_was():
    written = exported()
    assert set(json.loads(written[0])) == {"type", "format", "events", "inbox", "activities", "instance"}
    assert written[1:] == [event.to_json() for event in export.read(written)[0].log]
    assert export.read(written)[0].forgotten == ()


def test_a_replay_passes_over_what_a_printed_history_marks_as_forgotten():
    printed = [json.dumps(json.loads(entry(seq).to_json()) | {"active": seq != 3}) for seq in range(2, 5)]
    assert seqs(export.newest_history(printed)) == [2, 4]


def without(line, name):
    fields = json.loads(line)
    del fields[name]
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda line: line.replace("{2, 5}", "nowhere"), "'nowhere' is not a location"),
        (
            lambda line: line.replace("{2, 5}", "{2, " + "9" * 1000 + "}"),
            "is not a location that an entry can be kept under",
        ),
        (lambda line: without(line, "location"), "not a line of an export: Object missing required field `location`"),
        (lambda line: without(line, "event"), "not a line of an export: Object missing required field `event`"),
        (lambda line: line.replace('"timer_started"', '"nonsense"'), "not an event of this version"),
        (lambda line: line.replace('"seq":5', '"seq":4'), "entry 4 follows entry 4"),
        (lambda line: line.replace('"seq":5', '"seq":-1'), "entry -1 follows entry 4"),
        (lambda line: line.replace('"seq":5', '"seq":6'), "its head says otherwise about last_seq"),
        (lambda _: entry(5).to_json()[:-1] + ',"active":false}', "not a line of an export"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(spoil, reason):
    written = exported(*marks(4, 5))
    written[5] = spoil(written[5])
    with pytest.raises(SerializationError) as caught:
        export.read(written)
    assert caught.value.path == "line 6"
    assert reason in caught.value.reason


def test_a_log_that_is_forgotten_from_its_first_entry_on_is_refused():
    with pytest.raises(SerializationError, match="says otherwise about entity_id, execution_id"):
        export.read(exported(*marks(1, 2, 3, 4, 5)))
