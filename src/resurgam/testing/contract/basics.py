"""The basic guarantees of a store: what is stored is returned, once, to the right caller."""

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.testing.contract.bench import QUEUE, UNKNOWN, Bench, OpensStores, ids, request, scheduled, values


class BasicCases(OpensStores):
    """Create, claim, commit, deliver, purge."""

    async def test_an_instance_can_be_created(self) -> None:
        """B01: an instance on the default queue is created as requested."""
        async with self.bench() as b:
            instance = await b.create("order")
            assert (instance.entity_id, instance.queue, instance.status) == ("order", QUEUE, Status.RUNNING)
            assert (instance.last_seq, instance.closed_at, instance.deactivated) == (1, None, False)
            assert await b.store.inspector.get("order") == instance

    async def test_an_id_that_is_in_use_is_refused(self) -> None:
        """B02: an id that has an open execution answers with that one, and nothing is created."""
        async with self.bench() as b:
            first = await b.create("order")
            [answer] = await b.store.create([r.Creation(started=b.started("order"))])
            assert answer == r.Exists(instance=first)
            assert len(await b.claim()) == 1

    async def test_identity_and_tags_come_back_in_the_first_claim(self) -> None:
        """B03: identity and tags are unchanged in the claim and in the log."""
        async with self.bench() as b:
            tags = {"customer": "Zoë", "a:b": "{c}", "": " "}
            started = b.started("order", tags=tags, generation=3, attempt=2, tree_id="tree", input=Raw(b'[1,{"a":[]}]'))
            await b.store.create([r.Creation(started=started)])
            claim = await b.claim_one()
            found = claim.instance
            assert found.tags == tags
            assert (found.execution_id, found.run_id, found.tree_id) == (started.execution_id, started.run_id, "tree")
            assert (found.generation, found.attempt, found.name) == (3, 2, "sell")
            assert found.created_at == started.at
            assert await b.store.read(found) == [started]
            assert claim.inbox == ()

    async def test_a_running_instance_is_not_purged(self) -> None:
        """B04: purging an open execution answers Unfinished and changes nothing."""
        async with self.bench() as b:
            instance = await b.create()
            assert await b.store.purge([instance]) == [r.Unfinished(status=Status.RUNNING)]
            assert await b.get() == instance
            await b.claim_one()

    async def test_an_unknown_execution_cannot_be_purged(self) -> None:
        """B05: purging an unknown execution answers Missing."""
        async with self.bench() as b:
            assert await b.store.purge([UNKNOWN]) == [r.Missing()]

    async def test_there_is_nothing_to_claim_in_an_empty_store(self) -> None:
        """B06: a claim on empty queues returns nothing, and a wait times out."""
        async with self.bench() as b:
            assert list(await b.claim(queues=[QUEUE, "other"])) == []
            assert not await b.is_there(r.Work(worker="first", queues=(QUEUE, "other")))

    async def test_a_claim_returns_the_instance_just_created(self) -> None:
        """B07: a new instance is claimed."""
        async with self.bench() as b:
            instance = await b.create()
            claim = await b.claim_one()
            assert claim.instance == instance

    async def test_an_instance_is_seen_in_its_own_queue_only(self) -> None:
        """B08: an instance is claimed in its own queue only, and names that queue."""
        async with self.bench() as b:
            await b.create("order", queue="custom")
            assert not await b.claim(queues=[QUEUE, "system"])
            assert not await b.is_there(r.Work(worker="first", queues=(QUEUE, "system")))
            assert (await b.claim_one(queues=["custom"])).instance.queue == "custom"

    async def test_a_leased_instance_is_not_handed_out_twice(self) -> None:
        """B09: while one worker holds it, no claim returns it."""
        async with self.bench() as b:
            await b.create()
            await b.claim_one("first")
            assert not await b.claim("second")
            assert not await b.claim("first")

    async def test_the_same_claim_commits_only_once(self) -> None:
        """B10: a second commit under a released lease is refused, and changes nothing."""
        async with self.bench() as b:
            instance = await b.create()
            claim = await b.claim_one()
            await b.end(claim)
            again = await b.commit(claim, events.WorkflowCompleted(seq=2), status=Status.COMPLETED)
            assert isinstance(again, r.Refused)
            assert isinstance(await b.commit(claim, base_seq=3, status=Status.COMPLETED), r.Refused)
            assert len(await b.store.inspector.history(instance)) == 3

    async def test_a_commit_appends_its_events_in_order(self) -> None:
        """B11: the log holds the committed events, in order, with all fields."""
        async with self.bench() as b:
            started = b.started("order", input=Raw(b'["\xc3\xa9",9007199254740993,[]]'))
            await b.store.create([r.Creation(started=started)])
            log: list[events.Event] = [
                scheduled(request(2)),
                events.TimerStarted(seq=3, at=5, location=Location((2, 0, 1), (4,)), command="Timer(0)", deadline=77),
                events.StateSet(seq=4, at=6, location=Location((3,)), command="State(0)", name="k", value=Raw(b"{}")),
            ]
            await b.committed(await b.claim_one(), *log)
            assert list(await b.store.read(started)) == [started, *log]
            assert list(await b.store.inspector.history(started)) == [started, *log]
            assert (await b.get()).last_seq == 4

    async def test_the_end_of_an_instance_is_visible(self) -> None:
        """B12: a terminal commit sets the status and the time of the end, and nothing is left to claim."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            await b.pass_time(1500)
            await b.end(claim)
            found = await b.get()
            assert (found.status, found.closed_at, found.deactivated) == (Status.COMPLETED, b.clock.now(), True)
            assert found.last_seq == 3
            assert not await b.claim()

    async def test_a_cancel_request_reaches_another_instance(self) -> None:
        """B13: a cancel request makes an idle instance ready and is its last entry; its identity is unchanged."""
        async with self.bench() as b:
            tree = (await b.create("parent")).tree_id
            child = await b.create("child", tree_id=tree, queue="children")
            await b.committed(await b.claim_one(queues=["children"]))
            await b.send_signals("child", "before")
            await self._ask_to_stop(b, "child", child.execution_id)
            claim = await b.claim_one(queues=["children"])
            assert values(claim.inbox) == ["before", "cancel_requested"]
            assert claim.instance.tree_id == tree
            assert (await b.claim_one()).inbox == ()

    async def test_a_signal_to_an_unknown_entity_is_missing(self) -> None:
        """B14: a signal to an unknown id answers Missing."""
        async with self.bench() as b:
            assert await b.send_signal("unknown", "x") == r.Missing()

    async def test_a_cancel_request_to_an_unknown_entity_is_missing(self) -> None:
        """B15: a cancel request to an unknown id or execution answers Missing."""
        async with self.bench() as b:
            stop = events.CancelRequested(reason="enough")
            answers = await b.store.deliver(
                [
                    r.Delivery(event=stop, entity_id="unknown"),
                    r.Delivery(event=stop, entity_id="unknown", execution_id="nothing"),
                ]
            )
            assert list(answers) == [r.Missing(), r.Missing()]

    async def test_a_cancel_request_is_the_last_of_the_inbox(self) -> None:
        """B16: a cancel request comes after earlier entries, with its reason."""
        async with self.bench() as b:
            await b.create("order")
            await b.send_signals("order", "one", "two")
            await self._ask_to_stop(b, "order")
            claim = await b.claim_one()
            assert values(claim.inbox) == ["one", "two", "cancel_requested"]
            last = claim.inbox[-1].event
            assert isinstance(last, events.CancelRequested)
            assert last.reason == "enough"

    async def test_there_is_no_activity_where_none_is_queued(self) -> None:
        """B17: a claim of activities returns nothing if none is queued, with or without instances."""
        async with self.bench() as b:
            await b.create()
            assert list(await b.tasks()) == []
            assert not await b.is_there(r.Work(worker="first", queues=(QUEUE,), instances=False))

    async def test_an_activity_is_seen_in_its_own_queue_only(self) -> None:
        """B18: an activity is claimed in its own queue, whatever the queue of its instance is."""
        async with self.bench() as b:
            instance = await b.create("order", queue="flows")
            await b.want(await b.claim_one(queues=["flows"]), request(2), request(3, "custom"))
            assert not await b.tasks(queues=["flows"])
            ordinary, custom = await b.task(), await b.task(queues=["custom"])
            assert (ordinary.request, custom.request) == (request(2), request(3, "custom"))
            assert ordinary.execution_id == custom.execution_id == instance.execution_id
            assert (ordinary.entity_id, ordinary.attempt, ordinary.deliveries) == ("order", 1, 0)

    async def test_a_result_wakes_the_instance_in_its_own_queue(self) -> None:
        """B19: a result from another queue makes the instance ready in its own, as the last entry of its inbox."""
        async with self.bench() as b:
            await b.wanting(2, queue="custom")
            task = await b.task(queues=["custom"])
            await b.send_signals("order", "before")
            assert await b.answer(task) == r.Accepted()
            assert not await b.claim(queues=["custom"])
            claim = await b.claim_one(queues=["wanting"])
            assert values(claim.inbox) == ["before", "activity_completed"]
            answer = claim.inbox[-1].event
            assert isinstance(answer, events.ActivityCompleted)
            assert (answer.ref, answer.result) == (2, Raw(b"7"))
            await b.committed(claim, consumed=ids(claim.inbox))

    async def test_the_log_can_be_read_from_any_point(self) -> None:
        """Reading after a seq returns the entries that follow; reading an unknown log returns nothing."""
        async with self.bench() as b:
            instance = await b.create()
            claim = await b.claim_one()
            log = [scheduled(request(seq)) for seq in (2, 3, 4)]
            await b.committed(claim, *log)
            for after in range(1, 6):
                assert list(await b.store.read(instance, after)) == log[after - 1 :]
            assert list(await b.store.read(UNKNOWN)) == []
            assert list(await b.store.inspector.history(UNKNOWN)) == []
            assert await b.store.inspector.get("unknown") is None

    async def _ask_to_stop(self, b: Bench, entity_id: str, execution_id: str | None = None) -> None:
        stop = events.CancelRequested(at=1, reason="enough")
        delivery = r.Delivery(event=stop, entity_id=entity_id, execution_id=execution_id)
        assert list(await b.store.deliver([delivery])) == [r.Delivered()]
