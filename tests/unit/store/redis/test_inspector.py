from itertools import islice

import pytest
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.errors import StoreError
from resurgam.core.location import Location
from resurgam.core.outcome import Forgotten, OpenPromise, Span
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.memory.store import MemoryStore
from resurgam.store.open import open_inspector
from resurgam.store.redis import inspector as inspectors
from resurgam.store.redis.store import RedisStore
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import HOUR, LEASE, Bench, OpensStores, request, retried, routed, scheduled
from support.redis import fresh_cluster_url

SLICE = 100  # members of an index that one call looks at (scripts/shared/walks.lua)
CHAIN = 200  # executions of an entity that one call looks at (scripts/get_instance.lua)


def same_partition(b):
    """Yield the ids of entities that share a partition."""
    number = 0
    while True:
        number += 1
        yield b.beside(f"order-{number}")


async def paged(b, query):
    """Return the entities of all pages."""
    found, cursor = [], query.cursor
    while True:
        page = await b.store.inspector.list(replace(query, cursor=cursor))
        found += [one.entity_id for one in page.instances]
        cursor = page.cursor
        if cursor is None:
            return found


# Lists.


async def test_pages_of_one_millisecond_go_on_behind_an_instance_that_was_purged(b):
    names = [await b.ended(name) for name in islice(same_partition(b), 9)]
    whole = [one.entity_id for one in (await b.store.inspector.list(r.Query())).instances]
    first = await b.store.inspector.list(r.Query(limit=4))
    await b.store.purge([one for one in names if one.entity_id in (whole[3], whole[4])])
    assert await paged(b, r.Query(limit=2, cursor=first.cursor)) == whole[5:]


async def test_a_list_looks_for_rare_instances_in_several_short_calls(b):
    names = list(islice(same_partition(b), 2 * SLICE + 10))
    for number, name in enumerate(names):
        await b.create(name, kind="workflow" if number in (0, SLICE + 5) else "other")
    flights = b.store._link.flights
    assert await paged(b, r.Query(kind="workflow")) == [names[SLICE + 5], names[0]]
    assert b.store._link.flights - flights >= 3


async def test_instances_of_another_kind_than_workflows_are_found_by_an_index(b):
    names = list(islice(same_partition(b), 2 * SLICE))
    for number, name in enumerate(names):
        await b.create(name, kind="rare" if number in (0, SLICE + 5) else "workflow")
    flights = b.store._link.flights
    assert await paged(b, r.Query(kind="rare")) == [names[SLICE + 5], names[0]]
    assert await paged(b, r.Query(kind="rare", status=Status.COMPLETED)) == []
    assert b.store._link.flights - flights == 2


async def test_a_list_of_tags_that_look_alike_has_only_those_asked_for(b):
    await b.create("one", tags={"a=b": "c"})
    await b.create("two", tags={"a": "b=c"})
    assert await paged(b, r.Query(tags={"a": "b=c"})) == ["two"]
    assert await paged(b, r.Query(tags={"a=b": "c"})) == ["one"]


async def test_a_list_is_merged_from_all_partitions_by_the_moment_of_creation(b):
    names = [f"order-{number}" for number in range(60)]
    for name in names:
        await b.create(name)
        await b.pass_time(1)
    for limit in (1, 7, 100):
        assert await paged(b, r.Query(limit=limit)) == names[::-1]


async def test_a_cursor_that_no_list_has_returned_is_refused(b):
    with pytest.raises(StoreError, match="cursor must be one that a list returned, got 'yesterday'"):
        await b.store.inspector.list(r.Query(cursor="yesterday"))


async def test_ended_executions_of_one_millisecond_are_paged_without_gaps(b):
    for number in range(30):
        await b.ended(f"order-{number}")
    whole = [one.execution_id for one in await b.store.inspector.ended(r.EndedQuery(before=2**50))]
    found, after = [], None
    while page := await b.store.inspector.ended(r.EndedQuery(before=2**50, limit=4, after=after)):
        found += [one.execution_id for one in page]
        after = (page[-1].closed_at, page[-1].execution_id)
    assert found == whole == sorted(whole)
    assert len(whole) == 30


async def test_the_newest_execution_of_a_run_is_found_behind_many_others(b):
    old = await b.ended()
    [copy] = await b.store.transfer.copies("order")
    ids = [f"later-{number}" for number in range(CHAIN + 5)]
    later = [replace(copy, instance=replace(copy.instance, execution_id=one, run_id=one)) for one in ids]
    await b.store.transfer.adopt([r.Adoption(entity_id="order", copies=tuple(later))])
    assert (await b.get()).execution_id == ids[-1]
    assert await b.store.inspector.get("order", old.run_id) == old
    assert await b.store.inspector.get("order", "unknown") is None


# Histories.


async def long_log(b, count):
    """Create an execution whose log has *count* entries."""
    instance = await b.create()
    await b.committed(await b.claim_one(), *(scheduled(request(seq)) for seq in range(2, count + 1)), release=False)
    return instance


