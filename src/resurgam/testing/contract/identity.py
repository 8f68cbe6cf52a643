"""Addressing: entities, executions and runs, and older executions of an entity."""

from resurgam.core import event as events
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import LEASE, QUEUE, OpensStores, ids, request, values

ODD_IDS = (
    "a:b",
    "{a}",
    "a b",
    " ",
    "größer/日本",
    "a%b_c",
    "a'b\"c",
    "a\\b",
    "*?[]",
    "order",
    "Order",
    "a\nb",
    "x" * 300,
)
"""Ids that break a store which builds keys, patterns, paths or statements from them without escaping."""


class IdentityCases(OpensStores):
    """Create and attach, executions of one entity, purge, ids of every kind."""

    async def test_a_creation_that_is_repeated_changes_nothing(self) -> None:
        """The same run created again, as after a lost answer, is the one that is there, open or ended."""
        async with self.bench() as b:
            started = b.started("order")
            [first] = await b.store.create([r.Creation(started=started)])
            [again] = await b.store.create([r.Creation(started=started)])
            assert isinstance(again, r.Created)
            assert again == first
            await b.end(await b.claim_one())
            [late] = await b.store.create([r.Creation(started=started)])
            assert isinstance(late, r.Created)
            assert late.instance.status is Status.COMPLETED
            assert not await b.claim()

    async def test_an_id_is_free_again_after_the_end(self) -> None:
        """An entity whose execution has ended can have another one, which is the current one from then on."""
        async with self.bench() as b:
            old = await b.ended("order")
            new = await b.create("order")
            assert new.execution_id != old.execution_id
            assert (await b.get()).execution_id == new.execution_id
            for instance in (old, new):
                found = await b.store.inspector.get("order", instance.run_id)
                assert found is not None
                assert found.execution_id == instance.execution_id
            assert await b.store.inspector.get("order", "nothing") is None
            assert (await b.claim_one()).instance == new

    async def test_an_execution_is_found_by_its_own_id(self) -> None:
        """An older execution can be asked for, by an id that belongs to this entity, and to this run if one is named."""
        async with self.bench() as b:
            old, new, other = await b.ended("order"), await b.create("order"), await b.create("other")
            for instance in (old, new):
                found = await b.store.inspector.get("order", execution_id=instance.execution_id)
                assert found is not None
                assert (found.execution_id, found.status) == (instance.execution_id, instance.status)
                assert (
                    await b.store.inspector.get("order", instance.run_id, execution_id=instance.execution_id) == found
                )
            assert await b.store.inspector.get("order", new.run_id, execution_id=old.execution_id) is None
            assert await b.store.inspector.get("order", execution_id=other.execution_id) is None
            assert await b.store.inspector.get("order", execution_id="nothing") is None

    async def test_attaching_means_the_execution_that_is_there(self) -> None:
        """Attaching returns the newest execution, open or ended; one is created only if there is none."""
        async with self.bench() as b:
            [first] = await b.store.create([r.Creation(started=b.started("order"), attach=True)])
            assert isinstance(first, r.Created)
            [second] = await b.store.create([r.Creation(started=b.started("order"), attach=True)])
            assert second == r.Exists(instance=first.instance)
            await b.end(await b.claim_one())
            [third] = await b.store.create([r.Creation(started=b.started("order"), attach=True)])
            assert isinstance(third, r.Exists)
            assert (third.instance.run_id, third.instance.status) == (first.instance.run_id, Status.COMPLETED)
            assert not await b.claim()

    async def test_signals_go_to_the_newest_execution(self) -> None:
        """A delivery by id goes to the current execution; one by execution goes to that one, which has ended."""
        async with self.bench() as b:
            old = await b.ended("order")
            new = await b.create("order")
            assert await b.send_signal("order", "by id") == r.Delivered()
            assert await b.send_signal("order", "too late", old.execution_id) == r.Ended(status=Status.COMPLETED)
            assert await b.send_signal("order", "by execution", new.execution_id) == r.Delivered()
            assert values((await b.claim_one()).inbox) == ["by id", "by execution"]

    async def test_a_late_result_does_not_touch_the_newer_execution(self) -> None:
        """A late result is recorded with its own execution; the newer one stays current and unchanged."""
        async with self.bench() as b:
            old = await b.wanting(2)
            task = await b.task()
            await b.send_signals("order", "finish")
            claim = await b.claim_one(queues=["wanting"])
            await b.committed(claim, consumed=ids(claim.inbox), status=Status.COMPLETED)
            new = await b.create("order")
            newer = await b.claim_one()
            assert await b.answer(task) == r.Accepted()
            late = await b.claim_one(queues=["wanting"])
            assert late.instance.execution_id == old.execution_id
            await b.end(late, consumed=ids(late.inbox))
            assert (await b.get()).execution_id == new.execution_id
            assert await b.send_signal("order", "x") == r.Delivered()
            [refused] = await b.store.create([r.Creation(started=b.started("order"))])
            assert isinstance(refused, r.Exists)
            await b.committed(newer)
            assert values((await b.claim_one()).inbox) == ["x"]

    async def test_purging_an_old_execution_leaves_the_current_one_alone(self) -> None:
        """The newer execution is still found, signalled, claimed and committed when the older one is purged."""
        async with self.bench() as b:
            old, new = await b.ended("order"), await b.create("order")
            assert await b.store.purge([old]) == [r.Purged()]
            assert await b.get() == new
            assert await b.store.inspector.get("order", old.run_id) is None
            assert await b.send_signal("order", "x") == r.Delivered()
            [refused] = await b.store.create([r.Creation(started=b.started("order"))])
            assert refused == r.Exists(instance=new)
            claim = await b.claim_one()
            await b.end(claim, consumed=ids(claim.inbox))

    async def test_a_purged_execution_leaves_no_trace(self) -> None:
        """Log, inbox, activities and counts are gone; workers that still hold it are refused; the id is free."""
        async with self.bench() as b:
            instance = await b.wanting(2, 3)
            [task] = await b.tasks(limit=1)
            await b.send_signals("order", "finish")
            claim = await b.claim_one(queues=["wanting"])
            await b.committed(claim, status=Status.FAILED)
            assert await b.store.purge([instance]) == [r.Purged()]
            assert await b.store.inspector.get("order") is None
            assert list(await b.store.inspector.history(instance)) == []
            assert (await b.store.inspector.list(r.Query())).instances == ()
            assert isinstance(await b.answer(task), r.Refused)
            assert isinstance(await b.extend(task), r.Refused)
            assert await b.send_signal("order", "x") == r.Missing()
            await b.pass_time(10 * LEASE)
            assert not await b.tasks()
            assert not await b.claim(queues=["wanting"])
            stats = await b.store.inspector.stats()
            assert sum(stats.instances.values()) == stats.dead_activities == 0
            assert (await b.queue()) == r.QueueStats()
            assert (await b.create("order")).entity_id == "order"

    async def test_purging_the_current_execution_brings_the_older_one_back_into_view(self) -> None:
        """When the newest execution is purged, the newest of the others is the current one."""
        async with self.bench() as b:
            old, new = await b.ended("order"), await b.ended("order")
            assert await b.store.purge([new]) == [r.Purged()]
            assert (await b.get()).execution_id == old.execution_id
            assert await b.send_signal("order", "x") == r.Ended(status=Status.COMPLETED)

    async def test_ids_may_hold_any_character(self) -> None:
        """Ids with separators, brackets, quotes, blanks or letters of any script are kept apart and come back."""
        async with self.bench() as b:
            for number, odd in enumerate(ODD_IDS):
                await b.create(odd, name=odd, tags={odd: odd})
                assert await b.send_signal(odd, str(number)) == r.Delivered()
            claims = {claim.instance.entity_id: claim for claim in await b.claim()}
            assert set(claims) == set(ODD_IDS)
            for number, odd in enumerate(ODD_IDS):
                assert values(claims[odd].inbox) == [str(number)]
                assert claims[odd].instance.tags == {odd: odd}
                page = await b.store.inspector.list(r.Query(name=odd, tags={odd: odd}))
                assert [found.entity_id for found in page.instances] == [odd]

    async def test_ids_of_executions_may_hold_any_character(self) -> None:
        """They are found, paged through, claimed, and purged, each by itself."""
        async with self.bench() as b:
            for odd in ODD_IDS:
                await b.create(f"order {odd}", execution_id=odd, run_id=f"run {odd}")
            found: list[str] = []
            page = r.Page(instances=(), cursor="")
            while page.cursor is not None:
                page = await b.store.inspector.list(r.Query(limit=2, cursor=page.cursor or None))
                found += [instance.execution_id for instance in page.instances]
            assert sorted(found) == sorted(ODD_IDS)
            for claim in await b.claim():
                await b.want(claim, request(2))
            assert {task.execution_id for task in await b.tasks()} == set(ODD_IDS)
            for odd in ODD_IDS:
                await b.deliver(events.WorkflowTerminated(), f"order {odd}")
                assert await b.store.purge([await b.get(f"order {odd}")]) == [r.Purged()]
            assert (await b.store.inspector.list(r.Query())).instances == ()

    async def test_queue_names_may_hold_any_character(self) -> None:
        """Queues with such names are kept apart, for instances, for activities and in the counts."""
        async with self.bench() as b:
            for number, odd in enumerate(ODD_IDS):
                await b.create(f"order-{number}", queue=odd)
                assert (await b.queue(odd)).instances == 1
            assert not await b.claim(queues=["a", "b", "%", QUEUE])
            for number, odd in enumerate(ODD_IDS):
                claim = await b.claim_one(queues=[odd])
                assert claim.instance.entity_id == f"order-{number}"
                await b.want(claim, request(2, odd))
                assert (await b.queue(odd)) == r.QueueStats(activities=1)
                task = await b.task(queues=[odd])
                assert task.entity_id == f"order-{number}"
                assert (await b.queue(odd)) == r.QueueStats(claimed_activities=1)
                assert await b.answer(task) == r.Accepted()
