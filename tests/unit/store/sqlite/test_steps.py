"""The short way of a commit leads to the same answers and the same tables as the long one."""

import asyncio
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import ActivityRequest, Outcome
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.sqlite.commit import commit
from resurgam.store.sqlite.leases import end_leases_of
from resurgam.store.sqlite.steps import Step, prepare
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock

NAMES = ("a", "b", "c")
TABLES = ("instances", "events", "activities", "inbox")


@dataclass(frozen=True)
class Try:
    """A commit of one of the instances."""

    name: str
    scheduled: int = 1
    queue: str = "x"
    claims: bool = True
    release: bool = False
    stale: bool = False
    sleeps: bool = False
    covers: bool = False
    ends: bool = False
    runs: int = 0


tries = st.builds(
    Try,
    name=st.sampled_from(NAMES),
    scheduled=st.integers(0, 3),
    queue=st.sampled_from(("x", "y")),
    claims=st.booleans(),
    release=st.booleans(),
    stale=st.sampled_from((False, False, False, True)),
    sleeps=st.booleans(),
    covers=st.booleans(),
    ends=st.sampled_from((False, False, False, True)),
    runs=st.sampled_from((0, 0, 1, 7)),
)
happenings = st.sampled_from(("", "", "", "signal", "pause", "terminate", "release"))


@given(st.tuples(happenings, happenings, happenings), st.booleans(), st.lists(st.lists(tries, max_size=6), max_size=3))
@settings(max_examples=60, deadline=None)
def test_a_group_of_steps_equals_the_same_commits_one_by_one(before, older, groups):
    found = []
    for fast in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "x.db"
            answers = asyncio.run(told(path, before, groups, older=older, fast=fast))
            found.append((answers, tables(path)))
    assert found[0] == found[1]


def test_a_step_of_a_chain_takes_the_short_way_and_its_end_does_not():
    claim = r.Claim(instance=None, epoch=1, wake=0)
    assert isinstance(prepare(part_of("e-a", claim, 1, Try("a"))), Step)
    assert not isinstance(prepare(part_of("e-a", claim, 1, Try("a", ends=True))), Step)
    assert not isinstance(prepare(part_of("e-a", claim, 1, Try("a", claims=False))), Step)


def test_an_outcome_with_anything_else_in_it_does_not_take_the_short_way():
    part = part_of("e-a", r.Claim(instance=None, epoch=1, wake=0), 1, Try("a"))
    for field in set(Outcome.__struct_fields__) - {"events", "activities", "wake_at"}:
        other = replace(part, outcome=replace(part.outcome, **{field: object()}))
        assert not isinstance(prepare(other), Step), field


async def test_a_covered_step_writes_its_row_and_its_log_and_nothing_else(tmp_path):
    store = SqliteStore(tmp_path / "a.db", ManualClock(), name="steps", synchronous="OFF")
    claim = await begun(store, "a")
    await store.commit([part_of("e-a", claim, 1, Try("a", covers=True))])
    written = []
    store.database.trace(written.append, None)
    await store.commit([replace(part_of("e-a", claim, 2, Try("a", covers=True)), answered=())])
    store.database.trace(None, None)
    verbs = [" ".join(sql.split()[:3]) for sql in written]
    assert verbs == ["BEGIN IMMEDIATE", "UPDATE instances SET", "INSERT INTO events", "COMMIT"]
    await store.close()


async def test_what_a_dead_process_has_covered_is_offered_when_its_instance_is_claimed(tmp_path):
    clock = ManualClock()
    dead, alive = (SqliteStore(tmp_path / "a.db", clock, name=name, synchronous="OFF") for name in ("dead", "alive"))
    claim = await begun(dead, "a")
    await dead.commit([part_of("e-a", claim, 1, Try("a", covers=True))])
    assert not await alive.claim("w", ("q",), 10)
    assert not await alive.claim_activities("w", ("x",), 10)

    await alive._write(lambda t: end_leases_of(t, dead._owner.name))

    assert [again.epoch for again in await alive.claim("w", ("q",), 10)] == [2]
    [task] = await alive.claim_activities("w", ("x",), 10)
    assert (task.request, task.attempt, task.deliveries) == (request(2, "x"), 1, 1)
    assert not await alive.claim_activities("w", ("x",), 10)
    await dead.close()
    await alive.close()


