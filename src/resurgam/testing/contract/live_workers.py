"""The workers of a store: announced, renewed, removed, expired."""

from typing import Any

from resurgam.store import records as r
from resurgam.testing.contract.bench import OpensStores

TTL = 30_000


class WorkerCases(OpensStores):
    """`Workers`."""

    async def test_a_worker_is_listed_with_what_it_announced(self) -> None:
        """And with the moment of its announcement, which returns the list too."""
        async with self.bench() as b:
            assert await b.store.workers.list() == []
            announced = await b.store.workers.announce(worker("one", slots=8, slots_in_use=3), TTL)
            now = b.clock.now()
            assert announced == [live("one", started_at=now, seen_at=now, slots=8, slots_in_use=3)]
            assert await b.store.workers.list() == announced

    async def test_a_worker_is_listed_with_its_load_and_what_it_holds(self) -> None:
        """Unchanged, whatever characters ids have; one that tells neither has none."""
        load = r.WorkerLoad(loop=0.25, process=1.5, machine=None, processors=4)
        held = r.HeldWork(
            instances=30,
            activities=1,
            oldest_instances=(r.HeldRun(entity_id="ü/1 'x' %s", name="order", since=5),),
            oldest_activities=(r.HeldAttempt(entity_id="r/1", workflow_id="ü", name="pay", attempt=2, since=7),),
        )
        async with self.bench() as b:
            await b.store.workers.announce(worker("one", load=load, held=held), TTL)
            await b.store.workers.announce(worker("two"), TTL)
            found = {live.worker_id: (live.load, live.held) for live in await b.store.workers.list()}
            assert found == {"one": (load, held), "two": (None, None)}

    async def test_a_worker_that_announces_itself_again_is_renewed(self) -> None:
        """With its new announcement; the moment of its start stays."""
        async with self.bench() as b:
            begin = b.clock.now()
            await b.store.workers.announce(worker("one"), TTL)
            await b.pass_time(TTL - 1)
            await b.store.workers.announce(worker("one", slots_in_use=2), TTL)
            await b.pass_time(TTL - 1)
            seen = begin + TTL - 1
            assert await b.store.workers.list() == [live("one", started_at=begin, seen_at=seen, slots_in_use=2)]

    async def test_a_worker_that_is_not_seen_any_more_expires(self) -> None:
        """At its moment; the others stay, and it may come back."""
        async with self.bench() as b:
            await b.store.workers.announce(worker("one"), TTL)
            await b.store.workers.announce(worker("two"), 2 * TTL)
            await b.pass_time(TTL)
            assert [found.worker_id for found in await b.store.workers.list()] == ["two"]
            back = await b.store.workers.announce(worker("one"), TTL)
            assert [(found.worker_id, found.started_at == b.clock.now()) for found in back] == [
                ("two", False),
                ("one", True),
            ]

    async def test_a_worker_that_is_removed_is_gone_at_once(self) -> None:
        """Others stay; one that is unknown is ignored."""
        async with self.bench() as b:
            await b.store.workers.announce(worker("one"), TTL)
            await b.store.workers.announce(worker("two"), TTL)
            await b.store.workers.remove("one")
            await b.store.workers.remove("one")
            assert [found.worker_id for found in await b.store.workers.list()] == ["two"]

    async def test_workers_are_listed_in_the_order_in_which_they_started(self) -> None:
        """Whenever they were seen last."""
        async with self.bench() as b:
            for name in ("b", "a", "c"):
                await b.store.workers.announce(worker(name), TTL)
                await b.pass_time(1)
            await b.store.workers.announce(worker("b"), TTL)
            assert [found.worker_id for found in await b.store.workers.list()] == ["b", "a", "c"]


def worker(worker_id: str, **fields: Any) -> r.Announcement:
    """Return what a worker announces."""
    return r.Announcement(**_fields(worker_id, **fields))


def live(worker_id: str, **fields: Any) -> r.LiveWorker:
    """Return a worker as it is listed."""
    return r.LiveWorker(**_fields(worker_id, **fields))


def _fields(worker_id: str, **fields: Any) -> dict[str, Any]:
    known = {"host": "h", "pid": 7, "build": "1.0", "queues": ("default", "gpu"), "slots": 4}
    return {"worker_id": worker_id, **known, **fields}
