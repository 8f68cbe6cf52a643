"""Wake the calls of `Store.wait`.

A waiter holds the channels on which a change would be announced, then looks whether what it waits for is there. It looks
again when it is *touched*: by a message, by the notices of a call of this store, by time (the alarm at the next moment at
which something becomes claimable by itself), or because messages may have been missed.

A waiter for the end of an execution that this store leases is *near*: the end comes from a commit of this store, or by a
message to the owner of the lease. It holds no channel of its own and does not look, until the lease is gone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, assert_never

import msgspec

from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.redis import feed, queries, topics
from resurgam.store.redis.link import Link
from resurgam.store.redis.outlook import KINDS, Outlook
from resurgam.store.redis.subscriptions import Subscriptions
from resurgam.store.waiter import Waiter, WaiterTable, has_progressed, look_at
from resurgam.store.watches import FEED, key_of, log_key, query_key, topic_key

_ASSURANCE: Final = 10.0
"""Seconds between two looks that nothing asks for.

A cluster may lose a message between its servers, and no message tells of an outbox that a process on another host has left.
"""

_ids: Final = msgspec.msgpack.Decoder(list[str]).decode

_OUTLOOKS: Final = 100
"""The most pairs of a worker and its queues that a store remembers."""


class _InstanceWaiter(Waiter):
    """Waits for the progress of one execution."""

    watch: r.Closed | r.InboxChanged | r.LogGrown

    def __init__(self, watch: r.Closed | r.InboxChanged | r.LogGrown, link: Link) -> None:
        super().__init__(watch)
        self._link = link

    def _look(self) -> None:
        partition = self._link.partition_of(self.watch.entity_id)
        self._link.call(partition, "progress", [self.watch.execution_id], self._answered)

    def _answered(self, answer: Any) -> None:
        if answer is None or isinstance(answer, Exception):
            self._looked(True if answer is None else answer)  # a purged one ends every wait
            return
        last_seq, wake, status = answer
        closed = Status(status.decode()).terminal
        self._looked(has_progressed(self.watch, last_seq=last_seq, wake=wake, closed=closed))


class _AskingWaiter(Waiter):
    """Waits for what an asynchronous question answers."""

    def __init__(self, watch: r.Watch, question: Callable[[], Awaitable[bool]]) -> None:
        super().__init__(watch)
        self._question = question
        self._task: asyncio.Task[None] | None = None

    def close(self) -> None:
        """End the look under way."""
        super().close()
        if self._task is not None:
            self._task.cancel()

    def _look(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._ask(), name="redis look")

    async def _ask(self) -> None:
        try:
            answer: Any = await self._question()
        except StoreError as error:
            answer = error
        self._looked(answer)


class _WorkWaiter(Waiter):
    """Waits for work in some queues."""

    watch: r.Work

    def __init__(self, watch: r.Work, outlook: Outlook) -> None:
        super().__init__(watch)
        wanted = (watch.instances, watch.activities, watch.queries)
        self._kinds = [kind for kind, is_wanted in zip(KINDS, wanted, strict=True) if is_wanted]
        self.outlook = outlook

    def _look(self) -> None:
        self.outlook.look(self._kinds, self._looked)


class Watcher:
    """The waiters of one open store."""

    def __init__(self, link: Link, clock: Clock, leases: Callable[[str], bool] = lambda _: False) -> None:
        self._link = link
        self._clock = clock
        self._leases = leases
        self.waiters = WaiterTable()
        self._prefix = link.address.prefix
        self.subscriptions = Subscriptions(link, self._heard, self.look_at_all)
        self._outlooks: dict[tuple[str, tuple[str, ...]], Outlook] = {}
        self._assurance: asyncio.TimerHandle | None = None

    async def outlook(self, worker: str, queues: Sequence[str]) -> Outlook:
        """Return what is known about the work for a worker in some queues; from now on the store listens for more."""
        key = worker, tuple(queues)
        outlook = self._outlooks.get(key)
        if outlook is None:
            await self.subscriptions.hold(channels := self._channels(r.Work(worker=worker, queues=key[1])))
            if key in self._outlooks:  # another call was faster
                self.subscriptions.release(channels)
            else:
                self._forget_oldest()
                self._outlooks[key] = Outlook(
                    self._link, self._clock, worker, queues, self._more_work, self.subscriptions.hears
                )
                self._assure()
            outlook = self._outlooks[key]
        return outlook

    @property
    def outlooks(self) -> Iterable[Outlook]:
        """All that is known about work."""
        return self._outlooks.values()

    def _forget_oldest(self) -> None:
        """Keep the number of outlooks small: a store serves one worker, or a few."""
        if len(self._outlooks) >= _OUTLOOKS:
            key = next(iter(self._outlooks))
            self._outlooks.pop(key).close()
            self.subscriptions.release(self._channels(r.Work(worker=key[0], queues=key[1])))

    def _more_work(self, outlook: Outlook) -> None:
        for waiter in self.waiters.under(None):
            if isinstance(waiter, _WorkWaiter) and waiter.outlook is outlook:
                waiter.touch()

    async def wait(self, watch: r.Watch, until: int | None) -> bool:
        """Return True once the watch is fulfilled, False if the moment *until* comes first."""
        self._link.lifetime.check()
        waiter, key, channels = await self._waiter(watch), key_of(watch), self._channels(watch)
        waiter.only_once = until is not None and until <= self._clock.now()
        self.waiters.add(key, waiter)
        call_off = self._clock.call_at(until, waiter.end) if until is not None and not waiter.only_once else None
        held: Sequence[str] = ()
        try:
            waiter.near = not waiter.only_once and self._is_near(watch)
            if waiter.near:
                self._assure()
                if (there := await waiter.ended) is not None:
                    return there
                waiter.near, waiter.ended = False, asyncio.get_running_loop().create_future()
                waiter.only_once = until is not None and until <= self._clock.now()
            if not waiter.only_once:
                await self.subscriptions.hold(channels)
                held = channels
                self._assure()
            waiter.start()
            return bool(await waiter.ended)
        finally:
            waiter.close()
            self.waiters.remove(key, waiter)
            if call_off is not None:
                call_off()
            self.subscriptions.release(held)

    def note(self, partition: int, notices: Sequence[bytes]) -> None:
        """Touch the waiters that the notices of a call of this store concern."""
        if not self.waiters and not self._outlooks:
            return
        for kind, value in zip(notices[::2], notices[1::2], strict=True):
            if kind == b"due":
                for outlook in self._outlooks.values():
                    outlook.note_due(partition, int(value))
            elif kind == b"work":
                self._work_in(value.decode(), partition)
            elif kind != b"outbox":  # that is the driver's
                self._changed(kind.decode(), value.decode())

    def _is_near(self, watch: r.Watch) -> bool:
        """Whether an end comes from a commit of this store, or is told to the owner of the lease, who hears of it."""
        return isinstance(watch, r.Closed) and bool(self._outlooks) and self._leases(watch.execution_id)

    def look_at_all(self) -> None:
        """Have every waiter look: messages may have been missed."""
        for outlook in self._outlooks.values():
            outlook.forget()
        look_at(self.waiters.all)

    def close(self) -> None:
        """Fail the waiters, and end the subscriptions."""
        self.subscriptions.close()
        if self._assurance is not None:
            self._assurance.cancel()
        for outlook in self._outlooks.values():
            outlook.close()
        error = StoreError("the store was closed while this waited")
        for waiter in self.waiters.all:
            waiter.fail(error)

    # Waiters.

    async def _waiter(self, watch: r.Watch) -> Waiter:
        match watch:
            case r.Work():
                return _WorkWaiter(watch, await self.outlook(watch.worker, watch.queues))
            case r.Closed() | r.InboxChanged() | r.LogGrown():
                return _InstanceWaiter(watch, self._link)
            case r.QueryAnswered():
                return _AskingWaiter(watch, lambda: _not(queries.is_open(self._link, watch.query_id)))
            case r.Published():
                return _AskingWaiter(watch, lambda: topics.has_grown(self._link, watch))
            case r.FeedGrown():
                return _AskingWaiter(watch, lambda: feed.has_grown(self._link, watch))
            case _:
                assert_never(watch)

    def _assure(self) -> None:
        """Look at everything from time to time."""
        if self._assurance is None:

            def look() -> None:
                self._assurance = None
                if self.waiters or self._outlooks:
                    self.look_at_all()
                    self._assure()

            self._assurance = asyncio.get_running_loop().call_later(_ASSURANCE, look)

    # What has changed.

    def _channels(self, watch: r.Watch) -> Sequence[str]:
        """Return the channels on which others announce what a watch waits for."""
        match watch:
            case r.Work():
                names = [*(f"work:{queue}" for queue in watch.queues), f"owner:{self._link.owner}"]
            case r.InboxChanged():
                names = [f"owner:{self._link.owner}"]
            case r.Closed():
                names = [f"closed:{watch.execution_id}"]
            case r.LogGrown():
                names = ["log", f"closed:{watch.execution_id}"]
            case r.QueryAnswered():
                names = [f"query:{watch.query_id}"]
            case r.Published():
                names = [f"topic:{watch.topic}"]
            case r.FeedGrown():
                names = ["log"]
            case _:
                assert_never(watch)
        return [f"{self._prefix}{name}" for name in names]

    def _heard(self, channel: str, message: bytes) -> None:
        """Take a message; its channel says what has changed."""
        kind, _, name = channel.removeprefix(self._prefix).partition(":")
        if kind == "work":
            partition, _, moment = message.partition(b" ")
            if moment:
                for outlook in self._outlooks.values():
                    if name in outlook.queues:
                        outlook.note_due(int(partition), int(moment))
            else:
                self._work_in(name, int(partition))
        elif kind == "owner":
            event, _, execution_id = message.decode().partition(" ")
            self._changed(event, execution_id)
        elif kind == "log":
            self.waiters.touch(*map(log_key, _ids(message)), FEED)
        elif kind == "closed":
            # Soon: the answer to a commit of this store, which has the closing entry, may have arrived at the same moment.
            asyncio.get_running_loop().call_soon(self._changed, kind, name)
        else:
            self._changed(kind, name)

    def _work_in(self, queue: str, partition: int) -> None:
        for outlook in self._outlooks.values():
            if queue in outlook.queues:
                outlook.note_work(partition)

    def _changed(self, kind: str, name: str) -> None:
        match kind:
            case "closed":
                self.waiters.note_end(name)
            case "taken":
                self.waiters.note_lease_gone(name)
            case "inbox":
                self.waiters.touch(name)
            case "topic":
                self.waiters.touch(topic_key(name))
            case "query":
                self.waiters.touch(query_key(name))
            case _:
                pass  # not for waiters


async def _not(answer: Awaitable[bool]) -> bool:
    return not await answer
