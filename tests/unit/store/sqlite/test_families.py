"""Parents, pauses, promises, questions and messages in a SQLite file: indexes, other processes, exports."""

import asyncio
import json
import sqlite3
from contextlib import asynccontextmanager, closing

import pytest
from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.errors import SerializationError
from resurgam.core.location import Location
from resurgam.core.outcome import ActivityRequest, OpenPromise, Outcome, Publication
from resurgam.core.state import Status
from resurgam.store import export
from resurgam.store import records as r
from resurgam.store.secret import secret_of
from resurgam.store.sqlite.inspector import ReadOnlyFile, SqliteInspector
from resurgam.store.sqlite.session import Session
from resurgam.store.sqlite.statements import queries
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from support.limits import HANGS

PARENT = events.Parent(entity_id="p", run_id="r-p", execution_id="e-p", location=Location((1, 2)), key="k")


@asynccontextmanager
async def opened(path, clock, name="one"):
    store = SqliteStore(path, clock, name=name, synchronous="OFF")
    try:
        yield store
    finally:
        await store.close()


def started(number=1, **fields):
    return events.WorkflowStarted(
        seq=1,
        at=5,
        name="sell",
        queue="q",
        python="3.11",
        tree_id="t",
        entity_id="order",
        **{"execution_id": f"e-{number}", "run_id": f"r-{number}", **fields},
    )


async def commit(store, claim, *log, **fields):
    part = r.Commit(
        execution_id=claim.instance.execution_id,
        entity_id=claim.instance.entity_id,
        epoch=claim.epoch,
        base_seq=claim.instance.last_seq,
        wake=claim.wake,
        outcome=Outcome(events=log, **fields),
    )
    [answer] = await store.commit([part])
    assert isinstance(answer, r.Committed)


async def begun(store, **fields):
    await store.create([r.Creation(started=started(**fields))])
    [claim] = await store.claim("w", ["q"], 1)
    return claim


def plan(path, statement):
    names = "name limit execution_id queue now worker queues types topic after redeliveries"
    with closing(sqlite3.connect(path)) as connection:
        steps = connection.execute(
            f"EXPLAIN QUERY PLAN {queries()[statement]}", dict.fromkeys(names.split())
        ).fetchall()
    return [step[3] for step in steps]


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("promises_named", "promises_instance (execution_id=? AND name=?)"),
        ("messages_after", "messages_topic (topic=? AND number>?)"),
    ],
)
async def test_what_is_asked_for_is_one_range_of_an_index_in_its_order(statement, index, tmp_path):
    async with opened(tmp_path / "shop.db", ManualClock()):
        steps = plan(tmp_path / "shop.db", statement)
    assert f"USING INDEX {index}" in steps[0]


async def test_claims_never_look_at_every_instance(tmp_path):
    async with opened(tmp_path / "shop.db", ManualClock()):
        for statement in ("claimable_instances", "claimable_eagerly", "next_due", "claimable_activities"):
            steps = plan(tmp_path / "shop.db", statement)
            scans = [step for step in steps if step.startswith("SCAN") and "INDEX" not in step]
            assert not [step for step in scans if step.split()[1] in ("instances", "activities", "i", "a")], steps


async def test_all_processes_have_one_secret(tmp_path):
    clock = ManualClock()
    async with opened(tmp_path / "shop.db", clock) as one, opened(tmp_path / "shop.db", clock, "two") as two:
        first, second = await asyncio.gather(secret_of(one.values), secret_of(two.values))
    async with opened(tmp_path / "shop.db", clock, "three") as three:
        assert first == second == await secret_of(three.values)


async def test_other_processes_ask_answer_and_listen(tmp_path):
    clock = ManualClock()
    async with opened(tmp_path / "shop.db", clock) as one, opened(tmp_path / "shop.db", clock, "two") as two:
        claim = await begun(one)
        watches = (
            r.Work(worker="w", queues=("q",)),
            r.QueryAnswered(query_id="q-1"),
            r.Published(topic="prices", after=""),
            r.LogGrown(entity_id="order", execution_id="e-1", last_seq=1),
        )
        task = r.QueryTask(
            query_id="q-1", entity_id="order", execution_id="e-1", queue="q", name="n", input=Raw(b"1"), until=2**60
        )

        work = asyncio.ensure_future(two.wait(watches[0]))
        await asyncio.sleep(0)
        await one.queries.submit([task])
        assert await asyncio.wait_for(work, HANGS)
        assert await two.queries.claim("w", ["q"], 1) == [task]

        waiting = [asyncio.ensure_future(two.wait(watch)) for watch in watches[1:]]
        await asyncio.sleep(0)
        reply = r.QueryResult(query_id="q-1", result=Raw(b"7"))
        await one.queries.complete([reply])
        scheduled = events.StateSet(seq=2, location=Location((1,)), command="State(0)", name="x")
        await commit(one, claim, scheduled, publications=(Publication("prices", Raw(b"1")),))
        assert await asyncio.wait_for(asyncio.gather(*waiting), HANGS) == [True, True, True]
        assert await two.queries.result("q-1") == reply


