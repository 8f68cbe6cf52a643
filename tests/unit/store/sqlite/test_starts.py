"""The short way of a start leads to the same answers and the same tables as creation, claim and commit."""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import ActivityRequest, Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.sqlite.starts import Start, create_and_commit, prepare_start
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock

TABLES = ("instances", "instance_tags", "events", "activities", "inbox")


class Begin(msgspec.Struct, frozen=True):
    """A creation."""

    entity: str = "a"
    scheduled: int = 1
    queue: str = "x"
    claims: bool = True
    covers: bool = True
    release: bool = True
    sleeps: bool = False
    ends: bool = False
    later: bool = False
    offered: bool = True
    tagged: bool = False
    child: bool = False
    schemas: bool = False
    inbox: bool = False
    attach: bool = False


often, seldom = st.sampled_from((True, True, True, False)), st.sampled_from((False, False, False, True))
begins = st.builds(
    Begin,
    entity=st.sampled_from(("a", "b", "c", "d")),
    scheduled=st.integers(0, 10),
    queue=st.sampled_from(("x", "y")),
    claims=often,
    covers=st.booleans(),
    release=st.booleans(),
    sleeps=st.booleans(),
    ends=seldom,
    later=seldom,
    offered=often,
    tagged=st.booleans(),
    child=st.booleans(),
    schemas=seldom,
    inbox=seldom,
    attach=seldom,
)


@given(st.sampled_from(("", "", "instance", "activity", "sleeper")), st.lists(st.lists(begins, max_size=5), max_size=3))
@settings(max_examples=80, deadline=None)
def test_a_group_of_starts_equals_creations_claims_and_commits(older, groups):
    found = []
    for fast in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "x.db"
            answers = asyncio.run(told(path, older, groups, fast=fast))
            found.append((answers, tables(path)))
    assert found[0] == found[1]


def test_a_start_of_a_chain_or_a_sleeper_takes_the_short_way():
    assert isinstance(prepare_start(part_of(Begin(), 1, 0)), Start)
    assert isinstance(prepare_start(part_of(Begin(scheduled=0, sleeps=True), 1, 0)), Start)
    for other in (Begin(ends=True), Begin(claims=False), Begin(later=True), Begin(inbox=True), Begin(offered=False)):
        assert not isinstance(prepare_start(part_of(other, 1, 0)), Start)


@pytest.mark.parametrize("between", ["ready", "due"])
async def test_a_start_waits_behind_what_comes_into_its_queue_within_the_group(tmp_path, between):
    clock = ManualClock()
    store = SqliteStore(tmp_path / "a.db", clock, name="starts", synchronous="OFF")
    other = part_of(Begin(entity="b", scheduled=0, offered=between == "due"), 2, clock.now())
    due = replace(other.first, outcome=replace(other.first.outcome, wake_at=clock.now()))
    parts = [part_of(Begin(), 1, clock.now()), replace(other, first=due), part_of(Begin(entity="c"), 3, clock.now())]
    first, _, last = await store.create(parts)
    assert first.claim is not None
    assert last.claim is None
    await store.close()


async def told(path, older, groups, *, fast):
    """Tell a store all groups; return its answers."""
    clock = ManualClock()
    store = SqliteStore(path, clock, name="starts", synchronous="OFF")
    await wait_before(store, older, clock)
    answers, number = [], 0
    for group in groups:
        parts = []
        for one in group:
            number += 1
            parts.append(part_of(one, number, clock.now()))
        if fast:
            answers.append(await store.create(parts))
        else:
            answers.append(await store._write(lambda t, parts=parts: [create_and_commit(t, part) for part in parts]))
        clock.move_to(clock.now() + 10)
    await store.close()
    return answers


async def wait_before(store, older, clock):
    """Let something wait in a queue."""
    if older == "instance":
        await store.create([r.Creation(started=started("other", 100, clock.now(), Begin()))])
    elif older == "activity":
        begin = Begin(entity="other", claims=False)
        await store.create([part_of(begin, 100, clock.now())])
    elif older == "sleeper":
        await store.create([part_of(Begin(entity="other", scheduled=0, sleeps=True), 100, clock.now())])


def started(entity, number, now, one):
    parent = events.Parent(entity_id="p", run_id="r", execution_id="e", location=Location((1,)), key="k", first_run="f")
    return events.WorkflowStarted(
        seq=1,
        at=now,
        name="n",
        python="3.11",
        queue="q",
        entity_id=entity,
        execution_id=f"e-{number}",
        run_id=f"r-{number}",
        tree_id="t",
        tags={"k": "v"} if one.tagged else {},
        parent=parent if one.child else None,
        begins_at=now + 5 if one.later else None,
    )


def part_of(one, number, now):
    refs = range(2, 2 + one.scheduled)
    log = [events.ActivityScheduled(seq=n, location=Location((n,)), command="T", name="n", queue="x") for n in refs]
    wanted = [ActivityRequest(ref=n, name="n", queue=one.queue, input=Raw(b"1"), entity_id="e") for n in refs]
    first = r.Commit(
        entity_id=one.entity,
        execution_id=f"e-{number}",
        epoch=1,
        base_seq=1,
        wake=0,
        outcome=Outcome(
            events=tuple(log),
            activities=tuple(wanted),
            wake_at=now + 10 if one.sleeps else None,
            status=Status.COMPLETED if one.ends else Status.RUNNING,
            signal_schemas={"s": Raw(b"{}")} if one.schemas else None,
        ),
        worker="w",
        release=one.release,
        eager=frozenset(refs) if one.claims else frozenset(),
        covers=one.covers,
    )
    return r.Creation(
        started=started(one.entity, number, now, one),
        attach=one.attach,
        inbox=(events.SignalReceived(name="s", id="1"),) if one.inbox else (),
        offer=r.EagerOffer(worker="w", queues=("q",)) if one.offered else None,
        first=first,
    )


def tables(path):
    """Return everything that a file holds; of what is ready only that it is, because each start has a moment of its own."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        found = {
            name: [dict(row) for row in connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2")] for name in TABLES
        }
    for row in found["instances"]:
        row["ready"] = bool(row["ready"])
    return found
