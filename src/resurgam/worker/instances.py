"""Advances one claimed instance and commits what came of it, until nothing is left to do for it now."""

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
from resurgam.worker.held import Committer, HeldInstance
from resurgam.worker.tasks import PAUSE_AFTER_ERROR, Tasks, complain, pause
from resurgam.worker.watchdog import TickTooLong, Watchdog

logger = logging.getLogger("resurgam.worker")

_LONGEST_PAUSE: Final = 60.0
"""Seconds that a workflow whose code had to be interrupted is held back at most before it is handed out again."""


class InstanceRunner:
    """Advances instances, keeping the coroutines of the most recent ones alive in between."""

    def __init__(
        self,
        committer: Committer,
        brains: Mapping[str, Brain],
        *,
        tasks: Tasks,
        watchdog: Watchdog,
        cache: int,
    ) -> None:
        self._committer = committer
        self._store = committer.store
        self._clock = committer.clock
        self._leases = committer.leases
        self._hands = committer.hands
        self._brains = brains
        self._tasks = tasks
        self._watchdog = watchdog
        self._cache: OrderedDict[str, LiveInstance] = OrderedDict()
        self._cache_size = cache
        self._interruptions: Counter[str] = Counter()
        # Turns that only wait for an operation take no hands; *on_wait* is called when there is one more of them.
        self.waiting = 0
        self.on_wait: Callable[[], None] = lambda: None

    async def serve(self, turn: HeldInstance) -> None:
        """Advance a claimed instance until its lease is released. A failure here counts against the instance only."""
        instance = turn.claim.instance
        try:
            await self._serve(turn)
        except asyncio.CancelledError:
            # Lost, or the worker stops: then the lease stays listed, for `Worker.stop` to give back.
            await self._put_away(turn)
            raise
        except TickTooLong as error:
            logger.error("workflow %r (%s): %s", instance.name, instance.entity_id, error)  # noqa: TRY400 -- reported
            # Not at once: whoever is handed it again may be this worker, and its neighbours want to go on.
            await self._put_away(turn)
            self._interruptions[instance.execution_id] += 1
            times = self._interruptions[instance.execution_id]
            await pause(self._clock, min(_LONGEST_PAUSE, error.seconds * times))
            await self._give_back(turn, error)
        except WriteRejected as error:
            await self._reject(turn, error)
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is this instance's
            complain(f"advancing workflow {instance.name!r} ({instance.entity_id}) failed", error)
            await self._give_back(turn, error)
        finally:
            for running in turn.operations.values():
                running.cancel()
            self._committer.let_go(turn)
        self._leases.drop(turn.lease)

    def _this(self) -> "asyncio.Task[Any]":
        this = asyncio.current_task()
        assert this is not None
        return this

    async def forget_all(self) -> None:
        """Put every cached coroutine away."""
        while self._cache:
            _, live = self._cache.popitem()
            await self._close(live)

    async def _serve(self, turn: HeldInstance) -> None:
        instance = turn.claim.instance
        if instance.status.terminal:
            await self._record_late(turn)
            return
        try:
            turn.live = await self._load(turn)
        except NotFound as missing:
            # Nothing is wrong with the run, so nothing is written: another worker may know its workflow.
            logger.error("workflow %s is parked: %s", instance.entity_id, missing)  # noqa: TRY400 -- no traceback needed
            parked = Outcome(status=Status.DIVERGED, diagnosis=str(missing), wake_at=instance.wake_at)
            await self._committer.commit(turn, parked, release=True)
            return
        while await self._advance(turn, turn.live):
            pass

    async def _record_late(self, turn: HeldInstance) -> None:
        """Record what arrived for an instance after its end."""
        instance = turn.claim.instance
        try:
            brain = find_brain(self._brains, instance.kind)
        except NotFound as missing:
            logger.error("late results of workflow %s are not recorded: %s", instance.entity_id, missing)  # noqa: TRY400 -- no traceback needed
            # It cannot be parked, for its status is decided. Not at once: this worker would get it again.
            await pause(self._clock, PAUSE_AFTER_ERROR)
            await self._give_back(turn, missing)
            return
        log = await self._store.read(instance.execution_id)
        outcome = brain.record_late(log, turn.inbox, self._clock.now())
        await self._committer.commit(turn, outcome, release=True)

    async def _load(self, turn: HeldInstance) -> LiveInstance:
        """Return the live coroutine, if it stands where the store says; else build one from the log."""
        instance = turn.claim.instance
        cached = self._cache.pop(instance.execution_id, None)
        if cached is not None:
            if cached.last_seq == instance.last_seq and not cached.closed:
                return cached
            await self._close(cached)
        return await self._read(turn, turn.claim.log)

    async def _read(self, turn: HeldInstance, log: Sequence[events.Event] = (), **again: Any) -> LiveInstance:
        """Build the coroutine of an instance from its log."""
        instance = turn.claim.instance
        brain = find_brain(self._brains, instance.kind)
        recorded = log or await self._store.read(instance.execution_id)
        return brain.load(instance.name, recorded, signal_schemas=turn.signal_schemas, **again)

    async def _advance(self, turn: HeldInstance, live: LiveInstance) -> bool:
        """Advance once and commit; whether the instance is still in hand."""
        now = self._clock.now()
        # Taken out first: what comes while this waits for its call is for the next advance.
        inbox, turn.inbox = turn.inbox, []
        worker, watchdog = self._committer.worker, self._watchdog
        outcome = await run_outside_task(lambda: watchdog.run(live, live.advance, inbox, now, worker))
        consumed = set(outcome.consumed)
        turn.inbox[:0] = [
            entry for entry in inbox if entry.id is not None and entry.id not in consumed and not live.holds(entry)
        ]
        more = not live.paused and bool(turn.inbox or turn.attempts or live.wants_more())
        going_on = outcome.status is Status.RUNNING and (more or bool(turn.operations))
        if not await self._committer.commit(turn, outcome, release=not going_on):
            await self._put_away(turn)
            return outcome.strict and await self._again(turn, live.brought)
        if turn.attempts and not going_on and outcome.status is Status.RUNNING and not live.paused:
            # The commit has claimed activities, and so kept the lease.
            self._leases.keep(turn.lease, turn.call_off)
            going_on = True
        if not going_on:
            if outcome.status is Status.FAILED:
                live.log_failure()
            await self._keep(turn, live, outcome)
            return False
        await self._operate(turn, live)
        return True

    async def _again(self, turn: HeldInstance, brought: Sequence[Entry]) -> bool:
        """A commit was refused that must know of all that has come: advance from the log once more, with all of it.

        What this worker *brought* itself is told again; if the lease is lost, somebody else goes on.
        """
        # The whole inbox: what the execution that is thrown away had put aside for later is not told by anybody else.
        turn.wake, turn.inbox = 0, []
        if not await self._hear(turn):
            return False
        self._leases.keep(turn.lease, turn.call_off)
        turn.inbox[:0] = brought
        paused = turn.live is not None and turn.live.paused
        running = (*turn.operations, *(entry.event.ref or 0 for entry in brought))
        turn.live = await self._read(turn, paused=paused, running=running)
        return True

    async def _keep(self, turn: HeldInstance, live: LiveInstance, outcome: Outcome) -> None:
        """Keep the coroutine for the next claim, and put away the one that has waited longest."""
        if outcome.status is not Status.RUNNING or self._cache_size == 0:
            await self._put_away(turn)
            return
        # While the store answered, another turn of this instance may have been here already.
        replaced = self._cache.pop(turn.claim.instance.execution_id, None)
        if replaced is not None:
            await self._close(replaced)
        self._cache[turn.claim.instance.execution_id] = live
        while len(self._cache) > self._cache_size:
            _, oldest = self._cache.popitem(last=False)
            await self._close(oldest)

    async def _put_away(self, turn: HeldInstance) -> None:
        if turn.live is not None:
            await self._close(turn.live)

    async def _close(self, live: LiveInstance) -> None:
        """Put a coroutine away; its clean-up is the user's code, and may be stuck as any other."""
        try:
            await run_outside_task(lambda: self._watchdog.run(live, live.close))
        except TickTooLong as error:
            logger.error("putting workflow %s away: %s", live.started.entity_id, error)  # noqa: TRY400 -- reported

    async def _reject(self, turn: HeldInstance, error: WriteRejected) -> None:
        """Put an instance aside whose commit the store can never take.

        If the commit carried results of activities, these may be the reason: they are handed in by themselves, each
        accepted or rejected alone, and the instance is advanced once more without them in its commit.
        """
        if turn.results:
            await self._release(turn, Release(lease=turn.lease))
            return
        instance = turn.claim.instance
        reason = f"the store cannot take its commit: {error}"
        logger.error("workflow %r (%s) is put aside: %s", instance.name, instance.entity_id, reason)
        await self._release(turn, Release(lease=turn.lease, failed=reason, final=True))

    async def _give_back(self, turn: HeldInstance, error: Exception) -> None:
        """Release the lease of a turn that failed."""
        await self._release(turn, Release(lease=turn.lease, failed=repr(error)))

    async def _release(self, turn: HeldInstance, release: Release) -> None:
        """Release the lease of a turn that came to nothing; if the store fails too, it runs out by itself."""
        await self._put_away(turn)
        self._leases.drop(turn.lease)
        try:
            await self._store.release([release])
        except Exception as failed:  # noqa: BLE001 -- as above
            complain(f"the store failed; the lease of {turn.claim.instance.entity_id} will run out", failed)

    # Operations.

    async def _operate(self, turn: HeldInstance, live: LiveInstance) -> None:
        """Begin the side effects whose commands are committed now, and wait until there is something to deliver."""
        for ref in [ref for ref in turn.operations if not live.is_open(ref)]:
            turn.operations.pop(ref).cancel()
        for operation in live.take_operations():
            begun = self._begin(operation)
            if isinstance(begun, events.Event):
                turn.inbox.append(Entry(None, begun))
            else:
                running = self._tasks.spawn(self._finish(operation, begun), f"operation {operation.name}")
                turn.operations[operation.ref] = running
                running.add_done_callback(turn.ring)
                if inspect.iscoroutine(begun):
                    # Called off before its first step, it would complain of never having been awaited.
                    running.add_done_callback(partial(_close_coroutine, begun))
        if (turn.operations or turn.attempts) and not turn.inbox and not live.wants_more():
            await self._first_news(turn)

    def _begin(self, operation: Operation) -> events.Event | Awaitable[object]:
        """Call the function of an operation: what it gave, or what remains to be awaited."""
        try:
            value = operation.function(*operation.args)
        except BaseException as error:  # noqa: BLE001 -- whatever it raises, even SystemExit, is its answer
            reraise_ctrl_c(error)
            return operation.failed(error, self._clock.now())
        return value if inspect.isawaitable(value) else operation.completed(value, self._clock.now())

    async def _finish(self, operation: Operation, remaining: Awaitable[object]) -> events.Event:
        this = self._this()
        try:
            value = await remaining
        except BaseException as error:
            if this.cancelling():
                raise  # called off by the workflow, or by the end of its turn
            reraise_ctrl_c(error)
            return operation.failed(error, self._clock.now())
        return operation.completed(value, self._clock.now())

    async def _first_news(self, turn: HeldInstance) -> None:
        """Wait until an attempt or an operation has ended, something has come into the inbox, or a deadline has."""
        self.waiting += 1
        self.on_wait()
        if turn.news is None:
            watch = InboxChanged(execution_id=turn.claim.instance.execution_id, wake=turn.wake)
            turn.news = self._tasks.spawn(self._store.wait(watch, turn.wake_at), "news")
            turn.news.add_done_callback(turn.ring)
        try:
            await turn.rung()
        finally:
            self.waiting -= 1
        for ref, running in list(turn.operations.items()):
            if running.done():
                del turn.operations[ref]
                turn.inbox.append(Entry(None, running.result()))
        if turn.news is not None and turn.news.done():
            news, turn.news = turn.news, None
            news.result()  # a store that fails is an error of this turn, not news
            await self._hear(turn)

    async def _hear(self, turn: HeldInstance) -> bool:
        """Fetch what has come into the inbox; whether the instance is still this worker's."""
        try:
            [answer] = await self._store.extend([turn.lease])
        except StoreError as error:
            # The answer of an operation may be in hand; it goes into the next commit, with or without news.
            complain(f"the store failed at telling the news of {turn.claim.instance.entity_id}", error)
            return False
        if isinstance(answer, Extended):
            turn.hear(answer)
        return isinstance(answer, Extended)


def _close_coroutine(coroutine: Coroutine[Any, Any, object], _: object) -> None:
    coroutine.close()
