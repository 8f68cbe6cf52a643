"""Hears what workflows publish on a topic, from the moment one begins to listen."""

from collections import deque
from types import TracebackType
from typing import Any, Self

from msgspec import Raw

from resurgam.client.access import ANY
from resurgam.store.protocol import Store
from resurgam.store.records import Publishing


class Subscription:
    """An async iterator over the values published on a topic.

    It begins with what is published after it was entered, by ``async with`` or by its first step; it does not end.
    Messages are heard at most once: who looks away for longer than a minute misses some.
    """

    def __init__(self, store: Store, topic: str) -> None:
        self._store = store
        self._topic = topic
        self._after: int | None = None
        self._unread: deque[Raw] = deque()

    async def __aenter__(self) -> Self:
        if self._after is None:
            self._after = (await self._store.messages(self._topic)).last
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
            await self._store.wait(Publishing(topic=self._topic, after=self._after))
            news = await self._store.messages(self._topic, self._after)
            self._after = news.last
            self._unread.extend(news.values)
        return ANY.decode(self._unread.popleft(), f"message on topic {self._topic!r}")
