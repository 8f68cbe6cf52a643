"""Commit the outcomes of held instances, through failures of the store, and run the attempts that a commit claims."""

import asyncio
import logging

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError, WriteRejected
from resurgam.core.outcome import Entry, Outcome
from resurgam.core.state import Status
from resurgam.store.protocol import Store
from resurgam.store.records import ActivityResult, ActivityTask, Commit, Committed, Lease, Refused, Release
from resurgam.worker.held import HeldInstance
from resurgam.worker.leases import Leases
from resurgam.worker.slots import Slots, claimed_by
from resurgam.worker.tasks import RETRY_DELAY, log_failure, sleep

logger = logging.getLogger("resurgam.worker")


class Committer:
    """Commits outcomes and routes the results of attempts back to the instances that wait for them."""

    def __init__(self, store: Store, clock: Clock, leases: Leases, slots: Slots, *, worker: str) -> None:
        self.store = store
        self.clock = clock
        self.leases = leases
        self.slots = slots
        self.worker = worker

    async def commit(self, held: HeldInstance, outcome: Outcome, *, release: bool) -> bool:
        """Commit an outcome; return whether it was accepted."""
        commit = Commit(
            execution_id=held.claim.instance.execution_id,
            entity_id=held.claim.instance.entity_id,
            epoch=held.claim.epoch,
            base_seq=held.base_seq,
            wake=held.wake,
            outcome=outcome,
            worker=self.worker,
            release=release,
            eager=self.slots.reserve_share(outcome.activities) if _may_start_work(held, outcome) else frozenset(),
        )
        if release:
            # Before the commit ends it: a renewal that crosses the commit must not count as a lost lease.
            self.leases.drop(held.lease)
        answer = await self._commit_or_give_back(commit)
        if isinstance(answer, Refused):
            if not outcome.strict:
                logger.warning("commit of workflow %s refused: %s", held.claim.instance.entity_id, answer.reason)
            return False
        self._drop_answered(held, outcome)
        for task in answer.tasks:
            self._start_attempt(held, task)
        held.base_seq += len(outcome.events)
        if outcome.signal_schemas is not None:
            held.signal_schemas = outcome.signal_schemas
        held.set_deadline(outcome.wake_at)
        held.receive(answer)
        return True

    def release(self, held: HeldInstance) -> None:
        """Stop serving an instance: hand results that no commit has carried to the store, each by itself."""
        held.released = True
        held.stop_watching()
        for result in held.results.values():
            self.slots.complete_soon(result)

    async def _commit_or_give_back(self, commit: Commit) -> Committed | Refused:
        """Commit; if this is cancelled meanwhile, give back what the commit may have claimed."""
        try:
            return await self._commit_until_answered(commit)
        except asyncio.CancelledError:
            # If the commit is written after all, this release is written after it.
            self.slots.give_back_soon(commit)
            raise
        finally:
            if commit.eager:
                # Not all of the slots may be needed, and the claim loop may have looked for some meanwhile.
                self.slots.unreserve(len(commit.eager))
                self.slots.on_free()

    def _drop_answered(self, held: HeldInstance, outcome: Outcome) -> None:
        """Drop attempts that the commit has answered, by a cancellation or by their results."""
        for withdrawal in outcome.withdrawals:
            if withdrawal.answered:
                # No longer waited for, even if it does not stop when it is cancelled.
                held.attempts.pop(withdrawal.ref, None)
                self.leases.revoke(held.claim.instance.execution_id, withdrawal.ref)
        if held.results:
            for entry in outcome.events:
                result = held.results.pop(entry.ref or 0, None)
                if result is not None:
                    self.slots.drop_lease(result)

    def _start_attempt(self, held: HeldInstance, task: ActivityTask) -> None:
        """Run an attempt whose result goes into a commit of this instance."""
        ref = task.request.ref
        held.attempts[ref] = self.slots.run_for(task, lambda result: self._attempt_ended(held, ref, result))

    def _attempt_ended(self, held: HeldInstance, ref: int, result: ActivityResult | None) -> None:
        """Deliver the result of an attempt; a failed one that is retried goes to the store, which schedules the retry."""
        wanted = held.attempts.pop(ref, None) is not None
        # None: cancelled by the workflow, its lease lost, or failed in a way that only the end of its lease can tell.
        if wanted and result is not None:
            if held.released:
                self.slots.complete_soon(result)
            elif isinstance(result.event, events.ActivityRetryScheduled):
                completing = held.attempts[ref] = self.slots.complete_soon(result)
                completing.add_done_callback(lambda _: held.attempts.pop(ref, None))
                completing.add_done_callback(held.notify)
                return
            else:
                held.results[ref] = result
                held.inbox.append(Entry(None, result.event))
        held.notify()

    async def _commit_until_answered(self, commit: Commit) -> Committed | Refused:
        """Commit until the store answers, or rejects it for good.

        After any other failure it is unknown whether the commit was applied: read it back, never guess.
        """
        in_doubt = False
        while True:
            try:
                [answer] = await self.store.commit([commit])
                if in_doubt and isinstance(answer, Refused):
                    return await self._read_back(commit, answer)
            except WriteRejected:
                raise
            except StoreError as error:
                log_failure(f"the store failed at a commit; trying again in {RETRY_DELAY:g} s", error)
                in_doubt = True
                await sleep(self.clock, RETRY_DELAY)
            else:
                return answer

    async def _read_back(self, commit: Commit, refused: Refused) -> Committed | Refused:
        """Find out whether a commit that is refused now was applied at an earlier try."""
        written = await self.store.read(commit, after=commit.base_seq)
        own = commit.outcome.events
        if not own or tuple(written[: len(own)]) != own:
            return refused
        lease = Lease(
            entity_id=commit.entity_id, execution_id=commit.execution_id, epoch=commit.epoch, wake=commit.wake
        )
        if commit.eager:
            # Which activities it claimed is lost with its answer; they go back to their queues.
            await self.store.release(claimed_by(commit))
        if commit.release:
            await self.store.release([Release(lease=lease)])
            return Committed(wake=commit.wake)
        [extended] = await self.store.extend([lease])
        return extended if isinstance(extended, Refused) else Committed(wake=extended.wake, inbox=extended.inbox)


def _may_start_work(held: HeldInstance, outcome: Outcome) -> bool:
    """Whether activities that an outcome schedules may start at once."""
    return outcome.status is Status.RUNNING and not (held.live is not None and held.live.paused)
