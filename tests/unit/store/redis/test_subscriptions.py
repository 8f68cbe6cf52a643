"""Channels, by a connection that is played by the test."""

import asyncio

from resurgam.store.redis.subscriptions import Subscriptions


class Sent:
    """A connection that keeps what is sent."""

    def __init__(self):
        self.commands = []

    def send(self, commands, _):
        self.commands.append(commands.split(b"\r\n")[2])


async def test_a_hold_is_not_confirmed_by_the_answer_to_one_that_was_cancelled():
    """The channel is left between the two, and a message then would be missed."""
    subscriptions = Subscriptions(None, lambda *_: None, lambda: None)
    subscriptions._connection = connection = Sent()
    cancelled = asyncio.create_task(subscriptions.hold(["news"]))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    holding = asyncio.create_task(subscriptions.hold(["news"]))
    await asyncio.sleep(0)
    assert connection.commands == [b"SUBSCRIBE", b"UNSUBSCRIBE", b"SUBSCRIBE"]
    channel = subscriptions._channels["news"]
    subscriptions._pushed([b"subscribe", b"news", 1])
    assert not channel.confirmed.done()
    subscriptions._pushed([b"unsubscribe", b"news", 0])
    subscriptions._pushed([b"subscribe", b"news", 1])
    await holding
