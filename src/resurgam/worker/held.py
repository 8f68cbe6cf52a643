"""One claimed instance in a worker's hands, and its commits."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.brain import LiveInstance
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError, WriteRejected
from resurgam.core.outcome import Entry, Outcome
from resurgam.core.state import Status
from resurgam.store.protocol import Store
from resurgam.store.records import (
    ActivityResult,
    ActivityTask,
    Claim,
    Commit,
    Committed,
    Extended,
    Lease,
    Refused,
    Release,
)
from resurgam.worker.leases import Leases
from resurgam.worker.slots import Slots, claimed_by
from resurgam.worker.tasks import PAUSE_AFTER_ERROR, complain, pause

logger = logging.getLogger("resurgam.worker")


@dataclass(slots=True)
class HeldInstance:
    """An instance from its claim until its lease is released."""

    claim: Claim
    live: LiveInstance | None = None
    inbox: list[Entry] = field(default_factory=list)
    base_seq: int = 0
    wake: int = 0
    wake_at: int | None = None
    # What the store has of what the code takes for signals.
    signal_schemas: dict[str, Raw] = field(default_factory=dict)
    operations: dict[int, asyncio.Future[events.Event]] = field(default_factory=dict)
    attempts: dict[int, asyncio.Task[Any]] = field(default_factory=dict)
    results: dict[int, ActivityResult] = field(default_factory=dict)
    over: bool = False
    call_off: Callable[[], object] = lambda: None
    # Waits for the store to say that something has come into the inbox, or that a deadline has; kept from one step to
    # the next, since most steps are woken by an attempt of this worker's own.
    news: asyncio.Task[bool] | None = None
    bell: asyncio.Future[None] | None = None

    @classmethod
    def of(cls, claim: Claim) -> "HeldInstance":
        """Begin with what the claim brought."""
        instance = claim.instance
        return cls(
            claim,
            inbox=list(claim.inbox),
            base_seq=instance.last_seq,
            wake=claim.wake,
            signal_schemas=instance.signal_schemas,
        )

    @property
    def lease(self) -> Lease:
        """What this worker holds of the instance."""
        return Lease(execution_id=self.claim.instance.execution_id, epoch=self.claim.epoch, wake=self.wake)

    def hear(self, news: Committed | Extended) -> None:
        """Take in what has come into the inbox meanwhile."""
        if news.wake != self.wake:
            self.wake = news.wake
            self.ignore_news()
        self.inbox += news.inbox

    def wait_until(self, moment: int | None) -> None:
        """Set the moment by which this instance wants to be woken."""
        if moment != self.wake_at:
            self.wake_at = moment
            self.ignore_news()

    def ignore_news(self) -> None:
        """Wait no longer for what the store has to say."""
        if self.news is not None:
            self.news.cancel()
            self.news = None

    def ring(self, _: object = None) -> None:
        """Something may be there to be delivered."""
        if self.bell is not None and not self.bell.done():
            self.bell.set_result(None)

    async def rung(self) -> None:
        """Wait for the bell, unless something has ended while nobody listened for it."""
        missed = bool(self.operations) and any(running.done() for running in self.operations.values())
        if missed or self.inbox or (self.news is not None and self.news.done()):
            return
        self.bell = asyncio.get_running_loop().create_future()
        try:
            await self.bell
        finally:
            self.bell = None


class Committer:
    """Commits outcomes of turns, through failures of the store."""

    def __init__(
        self, store: Store, clock: Clock, leases: Leases, hands: Slots, *, worker: str, queues: tuple[str, ...]
    ) -> None:
        self.store = store
        self.clock = clock
        self.leases = leases
        self.hands = hands
        self.worker = worker
        self._queues = queues

    async def commit(self, turn: HeldInstance, outcome: Outcome, *, release: bool) -> bool:
        """Commit an outcome; whether it was accepted."""
        commit = Commit(
            execution_id=turn.claim.instance.execution_id,
            entity_id=turn.claim.instance.entity_id,
            epoch=turn.claim.epoch,
            base_seq=turn.base_seq,
            wake=turn.wake,
            outcome=outcome,
            worker=self.worker,
            release=release,
            claim_slots=self.hands.reserve(len(outcome.activities)) if _goes_on(turn, outcome) else 0,
            queues=self._queues,
        )
        if release:
            # Before the commit ends it: a renewal that crosses the commit must not be taken for a loss.
            self.leases.drop(turn.lease)
        answer = await self._heard(commit)
        if isinstance(answer, Refused):
            if not outcome.strict:
                logger.warning("commit of workflow %s refused: %s", turn.claim.instance.entity_id, answer.reason)
            return False
        self._put_down(turn, outcome)
        for task in answer.tasks:
            self._begin(turn, task)
        turn.base_seq += len(outcome.events)
        if outcome.signal_schemas is not None:
            turn.signal_schemas = outcome.signal_schemas
        turn.wait_until(outcome.wake_at)
        turn.hear(answer)
        return True

    async def _heard(self, commit: Commit) -> Committed | Refused:
        """Commit, and give back what it may have claimed should nobody hear its answer."""
        try:
            return await self._surely(commit)
        except asyncio.CancelledError:
            # Should it be written all the same, this is written after it.
            self.hands.give_back_soon(commit)
            raise
        finally:
            if commit.claim_slots:
                # Not all of them may be needed, and somebody may have looked for some meanwhile.
                self.hands.unreserve(commit.claim_slots)
                self.hands.on_free()

    def _put_down(self, turn: HeldInstance, outcome: Outcome) -> None:
        """Let go of attempts that are answered now, by the workflow's own cancellation or by their results."""
        for withdrawal in outcome.withdrawals:
            if withdrawal.answered:
                # No longer waited for, even if it does not stop when it is called off.
                turn.attempts.pop(withdrawal.ref, None)
                self.leases.revoke(turn.claim.instance.execution_id, withdrawal.ref)
        if turn.results:
            for entry in outcome.events:
                result = turn.results.pop(entry.ref or 0, None)
                if result is not None:
                    self.hands.put_down(result)

    def _begin(self, turn: HeldInstance, task: ActivityTask) -> None:
        """Run an attempt whose result this turn will commit."""
        ref = task.request.ref
        turn.attempts[ref] = self.hands.begin(task, lambda result: self._ended(turn, ref, result))

    def _ended(self, turn: HeldInstance, ref: int, result: ActivityResult | None) -> None:
        """Take in the result of an attempt; one that is to be repeated is the store's to schedule."""
        wanted = turn.attempts.pop(ref, None) is not None
        # None: called off by the workflow, its lease lost, or failed in a way that only its lease can tell.
        if wanted and result is not None:
            if turn.over:
                self.hands.hand_in_soon(result)
            elif isinstance(result.event, events.ActivityRetryScheduled):
                handing = turn.attempts[ref] = self.hands.hand_in_soon(result)
                handing.add_done_callback(lambda _: turn.attempts.pop(ref, None))
                handing.add_done_callback(turn.ring)
                return
            else:
                turn.results[ref] = result
                turn.inbox.append(Entry(None, result.event))
        turn.ring()

    def let_go(self, turn: HeldInstance) -> None:
        """The turn is over: what it did not come to commit, the store is told by itself."""
        turn.over = True
        turn.ignore_news()
        for result in turn.results.values():
            self.hands.hand_in_soon(result)

    async def _surely(self, commit: Commit) -> Committed | Refused:
        """Commit until the store answers, or rejects it for good.

        After any other failure it is not known whether the commit was applied: the store is asked, never guessed.
        """
        doubtful = False
        while True:
            try:
                [answer] = await self.store.commit([commit])
                if doubtful and isinstance(answer, Refused):
                    return await self._look(commit, answer)
            except WriteRejected:
                raise
            except StoreError as error:
                complain(f"the store failed at a commit; trying again in {PAUSE_AFTER_ERROR:g} s", error)
                doubtful = True
                await pause(self.clock, PAUSE_AFTER_ERROR)
            else:
                return answer

    async def _look(self, commit: Commit, refused: Refused) -> Committed | Refused:
        """Find out whether a commit that is refused now was applied at the first try."""
        written = await self.store.read(commit.execution_id, after=commit.base_seq)
        mine = commit.outcome.events
        if not mine or tuple(written[: len(mine)]) != mine:
            return refused
        lease = Lease(execution_id=commit.execution_id, epoch=commit.epoch, wake=commit.wake)
        if commit.claim_slots:
            # Which activities it claimed is lost with its answer; they go back to their queues, for anybody to take.
            await self.store.release(claimed_by(commit))
        if commit.release:
            await self.store.release([Release(lease=lease)])
            return Committed(wake=commit.wake)
        [held] = await self.store.extend([lease])
        return held if isinstance(held, Refused) else Committed(wake=held.wake, inbox=held.inbox)


def _goes_on(turn: HeldInstance, outcome: Outcome) -> bool:
    """Whether what an outcome asks for may be begun at once."""
    return outcome.status is Status.RUNNING and not (turn.live is not None and turn.live.paused)