async def told(path, before, groups, *, older, fast):
    """Tell a store all groups; return its answers."""
    clock = ManualClock()
    store = SqliteStore(path, clock, name="steps", synchronous="OFF")
    claims = {name: await begun(store, name) for name in NAMES}
    if older:
        [other] = await store.create([r.Creation(started=started("other"), offer=offer())])
        await store.commit([part_of("e-other", other.claim, 1, Try("other", claims=False, release=True))])
    for name, what in zip(NAMES, before, strict=True):
        await happen(store, name, claims[name], what)
    seqs, answers = dict.fromkeys(NAMES, 1), []
    for group in groups:
        parts = [part_of(f"e-{one.name}", claims[one.name], seqs[one.name], one) for one in group]
        if fast:
            got = await store.commit(parts)
        else:
            got = await store._write(lambda t, parts=parts: [commit(t, part) for part in parts])
        for one, part, answer in zip(group, parts, got, strict=True):
            if isinstance(answer, r.Committed):
                seqs[one.name] += len(part.outcome.events)
        answers.append(got)
        clock.move_to(clock.now() + 10)
    await store.close()
    return answers


async def begun(store, name):
    [answer] = await store.create([r.Creation(started=started(name), offer=offer())])
    return answer.claim


def offer():
    return r.EagerOffer(worker="w", queues=("q",))


def started(name):
    ids = {"execution_id": f"e-{name}", "run_id": f"r-{name}", "tree_id": f"r-{name}", "entity_id": name}
    return events.WorkflowStarted(seq=1, at=1, name="n", python="3.11", queue="q", **ids)


async def happen(store, name, claim, what):
    """Let something happen to an instance that its worker does not know of."""
    lease = r.Lease(entity_id=name, execution_id=f"e-{name}", epoch=claim.epoch)
    told = {"signal": events.SignalReceived(name="s", id="1"), "pause": events.WorkflowPaused()}
    told["terminate"] = events.WorkflowTerminated()
    if what == "release":
        await store.release([r.Release(lease=lease)])
    elif what:
        await store.deliver([r.Delivery(event=told[what], entity_id=name)])


def part_of(execution_id, claim, seq, one):
    log = [] if seq == 1 else [events.ActivityCompleted(seq=seq + 1, ref=seq)]
    refs = range(seq + len(log) + 1, seq + len(log) + 1 + one.scheduled)
    log += [events.ActivityScheduled(seq=n, location=Location((n,)), command="T", name="n", queue="x") for n in refs]
    wanted = [request(n, one.queue) for n in refs]
    return r.Commit(
        entity_id=one.name,
        execution_id=execution_id,
        epoch=claim.epoch,
        base_seq=seq - one.stale,
        wake=claim.wake,
        outcome=Outcome(
            events=tuple(log),
            activities=tuple(wanted),
            wake_at=5000 if one.sleeps else None,
            status=Status.COMPLETED if one.ends else Status.RUNNING,
        ),
        worker="w",
        release=one.release,
        eager=frozenset(refs) if one.claims else frozenset(),
        covers=one.covers,
        running=tuple(request(n, "x") for n in range(100, 100 + one.runs)),
        answered=tuple(entry.ref for entry in log if isinstance(entry, events.ActivityCompleted)),
    )


def request(ref, queue):
    return ActivityRequest(ref=ref, name="n", queue=queue, input=Raw(b"1"), entity_id="e")


def tables(path):
    """Return everything that a file holds."""
    connection = sqlite3.connect(path)
    try:
        return {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in TABLES}
    finally:
        connection.close()
