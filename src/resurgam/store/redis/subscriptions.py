"""Channels: one connection beside those for calls, on which messages arrive.

A channel is subscribed to as long as a holder needs it. `hold` returns once the server has confirmed, so that a look made
afterwards misses no change. After a lost connection every channel is subscribed to again, and messages may have been
missed: `on_renewed` is called.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from resurgam.core.errors import StoreError
from resurgam.store.redis.connection import Connection, ReplyError, connect, pack
from resurgam.store.redis.link import Link
from resurgam.store.redis.node import PATIENCE

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
"""Seconds between two attempts to connect again; each in vain doubles the pause."""

_PING: Final = 5.0
"""Seconds between two signs of life; a connection without an answer to one is given up at the next."""


_CONFIRM: Final = 1.0
"""Seconds without any confirmation, while there should be some, after which another server is tried."""


class _Channel:
    """A channel with holders, which *confirmed* tells that messages arrive."""

    def __init__(self) -> None:
        self.holders = 0
        self.confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Subscriptions:
    """The channels of one open store."""

    def __init__(self, link: Link, on_message: Callable[[str, bytes], None], on_renewed: Callable[[], None]) -> None:
        self._link = link
        self.on_message = on_message
        """Called with the channel and the content of each message."""

        self._on_renewed = on_renewed
        self._channels: dict[str, _Channel] = {}
        self._asked: Counter[str] = Counter()
        """The subscriptions to each channel that the server has not confirmed yet, those of former holders included."""

        self._confirming: asyncio.TimerHandle | None = None
        self._has_confirmed = False
        """Whether a confirmation has arrived since the server was last checked for some."""

        self._attempt = 0
        """The number of the next attempt to connect: each is made to another server."""

        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._ping: asyncio.TimerHandle | None = None
        self._unanswered = False
        self._closed = False
        self._misses = False
        """Whether messages are missed: a lost connection is not replaced yet."""

    def hears(self) -> bool:
        """Whether the messages on all channels arrive."""
        return not self._misses

    @property
    def channels(self) -> Collection[str]:
        """The channels that have holders."""
        return self._channels.keys()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, on which messages arrive."""
        return self._connection is not None

    async def hold(self, channels: Sequence[str]) -> None:
        """Subscribe to channels until `release`; return once messages on them arrive."""
        wanted = []
        for name in channels:
            channel = self._channels.get(name)
            if channel is None:
                channel = self._channels[name] = _Channel()
                self._subscribe(name)
            channel.holders += 1
            if not channel.confirmed.done():
                wanted.append(channel.confirmed)
        if self._connection is not None and not wanted:
            return
        try:
            async with asyncio.timeout(PATIENCE):
                if self._connection is None:
                    await self._connected()
                for confirmed in wanted:
                    await asyncio.shield(confirmed)
        except TimeoutError:
            self.release(channels)
            raise StoreError(f"{self._link.address}: no subscription was confirmed within {PATIENCE:g} s") from None
        except BaseException:
            self.release(channels)
            raise

    def release(self, channels: Sequence[str]) -> None:
        """Unsubscribe from channels that no other holder needs."""
        for name in channels:
            channel = self._channels[name]
            channel.holders -= 1
            if channel.holders == 0:
                del self._channels[name]
                channel.confirmed.cancel()
                if self._connection is not None:
                    self._connection.send(pack("UNSUBSCRIBE", name), ())

    def close(self) -> None:
        """End the connection."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._stop_timers()
        if self._connection is not None:
            self._connection.close()

    def _stop_timers(self) -> None:
        for timer in (self._ping, self._confirming):
            if timer is not None:
                timer.cancel()
        self._ping = self._confirming = None

    # The connection.

    def _subscribe(self, name: str) -> None:
        if self._connection is not None:
            self._asked[name] += 1
            self._connection.send(pack("SUBSCRIBE", name), ())
            if self._confirming is None:
                self._expect_confirmation()

    def _expect_confirmation(self) -> None:
        self._has_confirmed = False
        self._confirming = asyncio.get_running_loop().call_later(_CONFIRM, self._check_confirmation)

    def _check_confirmation(self) -> None:
        """Give up a connection on which no subscription is confirmed; another server may do so."""
        self._confirming = None
        if self._asked and self._connection is not None:
            if self._has_confirmed:
                self._expect_confirmation()
            else:
                self._connection.close("no subscription is confirmed")

    async def _connected(self) -> None:
        """Connect for the first time; callers share the attempt, and its error."""
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(), name="redis subscribe")
            self._connecting.add_done_callback(self._attempted)
        await asyncio.shield(self._connecting)

    def _attempted(self, task: "asyncio.Task[None]") -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # its waiters have it

    async def _connect(self) -> None:
        attempt, self._attempt = self._attempt, self._attempt + 1
        connection = await connect(self._link.address, await self._link.any_primary(attempt), self._pushed)
        if self._closed:
            connection.close()
            return
        connection.on_lost = self._lost
        connection.on_unasked = self._refused
        self._connection, self._unanswered = connection, False
        self._asked.clear()
        for name in self._channels:
            self._subscribe(name)
        self._keep_alive()

    def _lost(self) -> None:
        self._connection = None
        self._stop_timers()
        if self._closed:
            return
        self._misses = True
        for channel in self._channels.values():
            if channel.confirmed.done():
                channel.confirmed = asyncio.get_running_loop().create_future()
        self._connecting = asyncio.get_running_loop().create_task(self._renew(), name="redis subscribe again")
        self._connecting.add_done_callback(self._attempted)

    async def _renew(self) -> None:
        """Connect again and subscribe to all channels; then everything may have changed."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._connect()
            except StoreError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                break
        for confirmed in [channel.confirmed for channel in self._channels.values()]:
            await asyncio.wait({confirmed})  # one that was released meanwhile is cancelled
        self._misses = False
        self._on_renewed()

    def _keep_alive(self) -> None:
        """Give up a connection on which nothing arrives any more."""
        connection = self._connection
        if connection is None:
            return
        if self._unanswered:
            connection.close("no sign of life")
            return
        self._unanswered = True
        connection.send(pack("PING"), [self._lives])
        self._ping = asyncio.get_running_loop().call_later(_PING, self._keep_alive)

    def _lives(self, reply: Any) -> None:
        self._unanswered = False
        if isinstance(reply, ReplyError) and (self._asked or reply.code != "BUSY"):  # it may be that of a subscription
            self._refused(reply)

    # What arrives.

    def _pushed(self, push: list[Any]) -> None:
        kind, name, content = push[0], push[1], push[2]
        if kind == b"message":
            self.on_message(name.decode(), content)
        elif kind == b"subscribe":
            self._confirmed(name.decode())

    def _confirmed(self, name: str) -> None:
        """Tell the holders of a channel, once the last subscription to it is confirmed."""
        self._has_confirmed = True
        self._asked[name] -= 1
        if self._asked[name] > 0:
            return
        del self._asked[name]
        channel = self._channels.get(name)
        if channel is not None and not channel.confirmed.done():
            channel.confirmed.set_result(None)

    def _refused(self, error: Any) -> None:
        """Fail the holders that wait: the server does not let this user subscribe, unless it only cannot do so now."""
        if self._connection is None:
            return
        if isinstance(error, ReplyError) and error.code == "BUSY":
            self._connection.close(str(error))
            return
        self._asked.clear()  # which of them it was is not said
        text = f"{self._link.address}: the server refuses a subscription: {error}"
        for channel in self._channels.values():
            if not channel.confirmed.done():
                channel.confirmed.set_exception(StoreError(text))
                channel.confirmed.exception()  # a holder may have gone meanwhile