async def test_an_inspector_sees_messages_children_and_pauses(tmp_path):
    clock = ManualClock()
    async with opened(tmp_path / "shop.db", clock) as store:
        claim = await begun(store, parent=PARENT)
        await commit(store, claim, publications=(Publication("prices", Raw(b"1")),))
        await store.deliver([r.Delivery(event=events.WorkflowPaused(), entity_id="order")])

        inspector = SqliteInspector(ReadOnlyFile(tmp_path / "shop.db"), clock)
        try:
            assert (await inspector.messages("prices", "")).values == (Raw(b"1"),)
            [child] = (await inspector.list(r.Query(parent="p", status=Status.PAUSED))).instances
            assert child.parent == PARENT
            assert await inspector.open_work(claim.instance) == await store.inspector.open_work(claim.instance)
        finally:
            await inspector.close()


async def test_a_commit_that_brings_nothing_new_takes_no_more_statements(tmp_path, monkeypatch):
    used = []
    for name in ("fetch", "execute", "execute_many", "run"):
        verb = getattr(Session, name)
        monkeypatch.setattr(
            Session, name, lambda self, query, *a, _verb=verb, **k: [used.append(query), _verb(self, query, *a, **k)][1]
        )
    async with opened(tmp_path / "shop.db", ManualClock()) as store:
        claim = await begun(store)
        part = r.Commit(
            execution_id="e-1", entity_id="order", epoch=1, base_seq=1, wake=0, outcome=Outcome(), release=False
        )
        used.clear()
        assert await store.commit([part]) == [r.Committed(wake=0)]
        assert used == ["commit_awake"]
        used.clear()
        assert await store.commit([replace(part, release=True)]) == [r.Committed(wake=0)]
        assert used == ["commit_and_rest"]
        assert claim.epoch == 1


# Exports.


async def halted(tmp_path):
    """Return the copy of a child that is put off, halted, has made promises and has told something."""
    async with opened(tmp_path / "shop.db", ManualClock()) as store:
        claim = await begun(store, parent=PARENT, begins_at=7)
        entry = events.ActivityScheduled(seq=3, location=Location((1,)), command="Task(0)", name="n", queue="q")
        intent = ActivityRequest(ref=3, name="n", queue="q", input=Raw(b"1"), entity_id="i")
        promises = (OpenPromise("p-1", "approval"), OpenPromise("p-2", "other"))
        await commit(store, claim, events.WorkflowBegun(seq=2), entry, activities=(intent,), promises=promises)
        [task] = await store.claim_activities("w", ["q"], 1)
        await store.extend(
            [r.Lease(entity_id="order", execution_id="e-1", epoch=task.epoch, ref=3, details=Raw(b'{"page":null}'))]
        )
        await store.deliver(
            [
                r.Delivery(event=events.PromiseResolved(ref=0), promise_id="p-2"),
                r.Delivery(event=events.WorkflowPaused(tree=True), entity_id="order"),
                r.Delivery(event=events.CancelRequested(), entity_id="order"),
            ]
        )
        [copy] = await store.transfer.copies("order")
    return copy


async def test_an_export_holds_parents_pauses_promises_and_details(tmp_path):
    copy = await halted(tmp_path)
    written = export.write([copy])

    assert export.read(written) == (copy,)
    head = json.loads(written[0])
    assert (head["paused"], head["promises"]) == ("tree", 2)
    assert head["instance"]["parent"]["location"] == "{1.2}"
    assert head["instance"]["status"] == "running"
    assert json.loads(written[-1]) == {
        "type": "promise",
        "promise": {"promise_id": "p-2", "name": "other", "settled": True, "schema": None},
    }
    assert [json.loads(line)["details"] for line in written if '"activity",' in line] == [{"page": None}]


async def test_an_export_without_them_does_not_mention_them(tmp_path):
    async with opened(tmp_path / "shop.db", ManualClock()) as store:
        await begun(store)
        text = "".join(export.write(await store.transfer.copies("order")))
    for word in ("promise", "paused", "details", "parent"):
        assert word not in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda copy: replace(copy, promises=copy.promises * 2), "promise p-1 occurs twice"),
        (lambda copy: replace(copy, instance=replace(copy.instance, status=Status.PAUSED)), "about status"),
        (lambda copy: replace(copy, instance=replace(copy.instance, status=Status.SCHEDULED)), "about status"),
        (lambda copy: replace(copy, instance=replace(copy.instance, parent=None)), "about parent"),
        (lambda copy: replace(copy, inbox=(events.WorkflowTerminated(),)), "nothing that can wait in an inbox"),
    ],
)
async def test_an_export_that_contradicts_itself_is_refused(change, reason, tmp_path):
    written = export.write([change(await halted(tmp_path))])
    with pytest.raises(SerializationError, match=reason):
        export.read(written)


async def test_an_export_whose_promises_are_cut_off_is_refused(tmp_path):
    written = export.write([await halted(tmp_path)])
    with pytest.raises(SerializationError, match="promise 2 of 2 of execution e-1 is to follow"):
        export.read(written[:-1])
