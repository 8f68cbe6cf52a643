"""Receive the messages that workflows publish on a topic."""

from collections import deque
from types import TracebackType
from typing import Any, Self

from msgspec import Raw

from resurgam.client.access import ANY
from resurgam.store.protocol import Store
from resurgam.store.records import Published


class Subscription:
    """An async iterator over the values published on a topic.

    It starts with the first message published after ``async with``, or after the first step without one, and never
    ends. Delivery is at most once: a subscriber that does not read for longer than a minute misses messages.
    """

    def __init__(self, store: Store, topic: str) -> None:
        self._store = store
        self._topic = topic
        self._after: str | None = None
        self._unread: deque[Raw] = deque()

    async def __aenter__(self) -> Self:
        if self._after is None:
            self._after = (await self._store.inspector.messages(self._topic)).cursor
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        await self.__aenter__()
        assert self._after is not None
        while not self._unread:
            await self._store.wait(Published(topic=self._topic, after=self._after))
            messages = await self._store.inspector.messages(self._topic, self._after)
            self._after = messages.cursor
            self._unread.extend(messages.values)
        return ANY.decode(self._unread.popleft(), f"message on topic {self._topic!r}")
