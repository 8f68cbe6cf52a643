"""Make commits of the outcomes of held instances, take in their answers, and find out about those that are in doubt."""

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError, WriteRejected
from resurgam.core.outcome import Outcome
from resurgam.core.state import Status
from resurgam.store.protocol import Store
from resurgam.store.records import Commit, Committed, Lease, Pending, Refused, Release
from resurgam.store.rules import COVERED
from resurgam.worker.held import HeldInstance
from resurgam.worker.leases import Leases
from resurgam.worker.slots import Slots, claimed_by
from resurgam.worker.tasks import RETRY_DELAY, log_failure, sleep

logger = logging.getLogger("resurgam.worker")

_NONE: Final[frozenset[int]] = frozenset()


class Committer:
    """Turns outcomes into commits, and their answers into attempts."""

    def __init__(self, store: Store, clock: Clock, leases: Leases, slots: Slots, *, worker: str) -> None:
        self.store = store
        self.clock = clock
        self.leases = leases
        self.slots = slots
        self.worker = worker

    def build(self, held: HeldInstance, outcome: Outcome, *, release: bool = False) -> Commit:
        """Make the commit of an outcome; it reserves the slots of the activities that it claims.

        It releases the lease if there is nothing more to do at once, or if *release* says so.
        """
        live, eager = held.live, _NONE
        if outcome.status is not Status.RUNNING or live is None:
            release = True
        elif live.paused:
            release = release or not held.operations
        else:
            release = release or not (held.attempts or held.inbox or held.operations or live.wants_more)
            if outcome.activities:
                eager = self.slots.reserve_share(outcome.activities)
                # Not a question to the instance: most have no such request, and this is asked at every step.
                for request in outcome.activities:
                    if request.starts is not None and request.ref in eager:
                        begun = (*outcome.events, *live.begin(eager))
                        outcome = msgspec.structs.replace(outcome, events=begun)
                        break
        answered: Sequence[int] = ()
        retries: Sequence[Pending] = ()
        if held.covered or held.results:
            answered, retries = self._take_answered(held, outcome)
        return Commit(
            execution_id=held.execution_id,
            entity_id=held.entity_id,
            epoch=held.epoch,
            base_seq=held.base_seq,
            wake=held.wake,
            outcome=outcome,
            worker=self.worker,
            release=release,
            eager=eager,
            covers=len(held.covered) + len(eager) <= COVERED,
            running=tuple(held.covered.values()) if held.covered else (),
            retries=tuple(retries),
            answered=tuple(answered),
        )

    def _take_answered(self, held: HeldInstance, outcome: Outcome) -> tuple[list[int], list[Pending]]:
        """Take what an outcome answers out of the covered activities; return the refs with a row, and the attempts to follow.

        Leases of answered activities are dropped now: a renewal that crosses the commit must not count as a loss.
        """
        answered: list[int] = []
        retries: list[Pending] = []
        for entry in outcome.events:
            if entry.ref is None:
                continue
            held.covered.pop(entry.ref, None)
            attempt = held.results.get(entry.ref)
            if attempt is None:
                continue
            if attempt.has_lease:
                self.leases.drop(attempt.key)
            # Not the entry: a brain records the event in words of its own.
            if isinstance(attempt.event, events.ActivityRetryScheduled):
                retries.append(
                    Pending(
                        request=attempt.task.request,
                        visible_at=attempt.event.next_at,
                        attempt=attempt.event.attempt + 1,
                        details=attempt.details,
                        heartbeat_at=attempt.heartbeat_at,
                    )
                )
            elif attempt.has_lease:
                answered.append(entry.ref)
        return answered, retries

    def accept(self, held: HeldInstance, commit: Commit, answer: Committed) -> None:
        """Take in the answer to a commit, and start the attempts that it has claimed."""
        outcome = commit.outcome
        if held.results or outcome.withdrawals:
            self._drop_answered(held, outcome)
        held.base_seq += len(outcome.events)
        if outcome.signal_schemas is not None:
            held.signal_schemas = outcome.signal_schemas
        if outcome.wake_at != held.wake_at:
            held.set_deadline(outcome.wake_at)
        if answer.inbox or answer.wake != held.wake:
            held.receive(answer)
        for task in answer.tasks:
            request = task.request
            if task.epoch == 0:
                held.covered[request.ref] = request
            # The time of the commit, which has claimed it: the clock is read once for each step.
            held.attempts[request.ref] = self.slots.start(task, held.on_attempt_end, outcome.events[-1].at)
        if len(commit.eager) > len(answer.tasks):
            # Not all of the slots were needed, and the claim loop may have looked for some meanwhile.
            self.slots.on_free()

    async def uncover(self, held: HeldInstance) -> None:
        """Give what the lease on an instance covers leases of its own, before that one is released without a commit.

        Otherwise the store would offer at once what still runs here, or has ended with a result that is on its way.
        """
        covered = [one for one in (*held.attempts.values(), *held.results.values()) if not one.has_lease]
        for attempt in covered:
            self.slots.lease_separately(attempt)
        if covered:
            await self.leases.extend([attempt.lease() for attempt in covered])

    def release(self, held: HeldInstance) -> None:
        """Stop serving an instance: hand results that no commit has carried to the store, each by itself."""
        held.released = True
        held.stop_watching()
        for attempt in held.results.values():
            self.slots.complete_soon(attempt.result())
        for attempt in held.attempts.values():
            if not attempt.has_lease:
                self.slots.lease_separately(attempt)

    def give_back(self, commit: Commit, answer: Committed | Refused | Exception | None) -> None:
        """Release what a commit has claimed, or may have claimed, for an instance that is no longer served."""
        if not commit.eager or isinstance(answer, Refused):
            return
        lease = Lease(entity_id=commit.entity_id, execution_id=commit.execution_id, epoch=commit.epoch)
        kept = [Release(lease=lease)] if commit.release else []
        self.slots.release_soon([*claimed_by(commit), *kept])

    def keep_results(self, held: HeldInstance) -> None:
        """Renew the leases of results whose commit has failed, until it is known what became of it."""
        for attempt in held.results.values():
            if attempt.has_lease:
                self.leases.keep(attempt.key, attempt)

    async def resolve(self, commit: Commit) -> Committed | Refused:
        """Commit again until the store answers, or rejects it for good.

        After any other failure it is unknown whether the commit was applied: read it back, never guess.
        """
        while True:
            await sleep(self.clock, RETRY_DELAY)
            try:
                [answer] = await self.store.commit([commit])
                if isinstance(answer, Refused):
                    return await self._read_back(commit, answer)
            except WriteRejected:
                raise
            except StoreError as error:
                log_commit_failure(error)
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
        if claimed := claimed_by(commit):
            # Which activities it claimed is lost with its answer; they go back to their queues.
            await self.store.release(claimed)
        if commit.release:
            await self.store.release([Release(lease=lease)])
            return Committed(wake=commit.wake)
        [extended] = await self.store.extend([lease])
        return extended if isinstance(extended, Refused) else Committed(wake=extended.wake, inbox=extended.inbox)

    def _drop_answered(self, held: HeldInstance, outcome: Outcome) -> None:
        """Drop attempts that the commit has answered, by a cancellation or by their results."""
        for withdrawal in outcome.withdrawals:
            if withdrawal.answered:
                # No longer waited for, even if it does not stop when it is cancelled.
                attempt = held.attempts.pop(withdrawal.ref, None)
                if attempt is not None:
                    self.leases.drop(attempt.key)
                    attempt.lose()
                else:
                    self.leases.revoke(held.execution_id, withdrawal.ref)
        if held.results:
            for entry in outcome.events:
                attempt = held.results.pop(entry.ref or 0, None)
                if attempt is not None and attempt.has_lease:
                    self.leases.drop(attempt.key)  # kept again if the commit was in doubt


def log_commit_failure(error: StoreError) -> None:
    """Log that the store failed at a commit, which is tried again."""
    log_failure(f"the store failed at a commit; trying again in {RETRY_DELAY:g} s", error)