async def test_a_long_log_is_read_in_slices(b, monkeypatch):
    monkeypatch.setattr(inspectors, "_ENTRIES", 10)
    instance = await long_log(b, 35)
    history = b.store.inspector.history
    assert [entry.seq for entry in await history(instance)] == list(range(1, 36))
    assert [entry.seq for entry in await history(instance, 25)] == list(range(11, 36))
    assert [entry.seq for entry in await history(instance, 100)] == list(range(1, 36))
    assert await history(instance, 0) == []


async def test_forgotten_entries_are_found_across_slices_and_dropped_ones_leave_gaps(b, monkeypatch):
    monkeypatch.setattr(inspectors, "_ENTRIES", 4)
    instance = await b.create()
    claim = await b.claim_one()
    location, other = Location((1,)), Location((2,))
    marks = (*(Forgotten(seq, location) for seq in range(3, 12)), *(Forgotten(seq, other) for seq in range(12, 17)))
    log = [scheduled(request(seq)) for seq in range(2, 21)]
    kept = await b.committed(claim, *log, forgotten=marks, release=False)
    await b.committed(claim, base_seq=20, wake=kept.wake, dropped=(Span(location, other),))
    history = b.store.inspector.history
    active, dropped = [1, 2, 17, 18, 19, 20], set(range(3, 12))
    assert [entry.seq for entry in await history(instance)] == active
    whole = [seq for seq in range(1, 21) if seq not in dropped]
    assert [entry.seq for entry in await history(instance, forgotten=True)] == whole
    assert [entry.seq for entry in await history(instance, 10, forgotten=True)] == whole[-10:]


async def test_more_forgotten_entries_than_are_read_at_once_are_dropped_together(b):
    instance = await b.create()
    claim = await b.claim_one()
    location, other, last = Location((1,)), Location((2,)), 1202
    marks = tuple(Forgotten(seq, other if seq % 3 == 0 else location) for seq in range(3, last))
    log = [scheduled(request(seq)) for seq in range(2, last + 1)]
    kept = await b.committed(claim, *log, forgotten=marks, release=False)
    await b.committed(claim, base_seq=last, wake=kept.wake, dropped=(Span(location, other),))
    left = [entry.seq for entry in await b.store.inspector.history(instance, forgotten=True)]
    assert left == [1, 2, *range(3, last, 3), last]


async def test_a_log_that_is_forgotten_from_between_two_slices_is_read_again(b, monkeypatch):
    monkeypatch.setattr(inspectors, "_ENTRIES", 10)
    instance = await b.create()
    claim = await b.claim_one()
    log = [scheduled(request(seq)) for seq in range(2, 31)]
    kept = await b.committed(claim, *log, release=False)
    link, ask, calls = b.store._link, b.store._link.ask, []

    async def forget_after_the_first_slice(partition, verb, part):
        answer = await ask(partition, verb, part)
        calls.append(verb)
        if calls == ["read_history"]:
            marks = tuple(Forgotten(seq, Location((1,))) for seq in range(5, 25))
            await b.committed(claim, base_seq=30, wake=kept.wake, forgotten=marks)
        return answer

    monkeypatch.setattr(link, "ask", forget_after_the_first_slice)
    assert [entry.seq for entry in await b.store.inspector.history(instance)] == [1, 2, 3, 4, *range(25, 31)]


# Counts.


async def work_of_all_kinds(b):
    """Leave work of every kind: waiting, claimed, covered, to be retried, paused, due, parked."""
    await b.create("waiting", queue="flows")
    await b.wanting(2, 3, entity_id="halted")
    await b.tasks(limit=1)
    await b.pause("halted")
    await b.wanting(2, 3, 4, entity_id="busy")
    task, _ = await b.tasks(limit=2)
    await b.answer(task, retried(task, b.clock.now() + HOUR))
    await b.create("covering", queue="covering")
    covering = await b.claim_one(queues=["covering"])
    await b.want(covering, request(2, "covered"), eager=(2,), covers=True)
    await b.create("sleeping", queue="sleeping")
    await b.committed(await b.claim_one(queues=["sleeping"]), wake_at=b.clock.now() + 5)
    await b.create("lost", queue="lost")
    await b.claim_one(queues=["lost"])
    await b.create("parked", queue="parked")
    diverged = events.WorkflowDiverged(seq=2, diagnosis="no")
    await b.committed(await b.claim_one(queues=["parked"]), diverged, status=Status.DIVERGED)
    await b.send_signals("parked", "one")


@pytest.mark.parametrize("later", [0, 5, LEASE])
async def test_work_of_all_kinds_is_counted_as_in_memory(b, later):
    memory = Bench(MemoryStore(b.clock, lease=LEASE), b.clock, OpensStores())
    for side in (b, memory):
        await work_of_all_kinds(side)
    await b.pass_time(later)
    found, expected = await b.store.inspector.stats(), await memory.store.inspector.stats()
    assert found == expected


