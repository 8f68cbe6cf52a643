"""`ctx.map`: fan out over many items, a limited number at once, each identified by its key."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import Context as Variables
from contextvars import copy_context
from hashlib import blake2b
from typing import Any, TypeAlias, TypeVar

from resurgam.core.codec import codec_for
from resurgam.core.retry import is_whole
from resurgam.runtime.loop.scope import Scope, current
from resurgam.runtime.matching.recorder import Recorder

T = TypeVar("T")
Key: TypeAlias = Callable[[T], object] | None

_ANY = codec_for(Any)
_LONGEST_KEY = 64


class FanOut:
    """The items of one map, and their results so far."""

    def __init__(
        self,
        recorder: Recorder,
        scope: Scope,
        items: Iterable[Any],
        start_item: "Callable[[Any, str], asyncio.Future[Any]]",
        *,
        key: Key[Any],
        limit: int | None,
    ) -> None:
        if limit is not None and not is_whole(limit, 1):
            raise ValueError(f"limit must be None or a whole number, at least 1, got {limit!r}")
        self._items = list(items)
        self._keys = _keys(self._items, key)
        self._start_item = start_item
        self._limit = limit or len(self._items)
        self._results: list[Any] = [None] * len(self._items)
        self._members: dict[asyncio.Future[Any], int] = {}
        self._next = 0
        self._done = 0
        self._outcome: asyncio.Future[list[Any]] = recorder.loop.create_future()
        # Members are located below the map, also those that start when another one has ended.
        self._inside: Variables = copy_context()
        self._inside.run(current.set, scope)

    def start(self) -> "asyncio.Future[list[Any]]":
        """Start as many items as may run at once, and return the future of all results."""
        self._outcome.add_done_callback(self._cancel_members)
        if not self._items:
            self._outcome.set_result([])
        while self._next < min(self._limit, len(self._items)) and not self._outcome.done():
            self._inside.run(self._start_next)
        return self._outcome

    def _start_next(self) -> None:
        index, self._next = self._next, self._next + 1
        try:
            member = self._start_item(self._items[index], self._keys[index])
        except Exception as error:  # noqa: BLE001 -- an item that cannot be started has failed, like any other
            if not self._outcome.done():
                self._outcome.set_exception(error)
            return
        self._members[member] = index
        member.add_done_callback(self._member_done, context=self._inside)

    def _member_done(self, member: "asyncio.Future[Any]") -> None:
        index = self._members.pop(member)
        if self._outcome.done():
            if not member.cancelled():
                member.exception()  # mark it as retrieved: an earlier failure was reported
            return
        if member.cancelled():
            self._outcome.cancel()
        elif (error := member.exception()) is not None:
            self._outcome.set_exception(error)
        else:
            self._results[index] = member.result()
            self._done += 1
            if self._done == len(self._items):
                self._outcome.set_result(self._results)
            elif self._next < len(self._items):
                self._start_next()

    def _cancel_members(self, _: object) -> None:
        for member in list(self._members):
            member.cancel()


def _keys(items: list[Any], key: Key[Any]) -> list[str]:
    """Return the key of each item; equal items are distinguished by a number."""
    if key is not None:
        given = [_text(found) for found in map(key, items)]
        duplicate = next((name for name, number in Counter(given).items() if number > 1), None)
        if duplicate is not None:
            raise ValueError(f"ctx.map: two items have the key {duplicate!r}; keys must be unique")
        return given
    seen: Counter[str] = Counter()
    names = []
    for name in map(_json, items):
        seen[name] += 1
        # No JSON ends like this, so that a numbered key never equals the key of another item.
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def _text(key: object) -> str:
    return _short(key) if isinstance(key, str) else _json(key)


def _json(key: object) -> str:
    return _short(bytes(_ANY.encode(key, "the key of an item")).decode())


def _short(written: str) -> str:
    if len(written) <= _LONGEST_KEY:
        return written
    return blake2b(written.encode(), digest_size=16).hexdigest()
