from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Forgotten, Message, OpenPromise, Publication
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.redis.keys import KEYS
from resurgam.testing.contract.bench import HOUR, request, routed, signal
from resurgam.testing.contract.live_workers import TTL, worker
from resurgam.testing.contract.queries import query_task

NAMES = sorted(((key.name.partition("<")[0], key) for key in KEYS), key=lambda one: -len(one[0]))


def kind_of(name):
    """Return the kind of key that a name belongs to."""
    return next((key for fixed, key in NAMES if name == fixed or ("<" in key.name and name.startswith(fixed))), None)


async def something_of_everything(b):
    """Leave keys of as many kinds as possible."""
    parent = events.Parent(entity_id="p", run_id="r", execution_id="e", location=Location((1,)), key="k")
    await b.create(tags={"shop": "berlin"}, parent=parent)
    claim = await b.claim_one()
    outcome = {
        "promises": (OpenPromise(routed("p-1"), "open"), OpenPromise(routed("p-2"), "settled")),
        "closed": (routed("p-2"),),
        "forgotten": (Forgotten(2, Location((1,))),),
        "publications": (Publication("prices", Raw(b"1")),),
        "signal_schemas": {"pay": Raw(b"{}")},
        "messages": (Message(event=signal("x"), entity_id="unknown", kept=True),),
    }
    await b.want(claim, request(2), request(3), wake_at=b.clock.now() + HOUR, **outcome)
    [task] = await b.tasks(limit=1)
    await b.release(task, "too large", final=True)
    await b.create("covering", queue="covering")
    await b.want(await b.claim_one(queues=["covering"]), request(2, "covered"), eager=(2,), covers=True)
    await b.create("sleeping", queue="sleeping")
    await b.committed(await b.claim_one(queues=["sleeping"]), wake_at=b.clock.now() + HOUR)
    await b.create("parked", queue="parked")
    diverged = events.WorkflowDiverged(seq=2, diagnosis="no")
    await b.committed(await b.claim_one(queues=["parked"]), diverged, status=Status.DIVERGED)
    await b.create("dead", queue="dead")
    await b.release(await b.claim_one(queues=["dead"]), "no", final=True)
    await b.create("failed", queue="failed")
    claim = await b.claim_one(queues=["failed"])
    await b.committed(claim, status=Status.FAILED, failure="ValueError", deactivated=True)
    await b.create("other", queue="other", kind="other")
    for _ in range(20):
        await b.ended("often")
    archived = b.beside("archived")
    await b.ended(archived)
    copies = tuple(await b.store.transfer.copies(archived))
    await b.store.transfer.archive([r.Archival(entity_id=archived, copies=copies, archive="file:///a")])
    await b.send_signals("order", "one")
    await b.store.queries.submit([query_task("q", await b.get(), b.clock.now() + HOUR)])
    await b.store.values.put("k", b"v", expires_at=b.clock.now() + HOUR)
    await b.store.workers.announce(worker("one"), TTL)


async def test_every_key_is_listed_with_its_type_and_its_fields(b):
    await something_of_everything(b)
    link = b.store._link
    connection = link._routes[0]._connection
    found = set()
    for stored in await connection.ask("KEYS", f"{link.address.prefix}*"):
        name = stored.decode().partition("}:")[2]
        key = kind_of(name)
        assert key is not None, name
        assert (await connection.ask("TYPE", stored)).decode() == key.type, name
        if key.fields:
            assert not [one for one in await fields_of(connection, stored, key) if not is_listed(one, key)], name
        found.add(key.name)
    carried = {"outbox-<target>", "unsent", "marks", "owners"}  # gone when they have arrived; only on the same host
    assert {key.name for key in KEYS} - found <= carried


def is_listed(field, key):
    return any(field == one or ("<" in one and field.startswith(one.partition("<")[0])) for one in key.fields)


async def fields_of(connection, stored, key):
    """Return the names of the fields of a hash, or of the last entry of a stream."""
    if key.type == "hash":
        return [one.decode() for one in await connection.ask("HKEYS", stored)]
    [(_, fields)] = await connection.ask("XREVRANGE", stored, "+", "-", "COUNT", "1")
    return [one.decode() for one in fields[::2]]
