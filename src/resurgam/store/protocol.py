"""The seam: `Store`, a dozen verbs that are each a whole intention, and the read-side `Inspector`.

Every verb takes a batch and answers each part by itself, in order: one part that is refused never holds up another.
A part is applied whole or not at all. Nothing is raised for a part; `StoreError` means that the store as a whole could
not do it, and then nothing is known to have been done.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from resurgam.core import event as events
from resurgam.store import records as r

REDELIVERIES: Final = 20
"""How often work may be handed out without an answer before it is put aside: a worker that dies of it must not drag
its successors along for ever."""


class Inspector(Protocol):
    """Looking without touching."""

    async def get(self, entity_id: str, run_id: str | None = None) -> r.Instance | None:
        """Return the newest execution of an entity, or the one of a run."""
        ...

    async def list(self, query: r.Query) -> r.Page:
        """Return a page of instances, newest first."""
        ...

    async def history(
        self, execution_id: str, last: int | None = None, *, forgotten: bool = False
    ) -> Sequence[events.Event]:
        """Return the log of an execution, or its *last* entries; empty if there is none.

        What is forgotten is left out unless *forgotten* asks for all that is kept; it then stands where it stood.
        """
        ...

    async def copies(self, entity_id: str, run_id: str | None = None) -> Sequence[r.Copy]:
        """Return everything that is kept of an entity's executions, or of one run's, oldest first, at one moment."""
        ...

    async def stats(self) -> r.Stats:
        """Return the counts."""
        ...

    async def close(self) -> None:
        """Let go of whatever is held open."""
        ...


class Store(Inspector, Protocol):
    """Keeps instances, their inboxes and the activities they want."""

    async def create(self, parts: Sequence[r.Creation]) -> Sequence[r.Created | r.Exists]:
        """Begin executions; an id that has an open one already is left alone."""
        ...

    async def deliver(self, parts: Sequence[r.Delivery]) -> Sequence[r.Delivered | r.Missing | r.Ended]:
        """Put events into inboxes and make their instances ready; one that is held is made ready by its commit.

        `WorkflowTerminated` goes straight into the log and ends the instance at once, whoever holds it.
        """
        ...

    async def revive(self, execution_ids: Sequence[str]) -> Sequence[r.Revived | r.Missing]:
        """Hand out again what was put aside: dead instances and activities, and parked runs to whoever tried them."""
        ...

    async def adopt(self, parts: Sequence[r.Adoption]) -> Sequence[r.Adopted | r.Exists]:
        """Take in executions from another store, with nothing of them held; `arriving` has the rules.

        They are ready to be claimed, unless they are complete; activities keep their attempt and their moment.
        """
        ...

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.Claim]:
        """Lease instances that are ready, whose deadline has come, or whose lease has run out.

        A parked instance is offered once to each worker that has not tried it yet.
        """
        ...

    async def commit(self, parts: Sequence[r.Commit]) -> Sequence[r.Committed | r.Refused]:
        """Append events, take what was consumed out of the inbox, put activities on their queues.

        Then forget: entries, old or just appended, are kept under the place that is named, a new one if they had one
        already, but are not read again; a ``seq`` that is not there is passed over. Last of all what is forgotten under
        a dropped place goes for good. ``last_seq`` does not change by any of it.

        Refused if the lease was lost. Ready again after release exactly if the wake counter has moved.
        """
        ...

    async def extend(self, leases: Sequence[r.Lease]) -> Sequence[r.Extended | r.Refused]:
        """Renew leases that are still held."""
        ...

    async def release(self, parts: Sequence[r.Release]) -> Sequence[r.Released | r.Refused]:
        """Give leases back so that others may go on at once."""
        ...

    async def claim_activities(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.ActivityTask]:
        """Lease activities whose time has come."""
        ...

    async def complete_activities(self, parts: Sequence[r.ActivityResult]) -> Sequence[r.Accepted | r.Refused]:
        """Tell instances what became of their activities; refused if the lease was lost or it is answered already."""
        ...

    async def read(self, execution_id: str, after: int = 0) -> Sequence[events.Event]:
        """Return the log of an execution beyond ``seq`` *after*, without what is forgotten: ``seq`` may have gaps."""
        ...

    async def wait(self, watch: r.Watch, until: int | None = None) -> bool:
        """Return True once what is watched for is there, False when the moment *until* has come before."""
        ...

    async def purge(self, execution_ids: Sequence[str]) -> Sequence[r.Purged | r.Missing | r.Unfinished]:
        """Remove ended executions without a trace."""
        ...

    def twin(self) -> "Store | None":
        """Open the same data once more, for use by another thread; None if it lives in this thread only."""
        ...
