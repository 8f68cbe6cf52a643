"""The read side of a Postgres store: one statement for each answer, which sees one moment."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from resurgam.core import event as events
from resurgam.core.clock import Clock, is_system
from resurgam.core.errors import StoreError
from resurgam.core.event import decode_event
from resurgam.store import records as r
from resurgam.store.lifetime import Lifetime
from resurgam.store.postgres import lists
from resurgam.store.postgres.connection import connect
from resurgam.store.postgres.errors import failed
from resurgam.store.postgres.migrate import migrations
from resurgam.store.postgres.opening import check_readable
from resurgam.store.postgres.rows import (
    by_ref,
    covered_by,
    decodable,
    decode_log,
    instance_of,
    open_activity_of,
    promise_of,
    requests_in,
    seen,
)
from resurgam.store.postgres.statements import statement
from resurgam.store.postgres.topics import is_text, messages_on
from resurgam.store.postgres.url import Address, parse

logger = logging.getLogger("resurgam.store")

_PROMISE: Final = 4
"""Columns of a promise before those of its execution."""


class Reads(Protocol):
    """Run the statements of `reads.sql`."""

    async def select(self, name: str, *arguments: object, **parts: str) -> Sequence[Any]:
        """Return the rows of a statement; *parts* are put where their names stand in braces."""
        ...


def moment_of(clock: Clock) -> Callable[[], int | None]:
    """Return a function that returns the moment of a clock; None stands for that of the server."""
    return (lambda: None) if is_system(clock) else clock.now


class PostgresInspector:
    """Read instances, their logs and their open work; writes nothing."""

    def __init__(self, reads: Reads, clock: Clock) -> None:
        self._reads = reads
        self._moment = moment_of(clock)

    async def _find(self, name: str, *arguments: object, **parts: str) -> Sequence[Any]:
        """Return the rows of a statement; none if it asks for a text that Postgres cannot hold."""
        if all(not isinstance(text, str) or is_text(text) for text in arguments):
            return await self._reads.select(name, *arguments, **parts)
        return []

    async def get(
        self, entity_id: str, run_id: str | None = None, *, execution_id: str | None = None
    ) -> r.Instance | None:
        """Return the newest execution of an entity, or the newest of a run, or the one with this id."""
        if not isinstance(entity_id, str):
            return None  # a client may ask for anything; no entity has such an id
        if execution_id is not None:
            rows = await self._find("execution", entity_id, run_id, execution_id)
        elif run_id is not None:
            rows = await self._find("newest_of_run", entity_id, run_id)
        else:
            rows = await self._find("newest", entity_id)
        return seen(rows[0]) if rows else None

    async def list(self, query: r.Query) -> r.Page:
        """Return a page of instances, newest first."""
        rows = await lists.listed(self._find, query)
        page = tuple(instance for row in rows[: query.limit] for instance in _listed(row))
        return r.Page(instances=page, cursor=page[-1].cursor if len(rows) > query.limit and page else None)

    async def ended(self, query: r.EndedQuery) -> Sequence[r.Instance]:
        """Return complete executions in the order in which they ended."""
        rows = await lists.ended(self._find, query)
        return [instance for row in rows for instance in decodable(instance_of, row)]

    async def dead_letters(self, cursor: str | None = None, limit: int = 100) -> r.Page:
        """Return executions that are dead letters, or have activities that are, in the order of their ids."""
        rows = await self._find("dead_letters", cursor or "", limit + 1)
        page = tuple(instance for row in rows[:limit] for instance in _listed(row))
        return r.Page(instances=page, cursor=rows[limit - 1][0] if len(rows) > limit else None)

    async def history(
        self,
        execution: r.Addressed,
        last: int | None = None,
        *,
        forgotten: bool = False,
        after: int = 0,
        limit: int | None = None,
    ) -> Sequence[events.Event]:
        """Return the log of an execution, a page of it, or its last entries."""
        execution_id = execution.execution_id
        if last is not None:
            rows = (await self._find("last_entries", execution_id, forgotten, last))[::-1]
        else:
            rows = await self._find("history", execution_id, forgotten, after, limit)
        return decode_log(rows, execution_id)

    async def open_work(self, execution: r.Addressed) -> r.OpenWork | None:
        """Return the open work of an execution that its log does not show."""
        rows = await self._find("open_work", execution.execution_id, execution.entity_id)
        if not rows:
            return None
        worker, leased_until, deliveries, activities, covered, scheduled, inbox = rows[0]
        holder = None if leased_until is None else worker
        covered_ones = [
            r.OpenActivity(**msgspec.structs.asdict(one), worker=holder, leased_until=leased_until)
            for one in covered_by(covered, scheduled)
        ]
        with_row = [one for row in activities or () for one in decodable(open_activity_of, row)]
        return r.OpenWork(
            activities=by_ref(with_row, covered_ones),
            inbox=tuple(event for body in inbox or () for event in decodable(decode_event, body)),
            worker=holder,
            leased_until=leased_until,
            deliveries=deliveries,
        )

    async def promise(self, to: r.Delivery) -> r.HeldPromise | None:
        """Return the promise that a delivery is addressed to."""
        if to.promise_id is not None:
            rows = await self._find("promise", to.promise_id)
        else:
            rows = await self._find("promise_named", to.entity_id, to.execution_id, to.promise)
        if not rows:
            return None
        return r.HeldPromise(promise=promise_of(rows[0][:_PROMISE]), instance=seen(rows[0][_PROMISE:]))

    async def messages(self, topic: str, after: str | None = None) -> r.Messages:
        """Return the recent messages on a topic."""
        return await messages_on(self._reads, topic, after)

    async def stats(self) -> r.Stats:
        """Return the counts, each kind at a moment of its own."""
        statuses = await self._reads.select("count_statuses")
        rows = await self._reads.select("count_work", self._moment())
        covered = await self._count_covered()
        work = {queue: (ready, waiting, claimed) for queue, ready, waiting, claimed, _, _ in rows}
        return r.Stats(
            instances=dict(tuple(row) for row in statuses),
            queues={
                queue: r.QueueStats(
                    instances=ready, activities=waiting, claimed_activities=claimed + covered.get(queue, 0)
                )
                for queue in sorted(work.keys() | covered.keys())
                for ready, waiting, claimed in [work.get(queue, (0, 0, 0))]
            },
            dead_instances=sum(row[4] for row in rows),
            dead_activities=sum(row[5] for row in rows),
        )

    async def _count_covered(self) -> Counter[str]:
        """Return the number of activities of each queue that leases on their instances cover."""
        counts: Counter[str] = Counter()
        for covered, refs in await self._reads.select("covered"):
            counts.update(request.queue for request in requests_in(covered) if request.ref not in (refs or ()))
        return counts


class OpenPostgresInspector(PostgresInspector):
    """An inspector that was opened by itself: one connection, which the server does not let write."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._reader = Reader(parse(url))
        super().__init__(self._reader, clock)

    async def close(self) -> None:
        """Close the connection."""
        await self._reader.close()


