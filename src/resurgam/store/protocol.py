"""The seam: `Store`, thirteen verbs that are each a whole intention, and the protocols of its parts beside it.

Every verb takes a batch and answers each part by itself, in order: one part that is refused never holds up another.
A part is applied whole or not at all. Nothing is raised for a part; `StoreError` means that the store as a whole could
not do it, and then nothing is known to have been done.
"""

from collections.abc import Sequence
from typing import Protocol

from resurgam.core import event as events
from resurgam.store import records as r


class Inspector(Protocol):
    """Read what is stored, without changing it."""

    async def get(
        self, entity_id: str, run_id: str | None = None, *, execution_id: str | None = None
    ) -> r.Instance | None:
        """Return the newest execution of an entity, or the newest of a run, or the one with this id."""
        ...

    async def list(self, query: r.Query) -> r.Page:
        """Return a page of instances, newest first."""
        ...

    async def ended(self, query: r.EndedQuery) -> Sequence[r.Instance]:
        """Return complete executions, in the order in which they ended."""
        ...

    async def history(
        self, execution: r.Addressed, last: int | None = None, *, forgotten: bool = False
    ) -> Sequence[events.Event]:
        """Return the log of an execution, or its *last* entries; empty if there is none.

        Forgotten entries are left out, unless *forgotten* asks for them; they then stand at their ``seq``.
        """
        ...

    async def open_work(self, execution: r.Addressed) -> r.OpenWork | None:
        """Return the open activities, the inbox and the lease of an execution, at one moment; None if there is none."""
        ...

    async def promise(self, to: r.Delivery) -> r.HeldPromise | None:
        """Return the promise that a delivery is addressed to, by its id or its name, open or not; None if there is none."""
        ...

    async def stats(self) -> r.Stats:
        """Return the counts."""
        ...

    async def messages(self, topic: str, after: int | None = None) -> r.Messages:
        """Return the messages on a topic after the one with that number; None: only the newest number.

        Messages are kept for a minute. A subscriber that comes later misses them.
        """
        ...


class OpenInspector(Inspector, Protocol):
    """An inspector that was opened by itself, without a store."""

    async def close(self) -> None:
        """Release the connection."""
        ...


class Queries(Protocol):
    """Queries for workers that have the code of a workflow, from clients that do not."""

    async def submit(self, parts: Sequence[r.QueryTask]) -> Sequence[r.Submitted | r.Missing]:
        """Offer queries to the workers that serve their queue, whatever the status of the execution.

        Submitting the same ``query_id`` again changes nothing.
        """
        ...

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.QueryTask]:
        """Lease queries that are not leased to another worker; those past their deadline are deleted."""
        ...

    async def complete(self, parts: Sequence[r.QueryResult]) -> None:
        """Keep the first result of each query; later ones, and those of unknown queries, are ignored."""
        ...

    async def result(self, query_id: str) -> r.QueryResult | None:
        """Return the result of a query; None if there is none yet, or the query is past its deadline."""
        ...


class Transfer(Protocol):
    """Move executions between stores, as values."""

    async def copies(self, entity_id: str, run_id: str | None = None) -> Sequence[r.Copy]:
        """Return everything that is kept of an entity's executions, or of one run's, oldest first, at one moment."""
        ...

    async def adopt(self, parts: Sequence[r.Adoption]) -> Sequence[r.Adopted | r.Exists]:
        """Take in executions from another store, without their leases, by the rules of `adoption`.

        They are ready to be claimed, unless they are complete; activities keep their attempt and their moment.
        """
        ...


