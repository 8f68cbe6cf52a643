"""What is left when everything was purged: only keys whose size does not depend on how much has passed through."""

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.outcome import Message, Publication
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import HOUR, request, signal
from resurgam.testing.contract.queries import query_task
from support.redis import effects_arrived

PARTITIONS = 16
SIZES = {b"string": "STRLEN", b"hash": "HLEN", b"set": "SCARD", b"list": "LLEN", b"zset": "ZCARD", b"stream": "XLEN"}


async def sizes(b):
    """Return the number of elements of each key."""
    link = b.store._link
    connection = link._routes[0]._connection
    return {
        key.decode().partition(":")[2]: await connection.ask(SIZES[await connection.ask("TYPE", key)], key)
        for key in await connection.ask("KEYS", f"{link.address.prefix}*")
    }


async def pass_through(b, number):
    """Run an execution to its end, with a name, tags, queues and a topic of its own, and messages to another partition."""
    name, queue, work = f"order-{number}", f"queue-{number}", f"work-{number}"
    await b.create(name, name=f"sell-{number}", queue=queue, tags={"shop": f"shop-{number}"})
    claim = await b.claim_one(queues=[queue])
    await b.want(claim, request(2, work), request(3, work), release=False)
    [task, _] = await b.tasks(queues=[work])
    await b.release(task, "too large", final=True)
    await b.store.queries.submit([query_task(f"q-{number}", claim.instance, b.clock.now() + HOUR)])
    await b.store.values.put(f"value-{number}", b"v", expires_at=b.clock.now() + HOUR)
    await b.committed(
        claim,
        base_seq=3,
        status=Status.COMPLETED,
        deactivated=True,
        publications=(Publication(f"topic-{number}", Raw(b"1")),),
        messages=tuple(Message(event=signal("x"), entity_id=f"unknown-{one}", kept=True) for one in range(40)),
    )
    await effects_arrived(b.store)


async def purge_all(b):
    while found := await b.store.inspector.ended(r.EndedQuery(before=b.clock.now() + 1)):
        await b.store.purge(found)


async def test_what_passes_through_and_is_purged_leaves_nothing_that_grows(b):
    for generation in (1, 2):
        for number in range(30):
            await pass_through(b, 1000 * generation + number)
        await purge_all(b)
        # What expires goes with the next ones that are purged, in whichever partition they are.
        await b.pass_time(2 * HOUR)
        for number in range(100):
            await b.ended(f"later-{number}")
        await purge_all(b)
    left = await sizes(b)
    assert {name.partition("}:")[2] for name in left} <= {"meta", "counters", "marks", "feed", "due"}
    assert max(left.values()) <= PARTITIONS + 4  # a mark and a counter for each other partition


async def test_a_queue_is_in_use_while_an_execution_or_an_activity_names_it(b):
    instance = await b.create(queue="flows")
    await b.want(await b.claim_one(queues=["flows"]), request(2, "work"), request(3, "work"))
    assert [*(await b.store.inspector.stats()).queues] == ["flows", "work"]
    for task in await b.tasks(queues=["work"]):
        await b.answer(task)
    assert [*(await b.store.inspector.stats()).queues] == ["flows"]
    await b.deliver(events.WorkflowTerminated())
    await b.store.purge([instance])
    assert (await b.store.inspector.stats()).queues == {}
