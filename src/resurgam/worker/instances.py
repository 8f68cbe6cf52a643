"""Serve claimed instances by callbacks: advance, commit, start attempts, wait; until the lease is released.

A held instance has no task of its own. Each step begins in a callback: an attempt or an operation has ended, the store
has news, or a deadline has come. It advances the instance, hands the commit to the store, and returns; the store calls
back when the commit is durable. A task is made only for what takes time: reading a log, and coping with a failure.

Where a tick must not run inside a task (`runtime.loop.outside_task`), these callbacks belong to no task.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVarTuple

from resurgam.core import event as events
from resurgam.core.brain import Brain, LiveInstance, PreparedBrain, find_brain
from resurgam.core.errors import NotFound, StoreError, WriteRejected
from resurgam.core.lifecycle import WORKFLOW
from resurgam.core.outcome import Entry, Outcome
from resurgam.core.state import Status
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.store.records import Claim, Commit, Committed, Extended, Refused, Release
from resurgam.worker.cache import InstanceCache
from resurgam.worker.commit import Committer, log_commit_failure
from resurgam.worker.heartbeat import RunningAttempt
from resurgam.worker.held import HeldInstance
from resurgam.worker.inbox_watches import InboxWatches
from resurgam.worker.operations import Operations
from resurgam.worker.tasks import RETRY_DELAY, Grace, Tasks, log_failure, sleep
from resurgam.worker.watchdog import TickTooLong, Watchdog

logger = logging.getLogger("resurgam.worker")

Ts = TypeVarTuple("Ts")

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
        self._slots = committer.slots
        self._worker = committer.worker
        self._brains = brains
        self._tasks = tasks
        self._watchdog = watchdog
        self._operations = Operations(self._clock, tasks, committer.slots.is_cancelled)
        self._cache = InstanceCache(watchdog, size=cache)
        self._watches = InboxWatches(self._store, tasks, self._changed)
        self._interruptions: Counter[str] = Counter()
        self._held: dict[HeldInstance, None] = {}
        # Instances that only wait for an operation or an attempt do not count against the worker's limit; *on_wait* is
        # called whenever one more of them begins to wait while the worker is *crowded*, *on_end* when one is no longer held.
        self._waiting = 0
        # Commits that have no answer yet, also of instances that are no longer held.
        self._in_flight = 0
        self._submitting = 0
        self._finished: asyncio.Event | None = None
        self.crowded = False
        self.on_wait: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._held)

    @property
    def held(self) -> Collection[HeldInstance]:
        """The instances that are held, in the order in which they were claimed."""
        return self._held.keys()

    @property
    def advancing(self) -> int:
        """The number of held instances that do not merely wait."""
        return len(self._held) - self._waiting

    # From the claim to the release.

    def serve(self, claim: Claim) -> None:
        """Serve a claimed instance; it begins in the next iteration of the loop."""
        held = HeldInstance.of(claim)
        self._hold(held)
        asyncio.get_running_loop().call_soon(self._begin, held)

    def begin(self, started: events.Started) -> HeldInstance | None:
        """Advance an execution that is not stored yet, by its start record; return it with its first commit.

        Nothing has left this process then: if the start is refused, `discard` is all it takes. None if the code is not
        here, or fails; then the start is stored without it, and the worker that claims it reports the failure.
        """
        held = HeldInstance(started)
        try:
            brain = find_brain(self._brains, started.kind)
            held.live = brain.load(started.name, (started,), signal_schemas={})
            outcome = self._watchdog.run(held.live, held.live.advance, (), self._clock.now(), self._worker)
        except TickTooLong as error:
            logger.error("workflow %r (%s): %s", started.name, started.entity_id, error)  # noqa: TRY400 -- reported
            self._evict(held)
            return None
        except Exception:  # noqa: BLE001 -- it fails again for the worker that claims it
            self._evict(held)
            return None
        held.commit = self._committer.build(held, outcome)
        return held

    def serve_begun(self, held: HeldInstance, claim: Claim, committed: Committed) -> None:
        """Serve an execution whose start is stored, with its first commit. Called outside of any task, as `begin` is."""
        commit = held.commit
        assert commit is not None
        if commit.release and not commit.eager:
            # It has ended or waits for something from outside, so there is nothing to hold it for.
            self._keep_or_close(held, commit.outcome.status)
            return
        held.claim = claim
        self._hold(held)
        self._settled(held, committed)

    def discard(self, held: HeldInstance) -> None:
        """Drop an execution whose start was refused, or whose first commit was not applied."""
        assert held.commit is not None
        self._slots.unreserve(len(held.commit.eager))
        self._evict(held)

    def _hold(self, held: HeldInstance) -> None:
        held.on_commit = partial(self._committed, held)
        held.on_attempt_end = partial(self._attempt_ended, held)
        held.on_lose = partial(self._lost, held)
        held.since = self._clock.now()
        self._held[held] = None
        # Before it begins: if another tick runs first and does not yield, the watchdog must renew this lease too.
        self._leases.keep(held.key, held)

    def _begin(self, held: HeldInstance) -> None:
        if held.released:
            return  # the lease was lost meanwhile
        if held.claim.instance.status.terminal:
            self._spawn(held, self._record_late)
            return
        held.live = self._cache.take(held.claim.instance)
        if held.live is not None:
            self._advance(held)
        elif held.claim.log:
            self._build_and_advance(held, held.claim.log)
        else:
            self._spawn(held, self._load)

    async def _load(self, held: HeldInstance) -> None:
        log = await self._store.read(held.claim.instance)
        asyncio.get_running_loop().call_soon(self._build_and_advance, held, log)

    def _unprepared(self, kind: str, log: Sequence[events.Event]) -> PreparedBrain | None:
        """Return the brain of a kind if it must be prepared before it loads this log."""
        brain = None if kind == WORKFLOW else self._brains.get(kind)
        return brain if isinstance(brain, PreparedBrain) and brain.wants_preparation(log) else None

    async def _prepare(
        self, brain: PreparedBrain, held: HeldInstance, log: Sequence[events.Event], state: dict[str, Any]
    ) -> None:
        await brain.prepare()
        build = partial(self._build_and_advance, held, log, prepared=True, **state)
        asyncio.get_running_loop().call_soon(build)

    def _build_and_advance(
        self, held: HeldInstance, log: Sequence[events.Event], *, prepared: bool = False, **state: Any
    ) -> None:
        """Build an instance from its log, unless it is no longer held, and advance it."""
        if held.released:
            return
        instance = held.claim.instance
        if not log:  # deleted since it was claimed
            logger.info("%s (%s) is no longer in the store", instance.entity_id, instance.execution_id)
            self._end(held)
            return
        if not prepared and (brain := self._unprepared(instance.kind, log)) is not None:
            self._spawn(held, partial(self._prepare, brain), log, state)
            return
        try:
            found = find_brain(self._brains, instance.kind)
            held.live = found.load(instance.name, log, signal_schemas=held.signal_schemas, **state)
        except NotFound as missing:
            self._park(held, missing)
        except Exception as error:  # noqa: BLE001 -- a log that cannot be read is this instance's own failure
            self._spawn(held, self._fail, error)
        else:
            self._advance(held)

    def _park(self, held: HeldInstance, missing: NotFound) -> None:
        """Release an instance that needs what this worker has not. Nothing is recorded: another worker may have it."""
        instance = held.claim.instance
        logger.error("workflow %s is parked: %s", instance.entity_id, missing)
        parked = Outcome(status=Status.DIVERGED, diagnosis=str(missing), wake_at=instance.wake_at)
        self._commit(held, parked, release=True)

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
        if log:
            self._commit(held, brain.record_late(log, held.inbox, self._clock.now()), release=True)
        else:  # deleted since it was claimed
            self._end(held)

    def _end(self, held: HeldInstance, *, keeps_lease: bool = False) -> None:
        """Stop serving an instance. With *keeps_lease* its lease stays listed, for `Worker.stop` to release."""
        if held.released:
            return
        del self._held[held]
        if held.waiting:
            held.waiting = False
            self._waiting -= 1
        operations, held.operations = held.operations, {}
        for running in operations.values():
            running.cancel()
        self._committer.release(held)
        if held.commit is not None and not held.in_flight:
            # Whether it was applied will not be known.
            commit, held.commit = held.commit, None
            self._slots.unreserve(len(commit.eager))
            self._committer.give_back(commit, None)
        if not keeps_lease:
            self._leases.drop(held.key)
        held.detach()
        self.on_end()
        self._check_finished()

    def _lost(self, held: HeldInstance) -> None:
        """Stop serving an instance whose lease is lost; outside of the task that renews leases."""
        asyncio.get_running_loop().call_soon(self._abandon, held)

    def _abandon(self, held: HeldInstance, *, keeps_lease: bool = False) -> None:
        if held.released:
            return
        if held.task is not None:
            held.task.cancel()
        self._evict(held)
        self._end(held, keeps_lease=keeps_lease)
        if not keeps_lease and held.attempts:
            # Covered attempts have leases of their own now; whether those hold should be known at once.
            self._leases.renew_soon()

    async def finish(self, grace: Grace) -> None:
        """Wait within *grace* until nothing is held, then abandon the rest; their leases stay listed, to be released."""
        if self._held:
            self._finished = asyncio.Event()
            finished = asyncio.ensure_future(self._finished.wait())
            await grace.wait([finished])
            finished.cancel()
        await run_outside_task(self._abandon_all)
        if self._in_flight:
            # What these commits claim must be released too. A store waits a few seconds for its file at most.
            self._finished = asyncio.Event()
            await self._finished.wait()

    def _abandon_all(self) -> None:
        for held in list(self._held):
            self._abandon(held, keeps_lease=True)

    def _check_finished(self) -> None:
        if self._finished is not None and not self._held and not self._in_flight:
            self._finished.set()

    async def evict_all(self) -> None:
        """Close every instance in memory."""
        await run_outside_task(self._evict_all)

    def _evict_all(self) -> None:
        for held in self._held:
            self._evict(held)
        self._cache.clear()

    def _evict(self, held: HeldInstance) -> None:
        self._cache.close(held.live)

    # One step: advance, commit, go on.

    def _advance(self, held: HeldInstance, now: int | None = None) -> None:
        """Advance an instance by what is in its inbox, and hand the commit to the store.

        *now* is the time if it is known already, as by the end of an attempt.
        """
        if held.released:
            return
        live = held.live
        assert live is not None
        # Taken out first: what arrives while the commit is written is for the next advance.
        inbox, held.inbox = held.inbox, []
        try:
            at = self._clock.now() if now is None else now
            outcome = self._watchdog.run(live, live.advance, inbox, at, self._worker)
        except NotFound as missing:
            self._evict(held)
            self._park(held, missing)
            return
        except Exception as error:  # noqa: BLE001 -- any failure is this instance's own
            self._spawn(held, self._fail, error)
            return
        for entry in inbox:
            if entry.id is not None:
                _put_back(held, live, inbox, outcome)
                break
        self._commit(held, outcome)

    def _commit(self, held: HeldInstance, outcome: Outcome, *, release: bool = False) -> None:
        held.commit = commit = self._committer.build(held, outcome, release=release)
        if commit.release and not commit.eager:  # a commit that claims activities keeps the lease
            # Before the commit ends it: a renewal that crosses the commit must not count as a lost lease.
            self._leases.drop(held.key)
        held.in_flight = True
        self._in_flight += 1
        self._submitting += 1
        try:
            self._store.submit(commit, held.on_commit)
        except Exception as error:  # noqa: BLE001 -- as if the store had answered with it
            self._committed(held, error)
        finally:
            self._submitting -= 1

    def _committed(self, held: HeldInstance, answer: Committed | Refused | Exception) -> None:
        """Take in the answer of the store to a commit."""
        held.in_flight = False
        self._in_flight -= 1
        if isinstance(answer, StoreError) and not isinstance(answer, WriteRejected) and not held.released:
            log_commit_failure(answer)
            self._committer.keep_results(held)
            self._spawn(held, self._resolve)
        else:
            self._settled(held, answer)

    async def _resolve(self, held: HeldInstance) -> None:
        assert held.commit is not None
        answer = await self._committer.resolve(held.commit)
        asyncio.get_running_loop().call_soon(self._settled, held, answer)

    def _settled(self, held: HeldInstance, answer: Committed | Refused | Exception) -> None:
        commit, held.commit = held.commit, None
        if commit is None:
            return  # it was given back
        if commit.eager:
            self._slots.unreserve(len(commit.eager))
        if held.released:
            self._committer.give_back(commit, answer)
            self._check_finished()
        elif isinstance(answer, Committed):
            self._committer.accept(held, commit, answer)
            if commit.release and not answer.tasks:
                self._keep_or_close(held, commit.outcome.status)
                self._end(held)
            else:
                self._go_on(held)
        elif isinstance(answer, Refused):
            self._refused(held, commit, answer)
        else:
            self._spawn(held, self._fail, answer)

    def _keep_or_close(self, held: HeldInstance, status: Status) -> None:
        """Keep an instance that was released for its next claim, or close it if it has ended."""
        if status is Status.FAILED and held.live is not None:
            held.live.log_failure()
        if status is Status.RUNNING and held.live is not None:
            self._cache.put(held.execution_id, held.live)
        else:
            self._evict(held)

    def _go_on(self, held: HeldInstance) -> None:
        """Start operations, then advance again if there is something to deliver.

        Else wait until an attempt or an operation ends, an entry arrives in the inbox, or a deadline passes.
        """
        live = held.live
        assert live is not None
        more = live.wants_more
        if more or held.operations:
            self._operations.update(held, live, partial(self._changed, held))
            self._operations.collect(held)
            more = live.wants_more
        if more or held.inbox or not (held.attempts or held.operations):
            if self._submitting:
                # The store has answered at once; an instance that always goes on must not recurse without end.
                asyncio.get_running_loop().call_soon(self._advance, held)
            else:
                self._advance(held)
        elif held.watch is not None and held.watch.done():
            self._take_news(held, held.watch)
        else:
            held.waiting = True
            self._waiting += 1
            if self.crowded:
                self.on_wait()
            if held.watch is None and (held.wake_at is not None or not held.looked_for):
                self._watches.add(held)

    def _refused(self, held: HeldInstance, commit: Commit, refused: Refused) -> None:
        live, strict = held.live, commit.outcome.strict
        if not strict:
            logger.warning("commit of workflow %s refused: %s", held.entity_id, refused.reason)
        if live is None or not strict:
            self._abandon(held)
            return
        brought, paused = list(live.brought), live.paused
        self._evict(held)
        self._spawn(held, self._reload, brought, paused)

    async def _reload(self, held: HeldInstance, brought: Sequence[Entry], paused: bool) -> None:  # noqa: FBT001 -- as above
        """Build an instance again whose strict commit was refused, with everything in its inbox.

        Results that this worker *brought* are delivered again.
        """
        # The whole inbox: entries that the closed instance had kept in memory must come again.
        held.wake, held.inbox = 0, []
        if not await self._fetch_inbox(held):
            self._end(held)
            return
        self._leases.keep(held.key, held)
        held.inbox[:0] = brought
        running = (*held.operations, *(entry.event.ref or 0 for entry in brought))
        log = await self._store.read(held.claim.instance)
        build = partial(self._build_and_advance, held, log, paused=paused, running=running)
        asyncio.get_running_loop().call_soon(build)

    # Waiting.

    def _attempt_ended(self, held: HeldInstance, attempt: RunningAttempt) -> None:
        """Deliver the result of an attempt whose result goes into a commit of its instance."""
        ref, event = attempt.task.request.ref, attempt.event
        if held.attempts.get(ref) is not attempt:
            return  # withdrawn
        del held.attempts[ref]
        if event is None:
            self._note_lost(held, attempt)
        elif held.released:
            self._slots.complete_soon(attempt.result())
        elif attempt.task.epoch and isinstance(event, events.ActivityRetryScheduled):
            # The store keeps it by itself, and schedules the retry.
            held.attempts[ref] = attempt
            completing = self._slots.complete_soon(attempt.result())
            completing.add_done_callback(lambda _: held.attempts.pop(ref, None))
            completing.add_done_callback(partial(self._changed, held))
        else:
            held.results[ref] = attempt
            held.inbox.append(Entry(None, event))
            if held.waiting:
                self._resume(held, event.at)

    def _note_lost(self, held: HeldInstance, attempt: RunningAttempt) -> None:
        """Note an attempt without a result: it was cancelled, or failed in a way that only the end of its lease can tell."""
        running = attempt.running
        assert running is not None
        error = None if running.cancelled() else running.exception()
        if error is None:
            self._changed(held)
        elif attempt.has_lease:
            held.covered.pop(attempt.task.request.ref, None)
            self._slots.give_up(attempt, error)
            self._changed(held)
        else:
            self._spawn(held, self._fail, RuntimeError(f"an attempt was lost: {error!r}"))

    def _changed(self, held: HeldInstance, _: object = None) -> None:
        """Resume an instance that waits; one that does not will look by itself."""
        if held.waiting:
            self._resume(held)

    def _resume(self, held: HeldInstance, now: int | None = None) -> None:
        held.waiting = False
        self._waiting -= 1
        if held.operations:
            self._operations.collect(held)
        if held.watch is None or not held.watch.done():
            self._advance(held, now)
        else:
            self._take_news(held, held.watch)

    def _take_news(self, held: HeldInstance, watch: asyncio.Task[bool]) -> None:
        """Advance an instance whose watch has ended."""
        held.watch = None
        if watch.cancelled():
            self._advance(held)
        elif (error := watch.exception()) is not None:
            self._spawn(held, self._fail, error)
        elif watch.result():
            self._spawn(held, self._fetch_and_advance)
        else:
            self._advance(held)  # a deadline has come

    async def _fetch_and_advance(self, held: HeldInstance) -> None:
        # Whether it was fetched or not: the answer of an operation may be at hand, and goes into the next commit.
        await self._fetch_inbox(held)
        asyncio.get_running_loop().call_soon(self._advance, held)

    async def _fetch_inbox(self, held: HeldInstance) -> bool:
        """Fetch new inbox entries; return whether the lease is still held."""
        try:
            [answer] = await self._store.extend([held.lease()])
        except StoreError as error:
            log_failure(f"the store failed to return the inbox of {held.entity_id}", error)
            return False
        if isinstance(answer, Extended):
            held.receive(answer)
        return isinstance(answer, Extended)

    # Failures.

    def _spawn(
        self, held: HeldInstance, job: "Callable[[HeldInstance, *Ts], Coroutine[Any, Any, None]]", *args: *Ts
    ) -> None:
        """Do what takes time in a task. A failure counts against this instance only."""
        held.task = self._tasks.spawn(self._run(held, job, *args), held.entity_id)

    async def _run(
        self, held: HeldInstance, job: "Callable[[HeldInstance, *Ts], Coroutine[Any, Any, None]]", *args: *Ts
    ) -> None:
        this = asyncio.current_task()
        try:
            await job(held, *args)
        except Exception as error:  # noqa: BLE001 -- as above
            await self._fail(held, error)
        finally:
            if held.task is this:
                held.task = None

    async def _fail(self, held: HeldInstance, error: BaseException) -> None:
        """Release an instance that could not be advanced or committed."""
        await run_outside_task(partial(self._evict, held))
        instance = held.claim.instance
        if isinstance(error, TickTooLong):
            logger.error("workflow %r (%s): %s", instance.name, instance.entity_id, error)
            # Not at once: this worker may get it again, and other instances would wait again.
            self._interruptions[instance.execution_id] += 1
            times = self._interruptions[instance.execution_id]
            await sleep(self._clock, min(_LONGEST_DELAY, error.seconds * times))
            await self._release_failed(held, error)
        elif isinstance(error, WriteRejected):
            await self._reject(held, error)
        else:
            log_failure(f"advancing workflow {instance.name!r} ({instance.entity_id}) failed", error)
            await self._release_failed(held, error)

    async def _reject(self, held: HeldInstance, error: WriteRejected) -> None:
        """Dead-letter an instance whose commit the store can never write.

        If the commit carried results of activities, one of these may be the cause: each is handed in by itself,
        accepted or rejected alone, and the instance is advanced once more without them in its commit.
        """
        if held.results:
            await self._release(held, Release(lease=held.lease()))
            return
        instance = held.claim.instance
        reason = f"the store cannot write its commit: {error}"
        logger.error("workflow %r (%s) is a dead letter: %s", instance.name, instance.entity_id, reason)
        await self._release(held, Release(lease=held.lease(), failed=reason, final=True))

    async def _release_failed(self, held: HeldInstance, error: BaseException) -> None:
        """Release an instance that could not be advanced; this counts as a failed delivery."""
        await self._release(held, Release(lease=held.lease(), failed=repr(error)))

    async def _release(self, held: HeldInstance, release: Release) -> None:
        """Release an instance without a commit; if the store fails too, the lease expires by itself."""
        self._leases.drop(held.key)
        try:
            await self._committer.uncover(held)
            await self._store.release([release])
        except Exception as failed:  # noqa: BLE001 -- as above
            log_failure(f"the store failed; the lease of {held.entity_id} will expire", failed)
        self._end(held)


def _put_back(held: HeldInstance, live: LiveInstance, inbox: Sequence[Entry], outcome: Outcome) -> None:
    """Keep what an advance has neither consumed nor kept itself for the next one."""
    consumed = set(outcome.consumed)
    held.inbox[:0] = [
        entry for entry in inbox if entry.id is not None and entry.id not in consumed and not live.holds(entry)
    ]
