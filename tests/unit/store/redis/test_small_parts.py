from msgspec import Raw

from resurgam.core.outcome import Publication
from resurgam.store import records as r
from resurgam.store.rules import MESSAGES_KEPT
from resurgam.testing.contract.bench import HOUR, routed
from resurgam.testing.contract.live_workers import TTL, worker
from resurgam.testing.contract.queries import query_task


async def keys_of(b, name):
    """Return the keys whose names begin so, without the partition."""
    link = b.store._link
    connection = link._routes[0]._connection
    keys = await connection.ask("KEYS", f"{link.address.prefix}*")
    names = [key.decode().partition("}:")[2] for key in keys]
    return sorted(one for one in names if one.startswith(name))


async def publish(b, *topics):
    """Publish a message on each of the topics."""
    await b.create("publisher", queue="publisher")
    claim = await b.claim_one(queues=["publisher"])
    await b.end(claim, publications=tuple(Publication(topic, Raw(b"1")) for topic in topics))


# Topics.


async def test_a_topic_without_recent_messages_takes_no_room(b):
    topics = [name for name in (f"prices-{number}" for number in range(100)) if at_home(b, name)][:3]
    await publish(b, *topics)
    before = (await b.store.inspector.messages(topics[0], "")).cursor
    assert await keys_of(b, "topic-") == [f"topic-{topic}" for topic in topics]
    await b.pass_time(MESSAGES_KEPT + 1)
    await publish(b, topics[0])
    assert await keys_of(b, "topic-") == [f"topic-{topics[0]}"]
    assert (await b.store.inspector.messages(topics[0], before)).values == (Raw(b"1"),)
    await publish(b, topics[1])
    assert len((await b.store.inspector.messages(topics[1], before)).values) == 1


def at_home(b, topic):
    link = b.store._link
    return link.partition_of(topic) == link.partition_of("publisher")


# Values.


async def test_expired_values_are_deleted_when_others_are_put(b):
    link = b.store._link
    home = [key for key in (f"key-{number}" for number in range(100)) if link.partition_of(key) == 0][:3]
    for key in home[:2]:
        await b.store.values.put(key, b"v", expires_at=b.clock.now() + HOUR)
    await b.pass_time(HOUR)
    assert await keys_of(b, "value-") == sorted(f"value-{key}" for key in home[:2])
    await b.store.values.put(home[2], b"v")
    assert await keys_of(b, "value-") == [f"value-{home[2]}"]
    assert await keys_of(b, "values") == []


# Queries.


async def test_a_query_leaves_nothing_behind(b):
    instance = await b.create()
    for name in ("answered", "open"):
        await b.store.queries.submit([query_task(name, instance, b.clock.now() + HOUR)])
    await b.store.queries.complete([r.QueryResult(query_id=routed("answered"), result=Raw(b"1"))])
    assert len(await b.store.queries.claim("first", ["default"], 10)) == 1
    await b.pass_time(HOUR)
    assert await b.store.queries.claim("first", ["default"], 10) == []
    assert await keys_of(b, "quer") == await keys_of(b, "asked") == []


async def test_queries_of_several_partitions_are_claimed_up_to_the_limit(b):
    for number in range(30):
        instance = await b.create(f"order-{number}")
        await b.store.queries.submit([query_task("q", instance, b.clock.now() + HOUR)])
    taken = [len(await b.store.queries.claim("first", ["default"], limit)) for limit in (1, 0, 17, 100, 1)]
    assert taken == [1, 0, 17, 12, 0]


async def test_a_query_id_that_begins_with_no_route_is_unknown(b):
    assert await b.store.queries.result("not a route") is None
    await b.store.queries.complete([r.QueryResult(query_id="not a route")])


# Workers.


async def test_a_worker_that_another_version_announced_does_not_hide_the_others(b):
    await b.store.workers.announce(worker("one"), TTL)
    await b.store.workers.announce(worker("two"), TTL)
    link = b.store._link
    await link._routes[0]._connection.ask("HSET", f"{link.keys[0]}worker-one", "body", '{"new":1}')
    assert [found.worker_id for found in await b.store.workers.list()] == ["two"]


async def test_workers_that_were_not_seen_for_too_long_leave_nothing_behind(b):
    await b.store.workers.announce(worker("one"), TTL)
    await b.pass_time(TTL)
    await b.store.workers.announce(worker("two"), TTL)
    assert await keys_of(b, "worker") == ["worker-two", "workers"]


async def test_the_workers_of_a_dead_process_are_gone_at_once(b):
    await b.store.workers.announce(worker("one"), TTL)
    await b.store._link.ask(0, "reap", ["another"])
    assert [found.worker_id for found in await b.store.workers.list()] == ["one"]
    await b.store._link.ask(0, "reap", [b.store._link.owner])
    assert await b.store.workers.list() == []


async def test_a_query_behind_many_that_have_expired_is_found(b):
    instance = await b.create()
    old = [query_task(f"old-{number}", instance, b.clock.now() + 10) for number in range(350)]
    await b.store.queries.submit(old)
    await b.pass_time(10)
    await b.store.queries.submit([query_task("new", instance, b.clock.now() + HOUR)])
    assert await b.is_there(r.Work(worker="first", queues=(instance.queue,), instances=False, activities=False))
    [claimed] = await b.store.queries.claim("first", (instance.queue,), 1)
    assert claimed.query_id == routed("new")
