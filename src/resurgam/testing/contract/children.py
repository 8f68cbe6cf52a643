"""Children: started by the commit that requests them, or not at all."""

from typing import Any

from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.outcome import ChildRequest, Message, Succession
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import HOUR, LEASE, Bench, OpensStores, by_ref, ids, values

ANSWER = Message(event=events.ChildCompleted(ref=0, child="{1, 2}", by="execution"), entity_id="unknown", kept=True)
"""What a child sends to its parent when it ends; here its parent is gone."""


class ChildCases(OpensStores):
    """`Outcome.children`, and the parent of a child."""

    async def test_a_child_is_begun_by_the_commit_and_its_parent_is_told(self) -> None:
        """The child is ready and knows its parent; the parent's inbox has the answer."""
        async with self.bench() as b:
            parent = await b.create()
            request = request_of(b, parent, "child")
            await b.committed(await b.claim_one(), children=(request,))
            claims = {claim.instance.entity_id: claim for claim in await b.claim()}
            assert claims["child"].instance == r.Instance.of(request.started)
            assert claims["child"].instance.parent == request.started.parent
            assert await b.store.read(request.started) == [request.started]
            assert [entry.event for entry in claims["order"].inbox] == [request.created]

    async def test_a_kept_lease_brings_the_answers_to_child_requests(self) -> None:
        """With the raised counter, so that no entry is delivered twice or missed."""
        async with self.bench() as b:
            parent = await b.create()
            claim = await b.claim_one()
            children = (request_of(b, parent, "one"), request_of(b, parent, "two", ref=3))
            done = await b.committed(claim, children=children, release=False)
            assert by_ref(done.inbox) == [request.created for request in children]
            again = await b.committed(claim, wake=done.wake, consumed=ids(done.inbox), release=False)
            assert again == r.Committed(wake=done.wake)

    async def test_an_id_that_is_taken_refuses_the_child(self) -> None:
        """The parent's inbox has the refusal, and the execution that uses the id is unchanged."""
        async with self.bench() as b:
            other = await b.create("child", queue="other")
            parent = await b.create()
            request = request_of(b, parent, "child")
            done = await b.committed(await b.claim_one(), children=(request,), release=False)
            assert [entry.event for entry in done.inbox] == [request.refused]
            assert await b.get("child") == other

    async def test_an_id_whose_execution_has_ended_can_be_had(self) -> None:
        """Also by the same call, in another attempt."""
        async with self.bench() as b:
            await b.ended("child")
            parent = await b.create()
            request = request_of(b, parent, "child")
            done = await b.committed(await b.claim_one(), children=(request,), release=False)
            assert [entry.event for entry in done.inbox] == [request.created]
            assert (await b.get("child")).execution_id == request.started.execution_id

    async def test_a_child_of_the_same_key_is_the_one_that_is_meant(self) -> None:
        """An earlier attempt of the parent started it: the later one gets its execution id, and starts none."""
        async with self.bench() as b:
            parent = await b.create()
            first, second = (request_of(b, parent, "child") for _ in range(2))
            claim = await b.claim_one()
            done = await b.committed(claim, children=(first,), release=False)
            done = await b.committed(claim, children=(second,), wake=done.wake, release=False)
            assert isinstance(second.created, events.ChildStarted)
            assert [entry.event for entry in done.inbox] == [first.created]
            assert len(await b.store.transfer.copies("child")) == 1

    async def test_a_retried_child_has_the_key_still(self) -> None:
        """The open attempt counts as the child."""
        async with self.bench() as b:
            parent = await b.create(queue="parent")
            first, second = (request_of(b, parent, "child") for _ in range(2))
            claim = await b.claim_one(queues=["parent"])
            done = await b.committed(claim, children=(first,), release=False)
            child = await b.claim_one()
            retry = b.started("child", run_id=first.started.run_id, attempt=2, parent=first.started.parent)
            await b.committed(child, status=Status.FAILED, successor=Succession(started=retry))
            done = await b.committed(claim, children=(second,), wake=done.wake, release=False)
            [told] = [entry.event for entry in done.inbox]
            assert isinstance(told, events.ChildStarted)
            assert told.execution_id == retry.execution_id

    async def test_a_repeated_child_request_changes_nothing(self) -> None:
        """An existing execution of the same run and attempt counts, even if it has ended."""
        async with self.bench() as b:
            parent = await b.create(queue="parent")
            request = request_of(b, parent, "child")
            claim = await b.claim_one(queues=["parent"])
            done = await b.committed(claim, children=(request,), release=False)
            await b.end(await b.claim_one())
            done = await b.committed(claim, children=(request,), wake=done.wake, release=False)
            assert values(done.inbox) == ["child_started"]
            assert (await b.get("child")).status is Status.COMPLETED

    async def test_a_child_that_ran_for_the_request_answers_with_its_end(self) -> None:
        """Another attempt of the parent requests the same run of the child: it is not started twice."""
        async with self.bench() as b:
            parent = await b.create(queue="parent")
            request = request_of(b, parent, "child")
            claim = await b.claim_one(queues=["parent"])
            done = await b.committed(claim, children=(request,), release=False)
            await b.end(await b.claim_one(), messages=(ANSWER,))
            done = await b.committed(claim, children=(request,), wake=done.wake, release=False)
            assert [entry.event for entry in done.inbox] == [request.created, ANSWER.event]
            assert len(await b.store.transfer.copies("child")) == 1

    async def test_the_last_execution_of_a_child_answers(self) -> None:
        """Its retries ran for the same call; before the last of them is closed there is no answer."""
        async with self.bench() as b:
            parent = await b.create(queue="parent")
            request = request_of(b, parent, "child")
            claim = await b.claim_one(queues=["parent"])
            done = await b.committed(claim, children=(request,), release=False)
            retry = b.started("child", run_id=request.started.run_id, attempt=2, parent=request.started.parent)
            await b.committed(await b.claim_one(), status=Status.FAILED, successor=Succession(started=retry))
            done = await b.committed(claim, children=(request,), wake=done.wake, release=False)
            assert [entry.event for entry in done.inbox] == [request.created]
            await b.end(await b.claim_one(), messages=(ANSWER,))
            done = await b.committed(claim, children=(request,), wake=done.wake, release=False)
            assert [entry.event for entry in done.inbox] == [request.created, ANSWER.event]

    async def test_a_child_whose_first_execution_is_purged_answers_all_the_same(self) -> None:
        """Its last generation says which run it began with."""
        async with self.bench() as b:
            parent = await b.create(queue="parent")
            request = request_of(b, parent, "child")
            claim = await b.claim_one(queues=["parent"])
            done = await b.committed(claim, children=(request,), release=False)
            following = b.started("child", generation=2, parent=request.started.parent)
            await b.committed(
                await b.claim_one(), status=Status.CONTINUED, deactivated=True, successor=Succession(started=following)
            )
            await b.end(await b.claim_one(), messages=(ANSWER,))
            await b.store.purge([request.started])
            done = await b.committed(claim, children=(request,), wake=done.wake, release=False)
            assert values(done.inbox) == ["child_started", "child_completed"]
            assert (await b.get("child")).execution_id == following.execution_id

    async def test_another_run_of_a_child_does_not_answer(self) -> None:
        """The parent gives up a failed child and requests another run: the old answer does not count."""
        async with self.bench() as b:
            parent = await b.create(queue="parent")
            first, second = (request_of(b, parent, "child") for _ in range(2))
            claim = await b.claim_one(queues=["parent"])
            done = await b.committed(claim, children=(first,), release=False)
            await b.end(await b.claim_one(), messages=(ANSWER,))
            done = await b.committed(claim, children=(second,), wake=done.wake, release=False)
            assert [entry.event for entry in done.inbox] == [second.created]
            assert (await b.get("child")).execution_id == second.started.execution_id

    async def test_the_answer_of_a_child_goes_with_its_purge(self) -> None:
        """It moves with copies: where they are adopted, it answers too."""
        async with self.bench() as b, self.bench() as other:
            parent = await b.create(queue="parent")
            request = request_of(b, parent, "child")
            claim = await b.claim_one(queues=["parent"])
            done = await b.committed(claim, children=(request,), release=False)
            await b.end(await b.claim_one(), messages=(ANSWER,))
            [copy] = await b.store.transfer.copies("child")
            assert copy.answer == ANSWER.event
            await other.store.transfer.adopt([r.Adoption(entity_id="child", copies=(copy,))])
            assert await other.store.transfer.copies("child") == [copy]
            await b.store.purge([request.started])
            done = await b.committed(claim, children=(request,), wake=done.wake, release=False)
            assert [entry.event for entry in done.inbox] == [request.created]

    async def test_a_refused_commit_begins_no_child(self) -> None:
        """A request under a lost lease has no effect."""
        async with self.bench() as b:
            parent = await b.create()
            stale = await b.claim_one()
            await b.pass_time(LEASE)
            fresh = await b.claim_one("second")
            children = (request_of(b, parent, "child"),)
            assert isinstance(await b.commit(stale, children=children), r.Refused)
            assert isinstance(await b.commit(fresh, children=children, base_seq=9), r.Refused)
            assert await b.store.inspector.get("child") is None
            assert fresh.inbox == ()
            await b.committed(fresh)
            assert not await b.claim()

    async def test_a_child_may_be_scheduled(self) -> None:
        """It waits for its start time."""
        async with self.bench() as b:
            parent = await b.create(queue="parent")
            request = request_of(b, parent, "child", begins_at=b.clock.now() + HOUR)
            await b.committed(await b.claim_one(queues=["parent"]), children=(request,))
            assert (await b.get("child")).status is Status.SCHEDULED
            assert not await b.claim()
            await b.pass_time(HOUR)
            await b.claim_one()

    async def test_a_child_of_a_tree_that_is_paused_starts_paused(self) -> None:
        """With its own children; a child of an instance that is paused alone is not."""
        for tree in (True, False):
            async with self.bench() as b:
                parent = await b.create(queue="parent")
                claim = await b.claim_one(queues=["parent"])
                await b.pause(tree=tree)
                await b.committed(claim, children=(request_of(b, parent, "child"),))
                [copy] = await b.store.transfer.copies("child")
                assert copy.paused is (r.Pause.TREE if tree else None)
                assert len(await b.claim()) == int(not tree)

    async def test_a_child_wakes_waiters_for_work(self) -> None:
        """Even while its parent is held."""
        async with self.bench() as b:
            parent = await b.create(queue="parent")
            claim = await b.claim_one(queues=["parent"])
            children = (request_of(b, parent, "child"),)
            await b.committed(claim, children=children, release=False)
            assert await b.is_there(r.Work(worker="first", queues=("default",)))

    async def test_children_and_trees_are_listed(self) -> None:
        """Newest first, with other filters, page by page."""
        async with self.bench() as b:
            parent = await b.create()
            claim = await b.claim_one()
            requests = [request_of(b, parent, f"child-{n}", ref=n, tree_id=parent.tree_id) for n in range(5)]
            requests.append(request_of(b, parent, "detached", ref=9))
            await b.committed(claim, children=tuple(requests))
            await b.create("stranger")
            named = await self._names(b, parent="order")
            assert named == ["detached", "child-4", "child-3", "child-2", "child-1", "child-0"]
            assert await self._names(b, tree_id=parent.tree_id) == [*named[1:], "order"]
            assert await self._names(b, parent="order", tree_id=parent.tree_id) == named[1:]
            await b.pause("child-2")
            assert await self._names(b, parent="order", status=Status.PAUSED) == ["child-2"]
            assert await self._names(b, tree_id=parent.tree_id, status=Status.PAUSED) == ["child-2"]
            assert await self._names(b, parent="unknown") == []
            assert await self._names(b, parent="order", limit=2) == named
            assert await self._names(b, tree_id=parent.tree_id, limit=2) == [*named[1:], "order"]

    async def _names(self, b: Bench, **fields: Any) -> list[str]:
        page = await b.store.inspector.list(r.Query(**fields))
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


def request_of(b: Bench, parent: r.Instance, entity_id: str, *, ref: int = 2, **fields: Any) -> ChildRequest:
    """Return a child request of an instance."""
    started = b.started(entity_id, **fields)
    started = replace(started, parent=replace(parent_of(parent), first_run=started.run_id))
    return ChildRequest(
        started=started,
        created=events.ChildStarted(ref=ref, execution_id=started.execution_id),
        refused=events.ChildFailed(ref=ref, failure=events.Failure(type="AlreadyExists", message=entity_id)),
    )
