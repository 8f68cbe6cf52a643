"""Children: they are begun by the commit that asks for them, or not at all."""

from typing import Any

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import Birth, Succession
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import HOUR, LEASE, Bench, OpensStores, ids, values


class BirthCases(OpensStores):
    """`Outcome.births`, and what is known of a child."""

    async def test_a_child_is_begun_by_the_commit_and_its_parent_is_told(self) -> None:
        """The child is ready and knows its parent; the news are in the parent's inbox."""
        async with self.bench() as b:
            parent = await b.create()
            birth = birth_of(b, parent, "child")
            await b.committed(await b.claim_one(), births=(birth,))
            claims = {claim.instance.entity_id: claim for claim in await b.claim()}
            assert claims["child"].instance == r.Instance.of(birth.started)
            assert claims["child"].instance.parent == birth.started.parent
            assert await b.store.read(birth.started.execution_id) == [birth.started]
            assert [entry.event for entry in claims["order"].inbox] == [birth.created]

    async def test_a_kept_lease_brings_the_news_of_a_birth_with_it(self) -> None:
        """With the raised counter, so that nothing is told twice and nothing is missed."""
        async with self.bench() as b:
            parent = await b.create()
            claim = await b.claim_one()
            births = (birth_of(b, parent, "one"), birth_of(b, parent, "two", ref=3))
            done = await b.committed(claim, births=births, release=False)
            assert [entry.event for entry in done.inbox] == [birth.created for birth in births]
            again = await b.committed(claim, wake=done.wake, consumed=ids(done.inbox), release=False)
            assert again == r.Committed(wake=done.wake)

    async def test_an_id_that_is_taken_refuses_the_child(self) -> None:
        """The parent is told so, and whoever has the id is left alone."""
        async with self.bench() as b:
            other = await b.create("child", queue="other")
            parent = await b.create()
            birth = birth_of(b, parent, "child")
            done = await b.committed(await b.claim_one(), births=(birth,), release=False)
            assert [entry.event for entry in done.inbox] == [birth.refused]
            assert await b.get("child") == other

    async def test_an_id_whose_execution_has_ended_can_be_had(self) -> None:
        """Even by the same call, in another attempt."""
        async with self.bench() as b:
            await b.ended("child")
            parent = await b.create()
            birth = birth_of(b, parent, "child")
            done = await b.committed(await b.claim_one(), births=(birth,), release=False)
            assert [entry.event for entry in done.inbox] == [birth.created]
            assert (await b.get("child")).execution_id == birth.started.execution_id

    async def test_a_child_of_the_same_key_is_the_one_that_is_meant(self) -> None:
        """An earlier attempt of the parent began it: the later one is told which execution it is, and begins none."""
        async with self.bench() as b:
            parent = await b.create()
            first, second = (birth_of(b, parent, "child") for _ in range(2))
            claim = await b.claim_one()
            done = await b.committed(claim, births=(first,), release=False)
            done = await b.committed(claim, births=(second,), wake=done.wake, release=False)
            assert isinstance(second.created, events.ChildStarted)
            assert [entry.event for entry in done.inbox] == [first.created]
            assert len(await b.store.copies("child")) == 1

    async def test_a_retried_child_has_the_key_still(self) -> None:
        """Whichever attempt of it is open is the one that is meant."""
        async with self.bench() as b:
            parent = await b.create(queue="parent")
            first, second = (birth_of(b, parent, "child") for _ in range(2))
            claim = await b.claim_one(queues=["parent"])
            done = await b.committed(claim, births=(first,), release=False)
            child = await b.claim_one()
            retry = b.started("child", run_id=first.started.run_id, attempt=2, parent=first.started.parent)
            await b.committed(child, status=Status.FAILED, successor=Succession(started=retry))
            done = await b.committed(claim, births=(second,), wake=done.wake, release=False)
            [told] = [entry.event for entry in done.inbox]
            assert isinstance(told, events.ChildStarted)
            assert told.execution_id == retry.execution_id

    async def test_a_birth_that_is_repeated_changes_nothing(self) -> None:
        """The same run and attempt is there already, and counts, though it may have ended."""
        async with self.bench() as b:
            parent = await b.create(queue="parent")
            birth = birth_of(b, parent, "child")
            claim = await b.claim_one(queues=["parent"])
            done = await b.committed(claim, births=(birth,), release=False)
            await b.end(await b.claim_one())
            done = await b.committed(claim, births=(birth,), wake=done.wake, release=False)
            assert values(done.inbox) == ["child_started"]
            assert (await b.get("child")).status is Status.COMPLETED

    async def test_a_refused_commit_begins_no_child(self) -> None:
        """Whoever lost the lease has asked in vain."""
        async with self.bench() as b:
            parent = await b.create()
            stale = await b.claim_one()
            await b.pass_time(LEASE)
            fresh = await b.claim_one("second")
            births = (birth_of(b, parent, "child"),)
            assert isinstance(await b.commit(stale, births=births), r.Refused)
            assert isinstance(await b.commit(fresh, births=births, base_seq=9), r.Refused)
            assert await b.store.get("child") is None
            assert fresh.inbox == ()
            await b.committed(fresh)
            assert not await b.claim()

    async def test_a_child_may_be_put_off(self) -> None:
        """It waits like any other."""
        async with self.bench() as b:
            parent = await b.create(queue="parent")
            birth = birth_of(b, parent, "child", begins_at=b.clock.now() + HOUR)
            await b.committed(await b.claim_one(queues=["parent"]), births=(birth,))
            assert (await b.get("child")).status is Status.SCHEDULED
            assert not await b.claim()
            await b.pass_time(HOUR)
            await b.claim_one()

    async def test_a_child_of_a_tree_that_is_paused_is_born_paused(self) -> None:
        """With its own children; that of an instance that is paused alone is not."""
        for tree in (True, False):
            async with self.bench() as b:
                parent = await b.create(queue="parent")
                claim = await b.claim_one(queues=["parent"])
                await b.pause(tree=tree)
                await b.committed(claim, births=(birth_of(b, parent, "child"),))
                [copy] = await b.store.copies("child")
                assert copy.paused is (r.Pause.TREE if tree else None)
                assert len(await b.claim()) == int(not tree)

    async def test_a_child_wakes_whoever_waits_for_work(self) -> None:
        """Though its parent is held on."""
        async with self.bench() as b:
            parent = await b.create(queue="parent")
            claim = await b.claim_one(queues=["parent"])
            births = (birth_of(b, parent, "child"),)
            await b.committed(claim, births=births, release=False)
            assert await b.is_there(r.Work(worker="first", queues=("default",)))

    async def test_children_and_trees_are_listed(self) -> None:
        """Newest first, with whatever else is asked for; and page by page."""
        async with self.bench() as b:
            parent = await b.create()
            claim = await b.claim_one()
            births = [birth_of(b, parent, f"child-{n}", ref=n, tree_id=parent.tree_id) for n in range(5)]
            births.append(birth_of(b, parent, "detached", ref=9))
            await b.committed(claim, births=tuple(births))
            await b.create("stranger")
            children = await self._names(b, parent="order")
            assert children == ["detached", "child-4", "child-3", "child-2", "child-1", "child-0"]
            assert await self._names(b, tree_id=parent.tree_id) == [*children[1:], "order"]
            assert await self._names(b, parent="order", tree_id=parent.tree_id) == children[1:]
            await b.pause("child-2")
            assert await self._names(b, parent="order", status=Status.PAUSED) == ["child-2"]
            assert await self._names(b, tree_id=parent.tree_id, status=Status.PAUSED) == ["child-2"]
            assert await self._names(b, parent="nobody") == []
            assert await self._names(b, parent="order", limit=2) == children
            assert await self._names(b, tree_id=parent.tree_id, limit=2) == [*children[1:], "order"]

    async def _names(self, b: Bench, **fields: Any) -> list[str]:
        page = await b.store.list(r.Query(**fields))
        names = [instance.entity_id for instance in page.instances]
        return names if page.cursor is None else names + await self._names(b, **{**fields, "cursor": page.cursor})


def parent_of(instance: r.Instance, key: str = "key") -> events.Parent:
    """Return an instance as the parent of another."""
    return events.Parent(
        entity_id=instance.entity_id,
        run_id=instance.run_id,
        execution_id=instance.execution_id,
        location=Location((1, 2)),
        key=key,
    )


def birth_of(b: Bench, parent: r.Instance, entity_id: str, *, ref: int = 2, **fields: Any) -> Birth:
    """Return a child to be begun by an instance."""
    started = b.started(entity_id, parent=parent_of(parent), **fields)
    return Birth(
        started=started,
        created=events.ChildStarted(ref=ref, execution_id=started.execution_id),
        refused=events.ChildFailed(ref=ref, failure=events.Failure(type="AlreadyExists", message=entity_id)),
    )
