"""Messages between instances, sent by a commit; and publications on topics, for subscribers."""

from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.outcome import Message, OpenPromise, Publication
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.rules import MESSAGES_KEPT
from resurgam.testing.contract.bench import HOUR, LEASE, Bench, OpensStores, by_ref, routed, signal, values
from resurgam.testing.contract.children import parent_of, request_of
from resurgam.testing.contract.promises import resolved

DELIVERED = events.SignalDelivered(ref=2)
ENDED = events.SignalDelivered(ref=2, first=False)
MISSING = events.SignalFailed(ref=2, failure=events.Failure(type="NotFound", message="no"))


class MessageCases(OpensStores):
    """`Outcome.messages` and `Outcome.publications`."""

    async def test_a_message_comes_into_the_inbox_of_another(self) -> None:
        """The target becomes ready; the sender gets the answer."""
        async with self.bench() as b:
            await b.create("target", queue="target")
            await b.committed(await b.claim_one(queues=["target"]))
            assert await self._send(b, message(signal("x"), "target")) == [DELIVERED]
            assert values((await b.claim_one(queues=["target"])).inbox) == ["x"]

    async def test_messages_are_answered_one_by_one(self) -> None:
        """Each target by itself: an undeliverable message holds up no other. No answer is sent that was not requested."""
        async with self.bench() as b:
            await b.ended("ended")
            await b.create("target", queue="target")
            news = await self._send(
                b,
                message(signal("one"), "unknown"),
                message(signal("two"), "target", ref=3),
                message(signal("three"), "ended", ref=4),
                Message(event=signal("four"), entity_id="target"),
                Message(event=signal("five"), entity_id="unknown"),
                Message(event=signal("six"), entity_id="ended"),
            )
            assert news == [MISSING, replace(DELIVERED, ref=3), replace(ENDED, ref=4)]
            assert values((await b.claim_one(queues=["target"])).inbox) == ["two", "four"]

    async def test_a_message_may_be_for_one_run_only(self) -> None:
        """Another run of the entity does not receive it."""
        async with self.bench() as b:
            target = await b.create("target", queue="target")
            news = await self._send(
                b,
                message(signal("x"), "target", run_id="another"),
                message(signal("y"), "target", run_id=target.run_id),
            )
            assert news == [ENDED, DELIVERED]
            assert values((await b.claim_one(queues=["target"])).inbox) == ["y"]

    async def test_a_message_may_be_for_the_child_of_one_call_only(self) -> None:
        """Another workflow with that id, or one without a parent, does not receive it."""
        async with self.bench() as b:
            sender = await b.create("sender", queue="sender")
            await b.create("child", queue="target", parent=parent_of(sender, "mine"))
            await b.create("orphan", queue="target")
            news = await self._send(
                b,
                message(signal("x"), "child", key="another's"),
                message(signal("y"), "child", key="mine"),
                message(signal("z"), "orphan", ref=3, key="mine"),
                claim=await b.claim_one(queues=["sender"]),
            )
            assert news == [ENDED, DELIVERED, replace(ENDED, ref=3)]
            claims = {claim.instance.entity_id: values(claim.inbox) for claim in await b.claim(queues=["target"])}
            assert claims == {"child": ["y"], "orphan": []}

    async def test_a_message_is_answered_only_as_its_sender_asks(self) -> None:
        """Without an entry for what has become of it the sender is told nothing, even if it gives one for another."""
        async with self.bench() as b:
            await b.create("sender")
            sent = (
                Message(event=resolved("1"), promise_id=routed("no", "sender"), ended=ENDED),
                Message(event=signal("x"), entity_id="no", ended=ENDED),
            )
            done = await b.committed(await b.claim_one(), messages=sent, release=False)
            assert done.inbox == ()

    async def test_a_message_to_oneself_arrives(self) -> None:
        """Before the answer to it; released, the sender is ready again."""
        async with self.bench() as b:
            await b.create("sender")
            claim = await b.claim_one()
            await b.committed(claim, messages=(message(signal("x"), "sender"),))
            claim = await b.claim_one()
            assert values(claim.inbox) == ["x", "signal_delivered"]

    async def test_a_message_to_oneself_comes_with_a_kept_lease(self) -> None:
        """As a new entry, with the raised counter."""
        async with self.bench() as b:
            await b.create("sender")
            claim = await b.claim_one()
            silent = Message(event=signal("y"), entity_id="sender")
            done = await b.committed(claim, messages=(message(signal("x"), "sender"), silent), release=False)
            assert values(done.inbox) == ["x", "signal_delivered", "y"]
            again = await b.committed(claim, wake=done.wake)
            assert again.inbox == ()
            assert not await b.claim()

    async def test_an_instance_that_closes_can_send_but_receives_nothing(self) -> None:
        """The last commit of a child notifies its parent; its own inbox accepts nothing from outside."""
        async with self.bench() as b:
            await b.create("target", queue="target")
            await b.create("sender")
            ending = (message(signal("x"), "target"), message(signal("y"), "sender", ref=3))
            await b.committed(await b.claim_one(), status=Status.COMPLETED, messages=ending)
            claim = await b.claim_one()
            assert by_ref(claim.inbox) == [DELIVERED, replace(ENDED, ref=3)]
            assert values((await b.claim_one(queues=["target"])).inbox) == ["x"]

    async def test_a_message_does_all_that_a_delivery_does(self) -> None:
        """It terminates, pauses, resumes, begins, and cancels a delayed execution."""
        async with self.bench() as b:
            for name in ("killed", "halted", "freed"):
                await b.create(name, queue="target")
            for name in ("begun", "cancelled"):
                await b.create(name, queue="target", deferred=True)
            await b.pause("freed")
            news = await self._send(
                b,
                message(events.WorkflowTerminated(), "killed"),
                message(events.WorkflowPaused(tree=True), "halted"),
                message(events.WorkflowResumed(), "freed"),
                message(events.WorkflowBegun(), "begun"),
                message(events.CancelRequested(), "cancelled"),
            )
            assert news == [DELIVERED] * 5
            claims = {claim.instance.entity_id: claim for claim in await b.claim(queues=["target"])}
            assert sorted(claims) == ["begun", "cancelled", "freed", "killed"]
            assert claims["killed"].instance.status is Status.TERMINATED
            assert (await b.get("halted")).status is Status.PAUSED

    async def test_an_instance_can_end_itself_by_a_message(self) -> None:
        """The rest of the commit counts; its lease is lost."""
        async with self.bench() as b:
            instance = await b.create("sender")
            claim = await b.claim_one()
            await b.committed(claim, messages=(message(events.WorkflowTerminated(), "sender"),), release=False)
            assert (await b.get("sender")).status is Status.TERMINATED
            assert isinstance(await b.extend(claim), r.Refused)
            assert isinstance(await b.commit(claim), r.Refused)
            assert [entry.type for entry in await b.store.read(instance)][-1] == "workflow_terminated"
            await b.claim_one()

    async def test_a_message_settles_a_promise_once(self) -> None:
        """By its id alone; a second one is answered as late, and one for an unknown id as missing."""
        async with self.bench() as b:
            await b.create("target", queue="target")
            promise_id = routed("p-1", "target")
            opened = (OpenPromise(promise_id, "approval"),)
            await b.committed(await b.claim_one(queues=["target"]), promises=opened)
            news = await self._send(
                b,
                message(resolved("1"), "", promise_id=promise_id),
                message(resolved("2"), "", promise_id=promise_id),
                message(resolved("3"), "", ref=3, promise_id=routed("no", "unknown")),
                message(resolved("4"), "", ref=4, promise_id="no"),
            )
            assert news == [DELIVERED, ENDED, replace(MISSING, ref=3), replace(MISSING, ref=4)]
            claim = await b.claim_one(queues=["target"])
            assert [entry.event for entry in claim.inbox] == [resolved("1", promise_id)]

    async def test_an_instance_can_settle_a_promise_that_it_makes_in_the_same_commit(self) -> None:
        """Promises are made before messages are sent."""
        async with self.bench() as b:
            await b.create("sender")
            promise_id = routed("p-1", "sender")
            done = await b.committed(
                await b.claim_one(),
                promises=(OpenPromise(promise_id, "own"),),
                messages=(message(resolved("1"), "", promise_id=promise_id),),
                release=False,
            )
            assert values(done.inbox) == ["promise_resolved", "signal_delivered"]

    async def test_a_message_reaches_a_child_of_the_same_commit(self) -> None:
        """Children are started before messages are sent."""
        async with self.bench() as b:
            parent = await b.create("sender", queue="sender")
            claim = await b.claim_one(queues=["sender"])
            request = request_of(b, parent, "child")
            await b.committed(claim, children=(request,), messages=(message(signal("x"), "child", key="key"),))
            assert values((await b.claim_one()).inbox) == ["x"]
            told = await b.claim_one(queues=["sender"])
            assert values(told.inbox) == ["child_started", "signal_delivered"]

    async def test_a_refused_commit_sends_nothing(self) -> None:
        """Neither to others nor to itself nor to a topic."""
        async with self.bench() as b:
            await b.create("target", queue="target")
            await b.create("sender")
            stale = await b.claim_one()
            await b.pass_time(LEASE)
            fresh = await b.claim_one("second")
            sent = (message(signal("x"), "target"), message(events.WorkflowTerminated(), "target"))
            news = (Publication("prices", Raw(b"1")),)
            assert isinstance(await b.commit(stale, messages=sent, publications=news), r.Refused)
            assert (await b.claim_one(queues=["target"])).inbox == ()
            assert (await b.store.inspector.messages("prices", "")).values == ()
            await b.committed(fresh)
            assert not await b.claim()

    async def test_a_strict_commit_is_refused_if_there_is_news(self) -> None:
        """As a whole; the lease is kept, and without new entries the commit is accepted."""
        for release in (True, False):
            async with self.bench() as b:
                await b.create("target", queue="target")
                await b.create("sender")
                claim = await b.claim_one()
                await b.send_signals("sender", "x")
                sent = (message(signal("y"), "target"),)
                await b.deliver(events.ChildCompleted(ref=0, at=1, child="{1}"), "sender")
                refused = await b.commit(claim, strict=True, messages=sent, release=release)
                assert refused == r.Refused(reason=r.INBOX_CHANGED)
                assert (await b.claim_one(queues=["target"])).inbox == ()
                extended = await b.extend(claim)
                assert isinstance(extended, r.Extended)
                assert values(extended.inbox) == ["x", "child_completed"]
                await b.committed(claim, strict=True, messages=sent, wake=extended.wake, release=release)

    async def test_a_strict_commit_is_not_held_up_by_signals(self) -> None:
        """However many arrive: they are entries like any other."""
        async with self.bench() as b:
            await b.create()
            claim = await b.claim_one()
            await b.send_signals("order", "x", "y")
            await b.committed(claim, strict=True)
            assert values((await b.claim_one()).inbox) == ["x", "y"]

    async def test_a_strict_commit_of_a_stranger_is_refused_for_another_reason(self) -> None:
        """The answer must not suggest that it can be retried."""
        async with self.bench() as b:
            await b.create()
            stale = await b.claim_one()
            await b.deliver(events.ChildCompleted(ref=0, at=1, child="{1}"))
            await b.pass_time(LEASE)
            await b.claim_one("second")
            refused = await b.commit(stale, strict=True)
            assert isinstance(refused, r.Refused)
            assert refused.reason != r.INBOX_CHANGED

    # Topics.

    async def test_a_subscriber_reads_what_was_published_since(self) -> None:
        """In order, of that topic alone; each message once, also if the cursor is from a read that found nothing."""
        async with self.bench() as b:
            begin = await b.store.inspector.messages("prices")
            assert begin.values == ()
            await self._publish(b, ("prices", "1"), ("weather", '"sun"'), ("prices", "2"))
            news = await b.store.inspector.messages("prices", begin.cursor)
            assert news.values == (Raw(b"1"), Raw(b"2"))
            nothing = await b.store.inspector.messages("prices", news.cursor)
            assert nothing.values == ()
            await self._publish(b, ("weather", '"rain"'), ("prices", "3"))
            assert (await b.store.inspector.messages("prices", nothing.cursor)).values == (Raw(b"3"),)

    async def test_a_subscriber_that_begins_now_reads_nothing_older(self) -> None:
        """The cursor without messages is after everything that is there; the empty one is before it."""
        async with self.bench() as b:
            await self._publish(b, ("prices", "1"))
            begin = await b.store.inspector.messages("prices")
            assert begin.values == ()
            await self._publish(b, ("prices", "2"))
            assert (await b.store.inspector.messages("prices", begin.cursor)).values == (Raw(b"2"),)
            assert (await b.store.inspector.messages("prices", "")).values == (Raw(b"1"), Raw(b"2"))

    async def test_a_waiter_for_a_topic_is_woken_by_it_alone(self) -> None:
        """By messages after its cursor."""
        async with self.bench() as b:
            await self._publish(b, ("prices", "1"))
            watch = r.Published(topic="prices", after=(await b.store.inspector.messages("prices")).cursor)
            assert await b.is_there(r.Published(topic="prices", after=""))
            assert not await b.is_there(watch)
            await self._publish(b, ("weather", "1"))
            assert not await b.is_there(watch)
            await self._publish(b, ("prices", "2"))
            assert await b.is_there(watch)

    async def test_messages_are_kept_for_a_minute(self) -> None:
        """A message that is published later takes the old ones of its topic away; cursors stay valid."""
        async with self.bench() as b:
            await self._publish(b, ("prices", "1"))
            first = (await b.store.inspector.messages("prices")).cursor
            await b.pass_time(MESSAGES_KEPT)
            await self._publish(b, ("prices", "2"))
            assert (await b.store.inspector.messages("prices", "")).values == (Raw(b"1"), Raw(b"2"))
            await b.pass_time(1)
            await self._publish(b, ("prices", "3"))
            assert (await b.store.inspector.messages("prices", "")).values == (Raw(b"2"), Raw(b"3"))
            await b.pass_time(HOUR)
            await self._publish(b, ("prices", "4"))
            for cursor in ("", first):
                assert (await b.store.inspector.messages("prices", cursor)).values == (Raw(b"4"),)

    async def _publish(self, b: Bench, *news: tuple[str, str]) -> None:
        await b.create("publisher", queue="publisher")
        claim = await b.claim_one(queues=["publisher"])
        published = tuple(Publication(topic, Raw(value.encode())) for topic, value in news)
        await b.end(claim, publications=published)

    async def _send(self, b: Bench, *messages: Message, claim: r.Claim | None = None) -> list[events.Event]:
        """Send messages from a new instance; return the answers in its inbox, by their ``ref``."""
        if claim is None:
            await b.create("sender", queue="sender")
            claim = await b.claim_one(queues=["sender"])
        done = await b.committed(claim, messages=messages, release=False)
        assert not await b.claim(queues=["sender"])
        return by_ref(done.inbox)


def message(event: events.Event, entity_id: str, *, ref: int = 2, **fields: Any) -> Message:
    """Return a message whose sender receives an answer to *ref*."""
    answers = {"delivered": DELIVERED, "missing": MISSING, "ended": ENDED}
    told: dict[str, Any] = {name: replace(answer, ref=ref) for name, answer in answers.items()}
    return Message(event=event, entity_id=entity_id, **told, **fields)
