"""One claimed instance in a worker's hands, and its commits."""

import asyncio
import logging
from dataclasses import dataclass, field

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.core.outcome import Entry, Outcome
from resurgam.runtime.execution import Execution
from resurgam.store.protocol import Store
from resurgam.store.records import Claim, Commit, Committed, Extended, Lease, Refused
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

    def __init__(self, store: Store, clock: Clock, leases: Leases, worker: str) -> None:
        self._store = store
        self._clock = clock
        self._leases = leases
        self._worker = worker

    async def commit(self, turn: Turn, outcome: Outcome, *, release: bool) -> bool:
        """Commit an outcome; whether it was accepted."""
        commit = Commit(
            execution_id=turn.claim.instance.execution_id,
            epoch=turn.claim.epoch,
            base_seq=turn.base_seq,
            wake=turn.wake,
            outcome=outcome,
            worker=self._worker,
            release=release,
        )
        if release:
            # Before the commit ends it: a renewal that crosses the commit must not be taken for a loss.
            self._leases.drop(turn.lease)
        answer = await self._surely(commit)
        if isinstance(answer, Refused):
            logger.warning("commit of workflow %s refused: %s", turn.claim.instance.entity_id, answer.reason)
            return False
        for withdrawal in outcome.withdrawals:
            if withdrawal.answered:
                self._leases.revoke(commit.execution_id, withdrawal.ref)
        turn.base_seq += len(outcome.events)
        turn.wake_at = outcome.wake_at
        turn.hear(answer)
        return True

    async def _surely(self, commit: Commit) -> Committed | Refused:
        """Commit until the store answers. After a failure nobody knows whether it was applied: look, never guess."""
        doubtful = False
        while True:
            try:
                [answer] = await self._store.commit([commit])
                if doubtful and isinstance(answer, Refused):
                    return await self._look(commit, answer)
            except StoreError:
                logger.exception("the store failed at a commit; trying again in %g s", PAUSE_AFTER_ERROR)
                doubtful = True
                await pause(self._clock, PAUSE_AFTER_ERROR)
            else:
                return answer

    async def _look(self, commit: Commit, refused: Refused) -> Committed | Refused:
        """Find out whether a commit that is refused now was applied at the first try."""
        written = await self._store.read(commit.execution_id, after=commit.base_seq)
        mine = commit.outcome.events
        if not mine or tuple(written[: len(mine)]) != mine:
            return refused
        if commit.release:
            return Committed(wake=commit.wake)
        lease = Lease(execution_id=commit.execution_id, epoch=commit.epoch, wake=commit.wake)
        [held] = await self._store.extend([lease])
        return held if isinstance(held, Refused) else Committed(wake=held.wake, inbox=held.inbox)
