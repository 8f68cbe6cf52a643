"""The read side of a Redis store.

A list is merged from the lists of all partitions, which are read a slice at a time: no call looks at more than a few
hundred members of an index, however many instances there are.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain, product
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import BadCursor, StoreError
from resurgam.core.event import decode_event
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.redis.contents import decodable, decode_log, open_activity_of, promise_of
from resurgam.store.redis.link import Link
from resurgam.store.redis.parts import instance_of
from resurgam.store.redis.topics import messages_on
from resurgam.store.redis.url import parse

logger = logging.getLogger("resurgam.store")

_ENTRIES: Final = 1000
"""Entries of a log that one call returns at most."""

_NO_LOG: Final = -1
"""What the function says of an execution that is not there, or whose log is not."""

_TRIES: Final = 3
"""Readings in slices of a log that is forgotten from meanwhile; the next one is made in a single call."""

_SHARE: Final = 100
"""Instances that one call returns at most for a list."""

_SPARE: Final = 3
"""Instances that the first call of a list returns beyond its share of the page: the partitions do not have equally many."""

_MORE: Final = 4
"""Instances that the second call returns for a partition; each later one returns twice as many as the one before."""

_LISTS: Final = 64
"""ZSETs whose work is counted in one flight, so that others do not wait long for the server."""

_MOST: Final = "workflow"
"""The kind of most instances, which has no index; those of other kinds among them are left out one by one."""

_DEAD: Final = ("dead-instances", "dead-activities")
"""The lists of dead letters in each partition."""

_STATUSES: Final = [status.value for status in Status]
_WORK: Final = ("ready-", "parked-", "activities-")
"""The kinds of ZSETs with work that each queue has."""

_Position: TypeAlias = "Sequence[Any] | None"
"""A score and a member of an index; None is before the first one, or behind the last one."""

_Key: TypeAlias = tuple[int, str]


class RedisInspector:
    """Read instances, their logs and their open work; writes nothing."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def get(
        self, entity_id: str, run_id: str | None = None, *, execution_id: str | None = None
    ) -> r.Instance | None:
        """Return the newest execution of an entity, or the newest of a run, or the one with this id."""
        if not isinstance(entity_id, str):
            return None  # a client may ask for anything; no entity has such an id
        partition, newer = self._link.partition_of(entity_id), 0
        while newer is not None:
            newer, found = await self._link.ask(partition, "get_instance", [entity_id, run_id, execution_id, newer])
            if found is not None:
                return _seen(found)
        return None

    async def list(self, query: r.Query) -> r.Page:
        """Return a page of instances, newest first."""
        wanted = query.limit + 1
        indexes, first = _indexes_of(query), _first(query)

        def stream(partition: int) -> _Stream:
            async def ask(position: _Position, share: int) -> tuple[_Position, Iterable[tuple[_Key, r.Instance]]]:
                part = [indexes, position, query.since, query.kind, query.newest_only, share]
                following, rows = await self._link.ask(partition, "list_instances", part)
                return following, [((i.created_at, i.execution_id), i) for i in _listed(rows) if query.fits(i)]

            return _Stream(ask, first, self._share_of(wanted))

        found = await _merge([stream(partition) for partition in range(self._link.partitions)], wanted, first=max)
        page = tuple(found[: query.limit])
        return r.Page(instances=page, cursor=page[-1].cursor if len(found) > len(page) > 0 else None)

    async def ended(self, query: r.EndedQuery) -> Sequence[r.Instance]:
        """Return complete executions in the order in which they ended."""
        lists = _lists_of(query)

        def stream(partition: int) -> _Stream:
            async def ask(position: _Position, share: int) -> tuple[_Position, Iterable[tuple[_Key, r.Instance]]]:
                part = [lists, position, query.before, share]
                following, views = await self._link.ask(partition, "list_ended", part)
                found = (instance for view in views for instance in decodable(instance_of, view))
                return following, [((i.closed_at or 0, i.execution_id), i) for i in found]

            return _Stream(ask, query.after, self._share_of(query.limit))

        streams = [stream(partition) for partition in range(self._link.partitions)]
        return await _merge(streams, query.limit, first=min)

    async def dead_letters(self, cursor: str | None = None, limit: int = 100) -> r.Page:
        """Return executions that are dead letters, or have activities that are: partition by partition, as they became so."""
        lists = [*product(range(self._link.partitions), _DEAD)]
        number, position = (0, None) if cursor is None else _dead_cursor(cursor)
        while number < len(lists):
            partition, name = lists[number]
            following, rows = await self._link.ask(partition, "list_dead", [name, position, limit])
            position = position_of(following)
            number += position is None
            if rows and number < len(lists):
                after = msgspec.json.encode((number, position)).decode()
                return r.Page(instances=tuple(_listed(rows)), cursor=after)
            if rows:
                return r.Page(instances=tuple(_listed(rows)))
        return r.Page(instances=())

    def _share_of(self, wanted: int) -> int:
        """Return how many instances the first call for a page asks a partition for."""
        return min(_SHARE, wanted, -(-wanted // self._link.partitions) + _SPARE)

    async def history(
        self,
        execution: r.Addressed,
        last: int | None = None,
        *,
        forgotten: bool = False,
        after: int = 0,
        limit: int | None = None,
    ) -> Sequence[events.Event]:
        """Return the log of an execution, a page of it, or its last entries, of one moment."""
        part = _LogPart(
            forgotten=forgotten, backwards=last is not None, after=after, most=limit if last is None else last
        )
        for at_once in (*[_ENTRIES] * _TRIES, 2**31):
            rows = await self._read_log(execution, part, at_once)
            if rows is not None:
                return decode_log(rows, execution.execution_id)
        raise AssertionError("a log that is read in one call has one state")

    async def _read_log(
        self, execution: r.Addressed, wanted: "_LogPart", at_once: int
    ) -> Sequence[tuple[int, bytes]] | None:
        """Return entries as ``seq`` and body; None if others were forgotten between two calls."""
        link, partition = self._link, self._link.partition_of(execution.entity_id)
        backwards, forgotten, count = wanted.backwards, wanted.forgotten, wanted.most
        if count is not None and not forgotten:
            at_once = max(1, min(count, at_once))
        rows: list[tuple[int, bytes]] = []
        start = None if backwards else wanted.after + 1
        gone: int | None = None
        while True:
            part = [execution.entity_id, execution.execution_id, start, backwards, forgotten, at_once]
            gone_by_now, start, *flat = await link.ask(partition, "read_history", part)
            if gone not in (None, gone_by_now) and (not forgotten or gone_by_now == _NO_LOG):
                return None
            gone = gone_by_now
            rows += zip(flat[::2], flat[1::2], strict=True)
            if start is None or (count is not None and len(rows) >= count):
                break
        return rows[:count][::-1] if backwards else rows[:count]

    async def open_work(self, execution: r.Addressed) -> r.OpenWork | None:
        """Return the open work of an execution that its log does not show."""
        partition = self._link.partition_of(execution.entity_id)
        found = await self._link.ask(partition, "open_work", [execution.entity_id, execution.execution_id])
        if found is None:
            return None
        worker, leased_until, deliveries, activities, inbox = found
        return r.OpenWork(
            activities=tuple(activity for row in activities for activity in decodable(open_activity_of, row)),
            inbox=tuple(event for body in inbox for event in decodable(decode_event, body)),
            worker=None if leased_until is None else worker.decode(),
            leased_until=leased_until,
            deliveries=deliveries,
        )

    async def promise(self, to: r.Delivery) -> r.HeldPromise | None:
        """Return the promise that a delivery is addressed to."""
        link = self._link
        routed = to.promise_id is not None
        partition = link.partition_of_route(to.promise_id or "") if routed else link.partition_of(to.entity_id)
        if partition is None:
            return None
        part = [to.promise_id, to.entity_id, to.execution_id, to.promise]
        found = await link.ask(partition, "find_promise", part)
        return None if found is None else r.HeldPromise(promise=promise_of(found[0]), instance=_seen(found[1]))

    async def messages(self, topic: str, after: str | None = None) -> r.Messages:
        """Return the recent messages on a topic."""
        return await messages_on(self._link, topic, after)

    async def stats(self) -> r.Stats:
        """Return the counts, each partition's at its own moment."""
        partitions = await self._link.ask_all("count_instances", _STATUSES)
        statuses: Counter[str] = Counter()
        for counts, *_ in partitions:
            statuses.update(dict(zip(_STATUSES, counts, strict=True)))
        work: dict[str, r.QueueStats] = {
            queue.decode(): r.QueueStats() for *_, queues in partitions for queue in queues
        }
        lists = [
            (partition, kind, queue)
            for partition, (*_, queues) in enumerate(partitions)
            for kind, queue in (*product(_WORK, queues), ("timers", b""), ("by-status-paused", b""))
        ]
        for start in range(0, len(lists), _LISTS):
            counted = await asyncio.gather(*(self._count_work(*one) for one in lists[start : start + _LISTS]))
            for queue, stats in chain.from_iterable(counted):
                work[queue] = _sum(work.get(queue, r.QueueStats()), stats)
        return r.Stats(
            instances={status: count for status, count in statuses.items() if count},
            queues=dict(sorted(work.items())),
            dead_instances=sum(dead for _, dead, _, _ in partitions),
            dead_activities=sum(dead for _, _, dead, _ in partitions),
        )

    async def _count_work(self, partition: int, kind: str, queue: bytes) -> Sequence[tuple[str, r.QueueStats]]:
        """Return counts of queues in one ZSET of a partition."""
        found: list[tuple[str, r.QueueStats]] = []
        position: _Position = None
        while True:
            position, rows = await self._link.ask(
                partition, "count_work", [kind, queue.decode(), position_of(position)]
            )
            for name, instances, waiting, claimed in rows:
                counts = r.QueueStats(instances=instances, activities=waiting, claimed_activities=claimed)
                found.append((name.decode(), counts))
            if position is None:
                return found


class OpenRedisInspector(RedisInspector):
    """An inspector that was opened by itself. Its functions are a script that the server does not let write."""

    def __init__(self, url: str, clock: Clock) -> None:
        address = replace(parse(url), wait=0)
        super().__init__(Link(address, clock, name="inspector", lease=0, reads_only=True))

    async def close(self) -> None:
        """Close the connections."""
        await self._link.close()


class _LogPart(NamedTuple):
    """Which entries of a log are read: *most* limits them; from the end backwards, or after a ``seq``."""

    forgotten: bool
    backwards: bool
    after: int
    most: int | None


class _Stream:
    """The executions of one partition that fit a query, in order, read when they are needed.

    *ask* is given the position and how many to return, first *share*.
    """

    def __init__(
        self,
        ask: Callable[[_Position, int], Awaitable[tuple[_Position, Iterable[tuple[_Key, r.Instance]]]]],
        position: _Position,
        share: int,
    ) -> None:
        self.rows: deque[tuple[_Key, r.Instance]] = deque()
        self._ask = ask
        self._position = position
        self._share = share
        self._next_share = _MORE
        self._over = False

    async def fill(self) -> None:
        """Read on until there is an execution, or no more."""
        while not self.rows and not self._over:
            following, rows = await self._ask(position_of(self._position), self._share)
            self.rows.extend(rows)
            self._position, self._over = following, following is None
            if self.rows:
                self._share, self._next_share = self._next_share, min(_SHARE, 2 * self._next_share)


async def _merge(streams: Sequence[_Stream], limit: int, first: Callable[..., _Stream]) -> list[r.Instance]:
    """Return the first executions of all partitions; *first* chooses the stream that is next."""
    found: list[r.Instance] = []
    while len(found) < limit:
        await asyncio.gather(*(stream.fill() for stream in streams if not stream.rows))
        waiting = [stream for stream in streams if stream.rows]
        if not waiting:
            break
        found.append(first(waiting, key=lambda stream: stream.rows[0][0]).rows.popleft()[1])
    return found


def position_of(answer: _Position) -> _Position:
    """Return a position of an answer as it is sent again."""
    if answer is None:
        return None
    score, member = answer
    return [score, member.decode() if isinstance(member, bytes) else member]


def _indexes_of(query: r.Query) -> list[str]:
    """Return the names of the indexes that hold all instances which fit."""
    filters = (
        ("by-kind", query.kind if query.kind != _MOST else None),
        ("by-parent", query.parent),
        ("by-tree", query.tree_id),
        ("by-failure", query.failure),
        *_name_and_status(query.name, query.status),
        *(("by-tag", f"{name}={value}") for name, value in query.tags.items()),
    )
    return [f"{name}-{value}" for name, value in filters if value is not None] or ["created"]


def _name_and_status(name: str | None, status: Status | None) -> Sequence[tuple[str, str | None]]:
    """Return the kinds of indexes by name and status; both together have one of their own."""
    if name is not None and status is not None:
        return ((f"named-{status}", name),)
    return (("by-name", name), ("by-status", status))


def _lists_of(query: r.EndedQuery) -> list[str]:
    """Return the names of the lists that hold the complete executions which fit, and no others."""
    statuses = [status for status in Status if status.terminal and query.status in (None, status)]
    kind = "archived" if query.archived else "ended"
    if query.name is None:
        return [f"{kind}-{status}" for status in statuses]
    return [f"{kind}-named-{status}-{query.name}" for status in statuses]


def _dead_cursor(cursor: str) -> tuple[int, _Position]:
    """Return which list a page of dead letters begins in, and where."""
    try:
        return msgspec.json.decode(cursor, type=tuple[int, tuple[float, str] | None])
    except msgspec.DecodeError as error:
        raise BadCursor(f"cursor must be one that a list returned, got {cursor!r}") from error


def _first(query: r.Query) -> _Position:
    """Return the position before which a page begins: the cursor or *until*, whichever is earlier."""
    positions: list[_Key] = [] if query.until is None else [(query.until, "")]
    if query.cursor is not None:
        moment, _, execution_id = query.cursor.partition("-")
        if not (moment.isascii() and moment.isdigit()):
            raise StoreError(f"cursor must be one that a list returned, got {query.cursor!r}")
        positions.append((int(moment), execution_id))
    return min(positions, default=None)


def _listed(rows: Sequence[Any]) -> Iterable[r.Instance]:
    """Yield the instances of a page; log and leave out those that this version cannot decode."""
    for row in rows:
        try:
            yield _seen(row)
        except ValueError as error:
            logger.warning("an execution is not listed: %s (a newer version wrote it)", error)


def _seen(row: Sequence[Any]) -> r.Instance:
    view, letters = row
    instance = instance_of(view)
    return replace(instance, activity_dead_letters=tuple(map(bytes.decode, letters))) if letters else instance


def _sum(one: r.QueueStats, other: r.QueueStats) -> r.QueueStats:
    return r.QueueStats(
        instances=one.instances + other.instances,
        activities=one.activities + other.activities,
        claimed_activities=one.claimed_activities + other.claimed_activities,
    )
