"""Open work of an execution: `Inspector.open_work`."""

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.testing.contract.bench import (
    LEASE,
    UNKNOWN,
    OpensStores,
    ids,
    lease_of,
    request,
    retried,
    scheduled,
    signal,
)


class OpenWorkCases(OpensStores):
    """The activities of an execution, its unread inbox, and the leases on all of it."""

    async def test_an_activity_shows_who_holds_it_and_until_when(self) -> None:
        """A lease names its worker; a released one is gone."""
        async with self.bench() as b:
            instance = await b.wanting(2, 3)
            waiting = await self._activities(b.store, instance)
            assert [(one.request.ref, one.worker, one.leased_until) for one in waiting] == [
                (2, None, None),
                (3, None, None),
            ]
            task, _ = await b.tasks()
            held, other = await self._activities(b.store, instance)
            assert held.worker
            assert held.worker == other.worker
            assert (held.leased_until, held.attempt, held.deliveries) == (b.clock.now() + LEASE, 1, 1)
            await b.release(task)
            [released, _] = await self._activities(b.store, instance)
            assert (released.worker, released.leased_until, released.deliveries) == (None, None, 0)

    async def test_an_activity_claimed_by_its_commit_shows_its_worker(self) -> None:
        """The lease that a commit gives counts as any other."""
        async with self.bench() as b:
            instance = await b.create()
            await b.want(await b.claim_one(), request(2), eager=(2,))
            [held] = await self._activities(b.store, instance)
            assert held.worker
            assert (held.leased_until, held.deliveries) == (b.clock.now() + LEASE, 1)

    async def test_an_activity_that_the_lease_covers_shows_when_it_was_scheduled(self) -> None:
        """By the entry that scheduled it."""
        async with self.bench() as b:
            instance = await b.create()
            entry = msgspec.structs.replace(scheduled(request(2)), at=b.clock.now() - 7)
            options = {"eager": (2,), "covers": True, "release": False}
            await b.committed(await b.claim_one(), entry, activities=(request(2),), **options)
            [held] = await self._activities(b.store, instance)
            assert (held.visible_at, held.deliveries) == (b.clock.now() - 7, 1)

    async def test_redeliveries_and_attempts_are_counted(self) -> None:
        """An expired lease counts as a delivery; a failed attempt resets the count, and has the time of the next attempt."""
        async with self.bench() as b:
            instance = await b.wanting(2)
            await b.task()
            await b.pass_time(LEASE)
            task = await b.task("second")
            [held] = await self._activities(b.store, instance)
            assert (held.attempt, held.deliveries) == (1, 2)
            await b.answer(task, retried(task, b.clock.now() + 500))
            [later] = await self._activities(b.store, instance)
            assert (later.attempt, later.deliveries, later.worker) == (2, 0, None)
            assert later.visible_at == b.clock.now() + 500

    async def test_dead_letters_are_listed_until_they_are_revived(self) -> None:
        """Runs that are dead letters, and runs with such activities, open or closed; in pages, and no others."""
        async with self.bench() as b:
            await b.create("fine")
            await b.claim()
            await b.create("dead")
            await b.release(await b.claim_one(), "too large", final=True)
            for name in ("open", "closed"):
                await b.wanting(2, 3, entity_id=name)
                for task in await b.tasks():
                    await b.release(task, "no such thing", final=True)
            await b.deliver(events.WorkflowTerminated(), "closed")
            assert await self._dead(b.store) == {"dead", "open", "closed"}
            assert await self._dead(b.store, limit=1) == {"dead", "open", "closed"}
            [closed] = [one for one in await self._dead_pages(b.store) if one.entity_id == "closed"][:1]
            assert closed.activity_dead_letters
            await b.store.revive([await b.get("dead"), await b.get("open")])
            assert await self._dead(b.store) == {"closed"}

    async def _dead(self, store: Store, limit: int = 100) -> set[str]:
        return {one.entity_id for one in await self._dead_pages(store, limit)}

    async def _dead_pages(self, store: Store, limit: int = 100) -> list[r.Instance]:
        page = await store.inspector.dead_letters(limit=limit)
        found = [*page.instances]
        while page.cursor is not None:
            page = await store.inspector.dead_letters(page.cursor, limit)
            found += page.instances
        return found

    async def test_the_last_heartbeat_is_kept_with_its_moment(self) -> None:
        """Also without details, and from one attempt to the next; a renewal that reports none leaves it."""
        async with self.bench() as b:
            instance = await b.wanting(2)
            task = await b.task()
            lease = lease_of(task)
            for details, moment, kept in ((b"1", 7, (b"1", 7)), (None, 9, (b"1", 9)), (None, None, (b"1", 9))):
                raw = None if details is None else Raw(details)
                [answer] = await b.store.extend(
                    [
                        r.Lease(
                            entity_id=lease.entity_id,
                            execution_id=lease.execution_id,
                            epoch=lease.epoch,
                            ref=2,
                            details=raw,
                            heartbeat_at=moment,
                        )
                    ]
                )
                assert isinstance(answer, r.Extended)
                [held] = await self._activities(b.store, instance)
                assert (bytes(held.details or b""), held.heartbeat_at) == kept
            for moment, expected in ((None, 9), (11, 11)):
                event = retried(task, b.clock.now())
                failed = r.ActivityResult(
                    entity_id=task.entity_id,
                    execution_id=task.execution_id,
                    epoch=task.epoch,
                    event=event,
                    heartbeat_at=moment,
                )
                assert await b.store.complete_activities([failed]) == [r.Accepted()]
                [again] = await self._activities(b.store, instance)
                assert again.heartbeat_at == expected
                task = await b.task()
            copies = await b.store.transfer.copies("order")
            assert copies[0].activities[0].heartbeat_at == 11

    async def test_what_waits_in_the_inbox_is_shown_in_order(self) -> None:
        """Reading does not consume entries."""
        async with self.bench() as b:
            instance = await b.create()
            await b.send_signals("order", "a", "b")
            for _ in range(2):
                work = await b.store.inspector.open_work(instance)
                assert work is not None
                assert work.inbox == (signal("a"), signal("b"))
            claim = await b.claim_one()
            await b.committed(claim, consumed=ids(claim.inbox[:1]))
            work = await b.store.inspector.open_work(instance)
            assert work is not None
            assert work.inbox == (signal("b"),)

    async def test_an_execution_shows_who_holds_it(self) -> None:
        """From its claim to its commit; each delivery without a commit is counted."""
        async with self.bench() as b:
            instance = await b.create()
            await b.claim_one()
            await b.pass_time(LEASE)
            claim = await b.claim_one("second")
            work = await b.store.inspector.open_work(instance)
            assert work is not None
            assert work.worker
            assert (work.leased_until, work.deliveries) == (b.clock.now() + LEASE, 2)
            await b.committed(claim)
            assert await b.store.inspector.open_work(instance) == r.OpenWork()

    async def test_an_execution_that_is_not_there_has_no_open_work(self) -> None:
        """Neither an unknown one nor a purged one."""
        async with self.bench() as b:
            assert await b.store.inspector.open_work(UNKNOWN) is None
            gone = await b.ended()
            assert await b.store.inspector.open_work(gone) == r.OpenWork()
            await b.store.purge([gone])
            assert await b.store.inspector.open_work(gone) is None

    async def _activities(self, store: Store, instance: r.Instance) -> tuple[r.OpenActivity, ...]:
        work = await store.inspector.open_work(instance)
        assert work is not None
        return tuple(work.activities)
