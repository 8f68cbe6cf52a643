"""Advance claimed instances: load, advance, commit, run operations, until the lease is released."""

import asyncio
import inspect
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

from resurgam.core import event as events
from resurgam.core.brain import Brain, LiveInstance, find_brain
from resurgam.core.errors import NotFound, StoreError, WriteRejected
from resurgam.core.operation import Operation
from resurgam.core.outcome import Entry, Outcome
from resurgam.core.state import Status
from resurgam.runtime.loop.interrupts import reraise_ctrl_c
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.store.records import Extended, InboxChanged, Release
from resurgam.worker.commit import Committer
from resurgam.worker.held import HeldInstance
from resurgam.worker.tasks import RETRY_DELAY, Tasks, log_failure, sleep
from resurgam.worker.watchdog import TickTooLong, Watchdog

logger = logging.getLogger("resurgam.worker")

_LONGEST_DELAY: Final = 60.0
"""Seconds for which an instance whose code was interrupted is held back at most before it is offered again."""


class InstanceRunner:
    """Serves claimed instances, and keeps those that advanced last in memory for their next claim."""

    def __init__(
        self, committer: Committer, brains: Mapping[str, Brain], *, tasks: Tasks, watchdog: Watchdog, cache: int
    ) -> None:
        self._committer = committer
        self._store = committer.store
        self._clock = committer.clock
        self._leases = committer.leases
        self._brains = brains
        self._tasks = tasks
        self._watchdog = watchdog
        self._cache: OrderedDict[str, LiveInstance] = OrderedDict()
        self._cache_size = cache
        self._interruptions: Counter[str] = Counter()
        # Instances that only wait for an operation or an attempt do not count against the worker's limit; *on_wait* is
        # called whenever one more of them begins to wait.
        self.waiting = 0
        self.on_wait: Callable[[], None] = lambda: None

    async def serve(self, held: HeldInstance) -> None:
        """Advance a claimed instance until its lease is released. A failure counts against this instance only."""
        instance = held.claim.instance
        try:
            await self._serve(held)
        except asyncio.CancelledError:
            # The lease is lost, or the worker stops: then it stays listed, for `Worker.stop` to release.
            await self._evict(held)
            raise
        except TickTooLong as error:
            logger.error("workflow %r (%s): %s", instance.name, instance.entity_id, error)  # noqa: TRY400 -- reported
            # Not at once: this worker may get it again, and other instances would wait again.
            await self._evict(held)
            self._interruptions[instance.execution_id] += 1
            times = self._interruptions[instance.execution_id]
            await sleep(self._clock, min(_LONGEST_DELAY, error.seconds * times))
            await self._release_failed(held, error)
        except WriteRejected as error:
            await self._reject(held, error)
        except Exception as error:  # noqa: BLE001 -- any failure is this instance's own
            log_failure(f"advancing workflow {instance.name!r} ({instance.entity_id}) failed", error)
            await self._release_failed(held, error)
        finally:
            for running in held.operations.values():
                running.cancel()
            self._committer.release(held)
        self._leases.drop(held.lease)

    async def evict_all(self) -> None:
        """Close every cached instance."""
        while self._cache:
            _, live = self._cache.popitem()
            await self._close(live)

    async def _serve(self, held: HeldInstance) -> None:
        instance = held.claim.instance
        if instance.status.terminal:
            await self._record_late(held)
            return
        try:
            held.live = await self._load(held)
        except NotFound as missing:
            # Nothing is wrong with the run, so nothing is recorded: another worker may know what this one does not.
            logger.error("workflow %s is parked: %s", instance.entity_id, missing)  # noqa: TRY400 -- no traceback needed
            parked = Outcome(status=Status.DIVERGED, diagnosis=str(missing), wake_at=instance.wake_at)
            await self._committer.commit(held, parked, release=True)
            return
        while await self._advance(held, held.live):
            pass

    async def _record_late(self, held: HeldInstance) -> None:
        """Record what arrived for an instance after its end."""
        instance = held.claim.instance
        try:
            brain = find_brain(self._brains, instance.kind)
        except NotFound as missing:
            logger.error("late results of %s cannot be recorded: %s", instance.entity_id, missing)  # noqa: TRY400 -- as above
            # Its outcome is decided, so it cannot be parked. Not at once: this worker would get it again.
            await sleep(self._clock, RETRY_DELAY)
            await self._release_failed(held, missing)
            return
        log = await self._store.read(instance)
        outcome = brain.record_late(log, held.inbox, self._clock.now())
        await self._committer.commit(held, outcome, release=True)

    # Loading, caching and closing.

    async def _load(self, held: HeldInstance) -> LiveInstance:
        """Return the cached instance if it stands where the store's log ends; otherwise build it from the log."""
        instance = held.claim.instance
        cached = self._cache.pop(instance.execution_id, None)
        if cached is not None:
            if cached.last_seq == instance.last_seq and not cached.closed:
                return cached
            await self._close(cached)
        return await self._build(held, held.claim.log)

    async def _build(self, held: HeldInstance, log: Sequence[events.Event] = (), **state: Any) -> LiveInstance:
        """Build an instance from its log, which is read unless the claim brought it."""
        instance = held.claim.instance
        brain = find_brain(self._brains, instance.kind)
        recorded = log or await self._store.read(instance)
        return brain.load(instance.name, recorded, signal_schemas=held.signal_schemas, **state)

    async def _keep(self, held: HeldInstance, live: LiveInstance, outcome: Outcome) -> None:
        """Cache an instance for its next claim, and close the one that has waited longest."""
        if outcome.status is not Status.RUNNING or self._cache_size == 0:
            await self._evict(held)
            return
        # While the store answered, the next claim of this instance may have been served already.
        replaced = self._cache.pop(held.claim.instance.execution_id, None)
        if replaced is not None:
            await self._close(replaced)
        self._cache[held.claim.instance.execution_id] = live
        while len(self._cache) > self._cache_size:
            _, oldest = self._cache.popitem(last=False)
            await self._close(oldest)

    async def _evict(self, held: HeldInstance) -> None:
        if held.live is not None:
            await self._close(held.live)

    async def _close(self, live: LiveInstance) -> None:
        """Close an instance under watch: its clean-up is user code, and may not return."""
        try:
            await run_outside_task(lambda: self._watchdog.run(live, live.close))
        except TickTooLong as error:
            logger.error("evicting workflow %s: %s", live.started.entity_id, error)  # noqa: TRY400 -- reported

    # One advance and its commit.

    async def _advance(self, held: HeldInstance, live: LiveInstance) -> bool:
        """Advance once and commit; return whether the instance is still held."""
        now = self._clock.now()
        # Taken out first: what arrives while this waits is for the next advance.
        inbox, held.inbox = held.inbox, []
        worker, watchdog = self._committer.worker, self._watchdog
        outcome = await run_outside_task(lambda: watchdog.run(live, live.advance, inbox, now, worker))
        consumed = set(outcome.consumed)
        held.inbox[:0] = [
            entry for entry in inbox if entry.id is not None and entry.id not in consumed and not live.holds(entry)
        ]
        more = not live.paused and bool(held.inbox or held.attempts or live.wants_more())
        going_on = outcome.status is Status.RUNNING and (more or bool(held.operations))
        if not await self._committer.commit(held, outcome, release=not going_on):
            await self._evict(held)
            return outcome.strict and await self._reload(held, live.brought)
        if held.attempts and not going_on and outcome.status is Status.RUNNING and not live.paused:
            # The commit has claimed activities, and so kept the lease.
            self._leases.keep(held.lease, held.cancel)
            going_on = True
        if not going_on:
            if outcome.status is Status.FAILED:
                live.log_failure()
            await self._keep(held, live, outcome)
            return False
        await self._run_operations(held, live)
        return True

    async def _reload(self, held: HeldInstance, brought: Sequence[Entry]) -> bool:
        """Build an instance again whose strict commit was refused, with everything in its inbox.

        Results that this worker *brought* are delivered again. Return False if the lease is lost.
        """
        # The whole inbox: entries that the closed instance had kept in memory must come again.
        held.wake, held.inbox = 0, []
        if not await self._fetch_inbox(held):
            return False
        self._leases.keep(held.lease, held.cancel)
        held.inbox[:0] = brought
        paused = held.live is not None and held.live.paused
        running = (*held.operations, *(entry.event.ref or 0 for entry in brought))
        held.live = await self._build(held, paused=paused, running=running)
        return True

    # Releasing.

    async def _reject(self, held: HeldInstance, error: WriteRejected) -> None:
        """Dead-letter an instance whose commit the store can never write.

        If the commit carried results of activities, one of these may be the cause: each is handed in by itself,
        accepted or rejected alone, and the instance is advanced once more without them in its commit.
        """
        if held.results:
            await self._release(held, Release(lease=held.lease))
            return
        instance = held.claim.instance
        reason = f"the store cannot write its commit: {error}"
        logger.error("workflow %r (%s) is a dead letter: %s", instance.name, instance.entity_id, reason)
        await self._release(held, Release(lease=held.lease, failed=reason, final=True))

    async def _release_failed(self, held: HeldInstance, error: Exception) -> None:
        """Release an instance that could not be advanced; this counts as a failed delivery."""
        await self._release(held, Release(lease=held.lease, failed=repr(error)))

    async def _release(self, held: HeldInstance, release: Release) -> None:
        """Release an instance without a commit; if the store fails too, the lease expires by itself."""
        await self._evict(held)
        self._leases.drop(held.lease)
        try:
            await self._store.release([release])
        except Exception as failed:  # noqa: BLE001 -- as above
            log_failure(f"the store failed; the lease of {held.claim.instance.entity_id} will expire", failed)

    # Operations, and waiting for results.

    async def _run_operations(self, held: HeldInstance, live: LiveInstance) -> None:
        """Start the operations whose commands are committed now, and wait until there is something to deliver."""
        for ref in [ref for ref in held.operations if not live.is_open(ref)]:
            held.operations.pop(ref).cancel()
        for operation in live.take_operations():
            started = self._start(operation)
            if isinstance(started, events.Event):
                held.inbox.append(Entry(None, started))
            else:
                running = self._tasks.spawn(self._finish(operation, started), f"operation {operation.name}")
                held.operations[operation.ref] = running
                running.add_done_callback(held.notify)
                if inspect.iscoroutine(started):
                    # Cancelled before its first step, it would warn that it was never awaited.
                    running.add_done_callback(partial(_close_coroutine, started))
        if (held.operations or held.attempts) and not held.inbox and not live.wants_more():
            await self._wait_for_change(held)

    def _start(self, operation: Operation) -> events.Event | Awaitable[object]:
        """Call the function of an operation; return its answer, or what remains to be awaited."""
        try:
            value = operation.function(*operation.args)
        except BaseException as error:  # noqa: BLE001 -- any exception is its answer, even SystemExit
            reraise_ctrl_c(error)
            return operation.failed(error, self._clock.now())
        return value if inspect.isawaitable(value) else operation.completed(value, self._clock.now())

    async def _finish(self, operation: Operation, remaining: Awaitable[object]) -> events.Event:
        this = asyncio.current_task()
        assert this is not None
        try:
            value = await remaining
        except BaseException as error:
            if this.cancelling():
                raise  # cancelled by the workflow, or because the instance is released
            reraise_ctrl_c(error)
            return operation.failed(error, self._clock.now())
        return operation.completed(value, self._clock.now())

    async def _wait_for_change(self, held: HeldInstance) -> None:
        """Wait until an attempt or an operation ends, an entry arrives in the inbox, or a deadline passes."""
        self.waiting += 1
        self.on_wait()
        if held.watch is None:
            watch = InboxChanged(
                entity_id=held.claim.instance.entity_id, execution_id=held.claim.instance.execution_id, wake=held.wake
            )
            held.watch = self._tasks.spawn(self._store.wait(watch, held.wake_at), "inbox watch")
            held.watch.add_done_callback(held.notify)
        try:
            await held.wait_for_change()
        finally:
            self.waiting -= 1
        for ref, running in list(held.operations.items()):
            if running.done():
                del held.operations[ref]
                held.inbox.append(Entry(None, running.result()))
        if held.watch is not None and held.watch.done():
            watched, held.watch = held.watch, None
            watched.result()  # raises if the store failed
            await self._fetch_inbox(held)

    async def _fetch_inbox(self, held: HeldInstance) -> bool:
        """Fetch new inbox entries; return whether the lease is still held."""
        try:
            [answer] = await self._store.extend([held.lease])
        except StoreError as error:
            # The answer of an operation may be at hand; it goes into the next commit either way.
            log_failure(f"the store failed to return the inbox of {held.claim.instance.entity_id}", error)
            return False
        if isinstance(answer, Extended):
            held.receive(answer)
        return isinstance(answer, Extended)


def _close_coroutine(coroutine: Coroutine[Any, Any, object], _: object) -> None:
    coroutine.close()
