"""Remove ended runs by the rules of `store.retention_rules`, and terminate old dead letters, in small batches beside other work.

A pass over all names must step over the runs that a rule for their name keeps longer. They would be read again in every
pass. So the process remembers up to where everything is removed, kept for long or needed by another execution, and reads
from there on. It reads everything when it starts and once a day: an execution may become complete, or arrive from another
store, long after its end. A pass for each status could not replace this, because names have no end: stores find the
executions of a name, not those of all others.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Final, Protocol

import msgspec

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import CorruptHistory, NonRetryable
from resurgam.core.failure import capture
from resurgam.core.flow_event import CATALOG
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.store.retention import Purge, interval
from resurgam.store.retention_rules import Pass, Retain, dead_letter_age, plan
from resurgam.worker.tasks import log_failure, sleep

logger = logging.getLogger("resurgam.worker")

BATCH: Final = 25
"""Executions removed in one transaction: a few milliseconds for which other work waits."""

DELAY: Final = 0.05
"""The longest pause between two batches, in seconds."""

_SHORTEST_PAUSE: Final = 5
_REST: Final = 3
"""A pause is three times as long as the batch took, so that most of the time is left to other work, and at least so many
milliseconds. With longer pauses a busy store would be filled faster than it is emptied."""

_PAGE: Final = 500
"""Executions read at a time where most of them are stepped over."""

_FULL: Final = 86_400_000
"""Milliseconds after which a pass reads everything again."""

_REMEMBERED: Final = 10_000
"""Executions that are kept for others and looked at again in each pass without being listed. If there are more, a pass
reads everything."""

_OPEN: Final = (Status.RUNNING, Status.DIVERGED, Status.SCHEDULED)
"""The statuses of dead letters. A paused one is left: it waits for a person."""


class PeriodicTask(Protocol):
    """A task that retention runs periodically."""

    age: int

    async def run(self) -> None:
        """Do it once."""
        ...


class Retention(msgspec.Struct, frozen=True):
    """Applies the rules of retention until cancelled.

    With *archive_after* runs are archived at that age, in milliseconds. What a rule keeps longer is removed only once it is
    archived, however far behind the archiver is.
    """

    store: Store
    clock: Clock
    rules: Sequence[Retain]
    archive_after: int | None = None

    async def run(self) -> None:
        """Run each pass when it is due; if the store fails, the next one tries again."""
        tasks = self._tasks()
        due = [0] * len(tasks)
        while tasks:
            for number, task in enumerate(tasks):
                if due[number] <= self.clock.now():
                    every = interval(task.age)
                    await self._attempt(task, every)
                    due[number] = self.clock.now() + every
            await sleep(self.clock, max(0, min(due) - self.clock.now()) / 1000)

    def _tasks(self) -> Sequence[PeriodicTask]:
        found: list[PeriodicTask] = []
        dead = dead_letter_age(self.rules)
        if dead is not None:
            found.append(DeadLetters(self.store, self.clock, dead))
        for one in plan(self.rules):
            after = self.archive_after
            found.append(
                RetentionPass(self.store, self.clock, one, archived_only=after is not None and one.age > after)
            )
        return found

    async def _attempt(self, task: PeriodicTask, every: int) -> None:
        try:
            await task.run()
        except Exception as error:  # noqa: BLE001 -- logged; the loop must go on
            log_failure(f"removing ended runs failed; trying again in {timedelta(milliseconds=every)}", error)


class _Kept(msgspec.Struct):
    """Progress of a pass: everything up to *after* is done, apart from *needed*."""

    read_at: int | None = None
    after: tuple[int, str] | None = None
    needed: dict[str, r.Instance] = {}


class RetentionPass:
    """Removes the executions of a pass, those whose log is in the store and those whose log is in an archive.

    With *archived_only* it leaves the former.
    """

    def __init__(self, store: Store, clock: Clock, what: Pass, *, archived_only: bool = False) -> None:
        self.age = what.age
        self._store = store
        self._clock = clock
        self._pass = what
        self._kept = {False: _Kept(), True: _Kept()}
        self._kinds = (True,) if archived_only else (False, True)

    async def run(self) -> None:
        """Remove what has the age, unless another execution needs it."""
        removed = kept = 0
        try:
            for archived in self._kinds:
                async for gone, needed in self._batches(archived=archived):
                    removed, kept = removed + gone, kept + needed
        finally:
            if removed:
                logger.info("removed %d %s; %d are kept for executions that need them", removed, self._pass.text, kept)

    async def _batches(self, *, archived: bool) -> AsyncIterator[tuple[int, int]]:
        """Yield how many executions each batch has removed and kept."""
        now, what = self._clock.now(), self._pass
        query = r.EndedQuery(before=now - what.age, name=what.name, status=what.status, limit=BATCH, archived=archived)
        if not what.skipped:
            async for batch in Purge(self._store, query).batches():
                yield batch.removed, batch.kept
                now = await self._pause(now)
            return
        known = self._known(now, archived=archived)
        purge = Purge(self._store, msgspec.structs.replace(query, limit=_PAGE, after=known.after), skipped=what.skipped)
        async for batch in purge.batches(again=list(known.needed.values()), size=BATCH):
            for one in batch.gone:
                known.needed.pop(one, None)
            known.needed.update({one.execution_id: one for one in batch.needed})
            known.after = batch.last or known.after
            yield batch.removed, batch.kept
            now = await self._pause(now)

    async def _pause(self, since: int) -> int:
        """Pause after a batch that began at this moment; return when the next one begins."""
        took = self._clock.now() - since
        await sleep(self._clock, min(DELAY, max(_SHORTEST_PAUSE, _REST * took) / 1000))
        return self._clock.now()

    def _known(self, now: int, *, archived: bool) -> _Kept:
        known = self._kept[archived]
        if known.read_at is None or now - known.read_at >= _FULL or len(known.needed) > _REMEMBERED:
            known = self._kept[archived] = _Kept(read_at=now, needed={})
        return known


class DeadLetters:
    """Ends dead letters without progress for *age* milliseconds: terminates such runs, and fails such activities."""

    def __init__(self, store: Store, clock: Clock, age: int) -> None:
        self.age = age
        self._store = store
        self._clock = clock

    async def run(self) -> None:
        """Look at all of them, page by page."""
        cursor: str | None = None
        while True:
            page = await self._store.inspector.dead_letters(cursor)
            for one in page.instances:
                if one.dead_letter is not None and one.status in _OPEN and one.kind != CATALOG:
                    await self._end(one)
                elif one.activity_dead_letters and one.status is not Status.PAUSED:
                    await self._fail_activities(one)
            cursor = page.cursor
            if cursor is None:
                return
            await sleep(self._clock, DELAY)

    async def _fail_activities(self, holder: r.Instance) -> None:
        """Answer the dead activities of a run, which may be closed: it is complete only once they are answered."""
        work = await self._store.inspector.open_work(holder)
        for one in () if work is None else work.activities:
            if one.dead_letter is None or max(one.visible_at, one.heartbeat_at or 0) >= self._clock.now() - self.age:
                continue
            fresh = await self._store.inspector.open_work(holder)
            if fresh is None or not any(a.request.ref == one.request.ref and a.dead_letter for a in fresh.activities):
                continue  # it was revived or answered meanwhile
            age = timedelta(milliseconds=self.age)
            reason = f"it was a dead letter for more than {age}: {one.dead_letter}"
            failed = events.ActivityFailed(
                ref=one.request.ref, at=self._clock.now(), attempt=one.attempt, failure=capture(NonRetryable(reason))
            )
            # Epoch 0: no worker holds it, and the first answer to this attempt counts.
            await self._store.complete_activities(
                [r.ActivityResult(entity_id=holder.entity_id, execution_id=holder.execution_id, epoch=0, event=failed)]
            )
            logger.warning(
                "activity %r of %r (%s) has failed: %s", one.request.name, holder.name, holder.entity_id, reason
            )

    async def _end(self, letter: r.Instance) -> None:
        progress = await self._last_progress(letter)
        found = await self._store.inspector.get(letter.entity_id, execution_id=letter.execution_id)
        if progress is None or progress >= self._clock.now() - self.age or found is None:
            return
        if found.dead_letter is None or found.status not in _OPEN:
            return  # it was revived or paused meanwhile
        age = timedelta(milliseconds=self.age)
        reason = f"it was a dead letter without progress for more than {age}: {found.dead_letter}"
        ended = events.WorkflowTerminated(at=self._clock.now(), reason=reason)
        to = r.Delivery(event=ended, entity_id=letter.entity_id, execution_id=letter.execution_id)
        await self._store.deliver([to])
        logger.warning("workflow %r (%s) was terminated: %s", letter.name, letter.entity_id, reason)

    async def _last_progress(self, letter: r.Instance) -> int | None:
        """Return when a run last recorded an entry; None if its history cannot be decoded.

        Such a run is left: an older release may have met the entries of a newer one.
        """
        try:
            log = await self._store.inspector.history(letter, 1)
        except CorruptHistory:
            return None
        return log[-1].at if log else None