class Values(Protocol):
    """Small values by key, shared by all processes that open the store. Moments are those of the store's clock."""

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if there is none, or it has expired."""
        ...

    async def put(self, key: str, value: bytes, *, expires_at: int | None = None) -> None:
        """Store a value, in place of the one that is there; None: it never expires.

        A value is not returned from the moment *expires_at* on. The store deletes expired values in time, at the latest
        when others are put.
        """
        ...

    async def put_if_absent(self, key: str, value: bytes, *, expires_at: int | None = None) -> bytes:
        """Store a value unless the key has one; return the one that is there now.

        Of several callers at the same time exactly one stores its value, and all of them return it.
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete the value of a key, if there is one."""
        ...


class Feed(Protocol):
    """The events of all executions, in the order in which they were committed.

    The feed has one or more partitions; an entity belongs to one of them. Within a partition the order is total and never
    changes, and each execution's events are in the order of ``seq``. A cursor names a position in every partition. It is
    opaque, belongs to one store, and stays valid for ever.

    A reader that continues at the cursor of the last page gets every event once: no event appears behind a cursor that
    was returned, with any number of writers and processes. A store whose transactions overlap therefore returns nothing
    that is newer than its oldest open transaction.

    Forgotten events stay in the feed. Events that were dropped, and those of purged executions, are gone: a reader that
    has not come so far misses them, and is not told. An adopted execution enters the feed with all its events when it is
    adopted.
    """

    async def now(self) -> str:
        """Return the cursor after everything that is committed."""
        ...

    async def read(self, query: r.FeedQuery) -> r.FeedPage:
        """Return events after a cursor; `Store.wait` with `FeedGrown` waits for more.

        A page may have fewer events than the limit, or none, though *more* is set: a store need not read far for events
        that fit.
        """
        ...


class Workers(Protocol):
    """The workers that serve the store, each known until it stops or was not seen for too long."""

    async def announce(self, worker: r.Announcement, ttl: int) -> Sequence[r.LiveWorker]:
        """Register a worker, or renew it, for *ttl* milliseconds; return all live workers, as `list` does."""
        ...

    async def remove(self, worker_id: str) -> None:
        """Remove a worker that has stopped; an unknown one is ignored."""
        ...

    async def list(self) -> Sequence[r.LiveWorker]:
        """Return the live workers, in the order in which they started."""
        ...


class Store(Protocol):
    """Keep instances, their inboxes and their activities."""

    @property
    def inspector(self) -> Inspector:
        """The read side."""
        ...

    @property
    def queries(self) -> Queries:
        """The queries that wait for a worker."""
        ...

    @property
    def transfer(self) -> Transfer:
        """The way in and out for whole executions."""
        ...

    @property
    def feed(self) -> Feed:
        """The events of all executions."""
        ...

    @property
    def workers(self) -> Workers:
        """The workers that serve the store."""
        ...

    @property
    def values(self) -> Values:
        """Small values by key."""
        ...

    async def create(self, parts: Sequence[r.Creation]) -> Sequence[r.Created | r.Exists]:
        """Begin executions; an id that has an open one already is left alone.

        One that is put off (`state.scheduled`) has status ``scheduled`` and is offered when its ``begins_at`` has come.
        """
        ...

    async def deliver(self, parts: Sequence[r.Delivery]) -> Sequence[r.Delivered | r.Missing | r.Ended | r.Settled]:
        """Put events into inboxes and make their instances ready; one that is held is made ready by its commit.

        Some do more, at once:

        - `WorkflowTerminated` goes straight into the log and ends the instance, whoever holds it;
        - `WorkflowPaused` halts it: it is not offered, nor are its activities, until `WorkflowResumed`. Each changes
          nothing if that is so already; one that is paused alone can still be paused with its tree. Whoever holds the
          instance hears of it by its inbox;
        - `WorkflowBegun` takes it out of ``scheduled``, and changes nothing if it is not in it; `CancelRequested` does
          too, so that it ends without having begun;
        - with a promise, the settlement is put into the inbox of the execution that waits for it, only once, with the
          id of the promise. Of several open ones with one name the oldest is meant.
        """
        ...

    async def revive(self, executions: Sequence[r.Addressed]) -> Sequence[r.Revived | r.Missing]:
        """Hand out again what was put aside: dead instances and activities, and parked runs to whoever tried them."""
        ...

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.Claim]:
        """Lease instances that are ready, whose deadline has come, or whose lease has run out.

        A parked instance is offered once to each worker that has not tried it yet; a paused one to nobody; one that is
        ``scheduled`` not before its moment.
        """
        ...

    async def commit(self, parts: Sequence[r.Commit]) -> Sequence[r.Committed | r.Refused]:
        """Append events, take what was consumed out of the inbox, put activities on their queues.

        Then forget: entries, old or just appended, are kept under the location that is named, a new one if they had one
        already, but are not read again; a ``seq`` that is not there is passed over. Last of all what is forgotten under
        a dropped location goes for good. ``last_seq`` does not change by any of it.

        Then the rest of the outcome, in the order that `Outcome` names. What children and messages put into the own inbox
        counts like anything else that enters it. A child of an instance that is paused with its tree is born paused, and
        a successor is paused as the one before it was. A promise that is opened again, by a later attempt, is open
        unless its settlement waits in the inbox; one that is closed counts as settled. An execution that ends keeps its
        promises, which can no longer be settled, unless the next attempt of its run takes them over.

        Refused if the lease was lost, or if the outcome is *strict* and news overtakes it. Ready again after
        release exactly if the wake counter has moved.
        """
        ...

    async def extend(self, leases: Sequence[r.Lease]) -> Sequence[r.Extended | r.Refused]:
        """Renew leases that are still held; what an attempt has told is kept for the next one."""
        ...

    async def release(self, parts: Sequence[r.Release]) -> Sequence[r.Released | r.Refused]:
        """Give leases back so that others may go on at once; a *final* release puts the work aside instead."""
        ...

    async def claim_activities(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.ActivityTask]:
        """Lease activities whose time has come."""
        ...

    async def complete_activities(self, parts: Sequence[r.ActivityResult]) -> Sequence[r.Accepted | r.Refused]:
        """Tell instances what became of their activities; refused if the lease was lost or it is answered already."""
        ...

    async def read(self, execution: r.Addressed, after: int = 0) -> Sequence[events.Event]:
        """Return the log of an execution beyond ``seq`` *after*, without what is forgotten: ``seq`` may have gaps."""
        ...

    async def wait(self, watch: r.Watch, until: int | None = None) -> bool:
        """Return True once what is watched for is there, False when the moment *until* has come before."""
        ...

    async def purge(self, executions: Sequence[r.Addressed]) -> Sequence[r.Purged | r.Missing | r.Unfinished]:
        """Remove ended executions without a trace.

        The caller decides whether another execution, or an activity that is under way, still needs one (`retention`).
        """
        ...

    async def close(self) -> None:
        """Refuse all further use, and raise `StoreError` in calls that still wait."""
        ...
