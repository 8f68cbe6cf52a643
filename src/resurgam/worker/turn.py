"""One claimed instance in a worker's hands, and its commits."""

import asyncio
import logging
from dataclasses import dataclass, field

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.core.outcome import Entry, Outcome
from resurgam.core.state import Status
from resurgam.runtime.execution import Execution
from resurgam.store.protocol import Store
from resurgam.store.records import ActivityResult, Claim, Commit, Committed, Extended, Lease, Refused, Release
from resurgam.worker.hands import Hands
from resurgam.worker.leases import Leases
from resurgam.worker.tasks import PAUSE_AFTER_ERROR, pause

logger = logging.getLogger("resurgam.worker")


@dataclass
class Turn:
    """An instance from its claim until its lease is released."""

    claim: Claim
    execution: Execution | None = None
    inbox: list[Entry] = field(default_factory=list)
    base_seq: int = 0
    wake: int = 0
    wake_at: int | None = None
    operations: dict[int, asyncio.Future[events.Event]] = field(default_factory=dict)
    attempts: dict[int, asyncio.Task[ActivityResult]] = field(default_factory=dict)
    results: dict[int, ActivityResult] = field(default_factory=dict)

    @classmethod
    def of(cls, claim: Claim) -> "Turn":
        """Begin with what the claim brought."""
        return cls(claim, inbox=list(claim.inbox), base_seq=claim.instance.last_seq, wake=claim.wake)

    @property
    def lease(self) -> Lease:
        """What this worker holds of the instance."""
        return Lease(execution_id=self.claim.instance.execution_id, epoch=self.claim.epoch, wake=self.wake)

    def hear(self, news: Committed | Extended) -> None:
        """Take in what has come into the inbox meanwhile."""
        self.wake = news.wake
        self.inbox += news.inbox


class Committer:
    """Commits outcomes of turns, through failures of the store."""

    def __init__(
        self, store: Store, clock: Clock, leases: Leases, hands: Hands, *, worker: str, queues: tuple[str, ...]
    ) -> None:
        self.store = store
        self.clock = clock
        self.leases = leases
        self.hands = hands
        self.worker = worker
        self._queues = queues

    async def commit(self, turn: Turn, outcome: Outcome, *, release: bool) -> bool:
        """Commit an outcome; whether it was accepted."""
        commit = Commit(
            execution_id=turn.claim.instance.execution_id,
            epoch=turn.claim.epoch,
            base_seq=turn.base_seq,
            wake=turn.wake,
            outcome=outcome,
            worker=self.worker,
            release=release,
            hands=self.hands.free if outcome.activities and outcome.status is Status.RUNNING else 0,
            queues=self._queues,
        )
        if release:
            # Before the commit ends it: a renewal that crosses the commit must not be taken for a loss.
            self.leases.drop(turn.lease)
        answer = await self._surely(commit)
        if isinstance(answer, Refused):
            logger.warning("commit of workflow %s refused: %s", turn.claim.instance.entity_id, answer.reason)
            return False
        for withdrawal in outcome.withdrawals:
            if withdrawal.answered:
                self.leases.revoke(commit.execution_id, withdrawal.ref)
        for entry in outcome.events:
            result = turn.results.pop(entry.ref or 0, None)
            if result is not None:
                self.hands.put_down(result)
        for task in answer.tasks:
            turn.attempts[task.request.ref] = self.hands.begin(task)
        turn.base_seq += len(outcome.events)
        turn.wake_at = outcome.wake_at
        turn.hear(answer)
        return True

    async def _surely(self, commit: Commit) -> Committed | Refused:
        """Commit until the store answers. After a failure nobody knows whether it was applied: look, never guess."""
        doubtful = False
        while True:
            try:
                [answer] = await self.store.commit([commit])
                if doubtful and isinstance(answer, Refused):
                    return await self._look(commit, answer)
            except StoreError:
                logger.exception("the store failed at a commit; trying again in %g s", PAUSE_AFTER_ERROR)
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
        if commit.hands:
            # Which activities it claimed is lost with its answer; they go back to their queues, for anybody to take.
            claimed = [Lease(execution_id=commit.execution_id, epoch=1, ref=a.ref) for a in commit.outcome.activities]
            await self.store.release([Release(lease=activity) for activity in claimed])
        if commit.release:
            await self.store.release([Release(lease=lease)])
            return Committed(wake=commit.wake)
        [held] = await self.store.extend([lease])
        return held if isinstance(held, Refused) else Committed(wake=held.wake, inbox=held.inbox)