class Reader:
    """Run statements on a connection that may only read; it is made when it is needed."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Any = None
        self._checked = False
        self._turn = asyncio.Lock()
        self._lifetime = Lifetime()

    async def select(self, name: str, *arguments: object, **parts: str) -> Sequence[Any]:
        """Return the rows of a statement; a connection that was lost since the last one is made again."""
        text = statement(name, self._address.schema, **parts)
        async with self._turn:
            self._lifetime.check()
            kept = self._connection is not None and not self._connection.is_closed()
            try:
                return await self._fetch(text, arguments)
            except StoreError:
                raise
            except Exception as error:
                if not (kept and self._connection.is_closed()):
                    raise failed(self._address, name, error) from error
            try:
                return await self._fetch(text, arguments)
            except StoreError:
                raise
            except Exception as error:
                raise failed(self._address, name, error) from error

    async def _fetch(self, text: str, arguments: Sequence[object]) -> Sequence[Any]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._address, name="inspector")
            self._checked = False
        # With a pooler, a setting of the session would be one of others too.
        async with self._connection.transaction(readonly=True):
            if not self._checked:
                await check_readable(self._connection, self._address, len(migrations()))
                self._checked = True
            rows: list[Any] = await self._connection.fetch(text, *arguments)
            return rows

    async def close(self) -> None:
        """Close the connection."""
        self._lifetime.end()
        if self._connection is not None and not self._lifetime.forked:
            await self._connection.close()


def _listed(row: Sequence[Any]) -> Sequence[r.Instance]:
    """Return an instance of a page; log and leave out one that this version cannot decode."""
    try:
        return [seen(row)]
    except ValueError as error:
        logger.warning("execution %s is not listed: %s (a newer version wrote it)", row[0], error)
        return []
