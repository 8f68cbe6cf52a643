"""What is forgotten in a SQLite file."""

import sqlite3
from contextlib import asynccontextmanager, closing

import pytest
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Forgotten, Outcome, Span
from resurgam.errors import CorruptHistory
from resurgam.store import records as r
from resurgam.store.sql.queries import queries
from resurgam.store.sql.sqlite import Session
from resurgam.store.sql.store import SqliteStore
from resurgam.testing import ManualClock

LOG = "execution-1"
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


async def test_what_is_forgotten_is_so_when_the_file_is_opened_again(tmp_path):
    async with opened(tmp_path / "shop.db") as store:
        claim = await grow(store, 6)
        await commit(store, claim, 6, forgotten=(*marks(2, 3), *marks(4, place=NEXT)), dropped=())

    async with opened(tmp_path / "shop.db") as store:
        assert seqs(await store.read(LOG)) == [1, 5, 6]
        assert seqs(await store.history(LOG, forgotten=True)) == [1, 2, 3, 4, 5, 6]
        [copy] = await store.copies("order")
        assert copy.forgotten == (*marks(2, 3), *marks(4, place=NEXT))
        await commit(store, claim, 6, dropped=(Span(ITERATION, NEXT),))

    async with opened(tmp_path / "shop.db") as store:
        assert seqs(await store.history(LOG, forgotten=True)) == [1, 4, 5, 6]


async def test_an_entry_that_cannot_be_read_is_named_by_its_number_behind_a_gap(tmp_path):
    async with opened(tmp_path / "shop.db") as store:
        claim = await grow(store, 6)
        await commit(store, claim, 6, forgotten=marks(2, 3))
        with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
            connection.execute("UPDATE events SET body = '{}' WHERE seq = 5")
            connection.commit()
        for reading in (store.read(LOG), store.history(LOG, forgotten=True), store.copies("order")):
            with pytest.raises(CorruptHistory, match=f"entry 5 of execution {LOG} cannot be read"):
                await reading


@pytest.mark.parametrize(
    ("statement", "plan"),
    [
        ("events_after", "SEARCH events USING PRIMARY KEY (execution_id=? AND seq>?)"),
        ("forget_event", "SEARCH events USING PRIMARY KEY (execution_id=? AND seq=?)"),
        (
            "drop_events",
            "SEARCH events USING INDEX events_forgotten (execution_id=? AND forgotten>? AND forgotten<?)",
        ),
    ],
)
async def test_each_statement_is_one_range_of_an_index(statement, plan, tmp_path):
    names = ("execution_id", "seq", "after", "place", "start", "end")
    async with opened(tmp_path / "shop.db"):
        with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
            steps = connection.execute(f"EXPLAIN QUERY PLAN {queries()[statement]}", dict.fromkeys(names)).fetchall()
    assert [step[3].replace("COVERING ", "") for step in steps] == [plan]


async def test_forgetting_much_takes_as_many_statements_as_forgetting_little(tmp_path, monkeypatch):
    used = []
    for name in ("all", "do", "many"):
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
        assert seqs(await store.read(LOG)) == [1, *range(150, 201)]
    assert counts[1] == counts[2] == counts[0] + 2