async def test_more_work_than_fits_into_one_call_is_counted(b):
    for name in islice(same_partition(b), SLICE + 20):
        await b.create(name)
    assert (await b.queue("default")).instances == SLICE + 20


# Nothing but reading.


async def test_what_reads_is_registered_so_that_it_cannot_write(b):
    instance = await b.create()
    await b.store.queries.result("q")
    listed = await b.store._link._routes[0]._connection.ask(
        "FUNCTION", "LIST", "LIBRARYNAME", b.store._link._library.name
    )
    functions = {bytes(one[b"name"]).rpartition(b"_")[0]: one[b"flags"] for one in listed[0][b"functions"]}
    reading = {name for name, flags in functions.items() if b"no-writes" in flags}
    assert reading >= {
        *(b"get_instance", b"list_instances", b"list_ended", b"read_history", b"open_work", b"find_promise"),
        *(b"count_instances", b"count_work", b"read_topic", b"read_feed", b"feed_position", b"copies"),
        *(b"find_executions", b"get_value", b"list_workers", b"query_result"),
    }
    assert not reading & {b"create", b"deliver", b"claim", b"commit", b"adopt", b"put_value", b"submit_query"}
    assert instance.last_seq == 1


async def test_an_event_of_another_version_is_left_out_of_the_open_work(b):
    instance = await b.create()
    await b.send_signals("order", "one")
    link = b.store._link
    partition = link.partition_of("order")
    connection = link._routes[partition]._connection
    key = f"{link.keys[partition]}pending-{instance.execution_id}"
    await connection.ask(
        "XADD", key, "9-0", "type", "new", "body", '{"type":"new"}', "overtakes", "0", "promise_id", ""
    )
    work = await b.store.inspector.open_work(instance)
    assert [type(event) for event in work.inbox] == [events.SignalReceived]


# An inspector that is opened by itself.


READS = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"set": ("SMEMBERS",),
    b"list": ("LRANGE", "0", "-1"),
    b"zset": ("ZRANGE", "0", "-1", "WITHSCORES"),
    b"stream": ("XRANGE", "-", "+"),
}


async def everything(b):
    """Return what the server holds of the store, and its libraries."""
    link = b.store._link
    connection = link._routes[0]._connection
    found = {}
    for key in await connection.ask("KEYS", f"{link.address.prefix}*"):
        command, *arguments = READS[await connection.ask("TYPE", key)]
        found[key] = await connection.ask(command, key, *arguments)
    return found, [one[b"library_name"] for one in await connection.ask("FUNCTION", "LIST")]


@pytest.fixture
async def beside(b):
    inspector = open_inspector(b.url, b.clock)
    yield inspector
    await inspector.close()


async def test_an_inspector_shows_what_the_store_shows_and_writes_nothing(b, beside):
    await work_of_all_kinds(b)
    instance = await b.create("promising", queue="promising")
    promise = OpenPromise(routed("p", "promising"), "pay")
    await b.committed(await b.claim_one(queues=["promising"]), promises=(promise,))
    before = await everything(b)
    mine, its = b.store.inspector, beside
    assert await its.get("promising") == await mine.get("promising")
    assert await its.list(r.Query()) == await mine.list(r.Query())
    assert await its.list(r.Query(status=Status.PAUSED)) == await mine.list(r.Query(status=Status.PAUSED))
    assert await its.ended(r.EndedQuery(before=2**50)) == await mine.ended(r.EndedQuery(before=2**50))
    assert await its.history(instance) == await mine.history(instance)
    assert await its.open_work(instance) == await mine.open_work(instance)
    to = r.Delivery(event=events.PromiseResolved(ref=0), entity_id="promising", promise="pay")
    assert await its.promise(to) == await mine.promise(to)
    assert await its.stats() == await mine.stats()
    assert await its.messages("prices", "") == await mine.messages("prices", "")
    assert await everything(b) == before


async def test_an_inspector_cannot_call_what_writes(b, beside):
    await b.create()
    with pytest.raises(StoreError, match="Write commands are not allowed"):
        await beside._link.ask(0, "put_value", ["k", "v", None, True])


async def test_an_inspector_goes_on_after_the_server_has_forgotten_its_script(b, beside):
    await b.create()
    assert await beside.get("order") is not None
    await b.store._link._routes[0]._connection.ask("SCRIPT", "FLUSH")
    assert await beside.get("order") is not None


async def test_an_inspector_reads_from_all_nodes_of_a_cluster():
    url, clock = fresh_cluster_url(), ManualClock()
    store, inspector = RedisStore(url, clock, name="test", lease=LEASE), open_inspector(url, clock)
    try:
        b = Bench(store, clock, OpensStores())
        names = {f"order-{number}" for number in range(30)}
        for name in names:
            await b.create(name)
        page = await inspector.list(r.Query())
        assert {found.entity_id for found in page.instances} == names
        assert (await inspector.stats()).instances == {"running": 30}
        assert {one.entity_id for one in (await store.feed.read(r.FeedQuery())).entries} == names
    finally:
        await inspector.close()
        await store.close()
