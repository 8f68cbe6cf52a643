"""The seam: `Store`, fourteen verbs that are each a whole intention, and the protocols of its parts beside it.

**Parts.** Every verb takes a batch and answers each part by itself, in order: a refused part never holds up another. A
part is applied whole or not at all. Nothing is raised for a part; `StoreError` means that the store as a whole failed,
and then it is unknown what was done. Every part names its entity, and ids that are used without one begin with its
route (`core.identity.route_of`): a store with partitions knows the partition of a part without a look-up.

**Effects.** What a commit does to other instances (children, messages, settlements) and to topics is durable with the
commit. It arrives exactly once, in order for each pair of instances and for each instance and topic, and possibly after
the reply of the commit. Answers that the sender needs are entries of its inbox. Everything within the entity itself,
its successor included, is part of the commit.

**No single writer.** An entity has at most one open execution: a unique index, not a check before the insert. A
transaction locks all instances that it touches before it changes one, in one global order: that of their entity ids,
those that it creates included. A settlement that names only a promise takes its place by the entity of the promise,
which never changes and is looked up before the first lock is taken. What guards a commit (epoch, ``last_seq``, a strict
inbox) is checked under the locks. A strict commit guards its own inbox only.

**Decisions.** A verb decides as little as possible. The rules that remain are pure functions in `rules`.
"""

from collections.abc import Awaitable, Callable, Sequence
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

    async def dead_letters(self, cursor: str | None = None, limit: int = 100) -> r.Page:
        """Return executions, open or closed, that are dead letters or have activities that are, in an order of the store.

        A page may be short, or empty, though its cursor says that there are more. An execution may be on two pages.
        """
        ...

    async def history(
        self,
        execution: r.Addressed,
        last: int | None = None,
        *,
        forgotten: bool = False,
        after: int = 0,
        limit: int | None = None,
    ) -> Sequence[events.Event]:
        """Return the log of an execution, or its *last* entries; empty if there is none.

        Without *last*, return entries whose ``seq`` is greater than *after*, the first *limit* of them. Forgotten
        entries are left out, unless *forgotten* asks for them; they then stand at their ``seq``.
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

    async def messages(self, topic: str, after: str | None = None) -> r.Messages:
        """Return the messages on a topic after a cursor; None: only the cursor after everything that is there.

        The order of a topic never changes, and no message appears behind a cursor that was returned. Messages are kept
        for a minute. A subscriber that comes later misses them.
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
        """Take in executions from another store, without their leases, by the rules of `adoption`; one entity per part.

        They are ready to be claimed, unless they are complete; activities keep their attempt and their moment. An execution
        that is archived here gets back its log from a copy that has one.
        """
        ...

    async def remove(self, parts: Sequence[r.Removal]) -> Sequence[r.Removed | r.Changed]:
        """Delete executions that another store has adopted, with all that belongs to them; leases on them are lost.

        A part is refused if a new copy would differ from one that it has: nothing that came meanwhile is deleted.
        """
        ...

    async def reserve(self, parts: Sequence[r.Reservation]) -> Sequence[r.Reserved | r.Changed]:
        """Append the entry that says that a complete execution is being archived.

        Refused unless the execution is deactivated, its inbox is empty, its log is in the store, and the entry follows the
        last one. The entry enters the feed and ends waits for the log; it wakes no worker.
        """
        ...

    async def archive(self, parts: Sequence[r.Archival]) -> Sequence[r.Archived | r.Changed]:
        """Delete everything that an archive holds of complete executions, and keep their rows, with its URL.

        An archived execution is found and listed as before, and keeps the answer that it has sent to its parent. Its log and
        its events in the feed are gone, as are its promises. A part is refused as by `remove`, and if one of its executions is not complete.
        """
        ...

    async def flush(self) -> None:
        """Return when the effects of all commits so far have arrived, and those that followed from them."""
        ...

    async def scrub(self) -> None:
        """Delete the values that the store keeps for itself, which may be those of executions that were removed.

        Only a store that keeps the answers to calls, for callers that may have lost them, has any.
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

    The feed has one or more partitions; an entity belongs to one of them. Within a partition the order is total and
    never changes, and each execution's events are in the order of ``seq``. A cursor names a position in every
    partition. It is opaque, belongs to one store, and stays valid for ever.

    A reader that continues at the cursor of the last page gets every event once: no event appears behind a cursor that
    was returned, with any number of writers and processes. A store whose transactions overlap therefore returns nothing
    that is newer than its oldest open transaction.

    Forgotten events stay in the feed. Events that were dropped, and those of purged executions, are gone: a reader that
    has not come so far misses them, and is not told. An adopted execution enters the feed with all its events when it
    is adopted.
    """

    async def now(self) -> str:
        """Return the cursor after everything that `read` returns now."""
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

    def create(self, parts: Sequence[r.Creation]) -> Awaitable[Sequence[r.Created | r.Exists]]:
        """Create executions, unless the newest of the entity stands in the way (`rules.way_past`).

        One that starts later (`state.is_scheduled`) has status ``scheduled`` and is offered from its ``begins_at`` on.
        The commit of its first advance may come along (`Creation.first`).
        """
        ...

    def deliver(
        self, parts: Sequence[r.Delivery]
    ) -> Awaitable[Sequence[r.Delivered | r.Missing | r.Ended | r.Settled | r.Outdated]]:
        """Put events into inboxes and make the instances ready; a leased one, when its lease ends.

        Some events are applied at once:

        - `WorkflowTerminated` goes straight into the log and closes the instance, even if it is leased;
        - `WorkflowPaused` stops the offers of the instance and of its activities, until `WorkflowResumed`. A repeated one
          changes nothing, but a pause of the instance alone can be widened to its tree. Both enter the inbox;
        - `WorkflowBegun` and `CancelRequested` end the status ``scheduled``; `WorkflowBegun` changes nothing otherwise;
        - with a promise, the event settles it, once, and enters the inbox of the execution that holds it. Of several
          open promises with one name the oldest is settled.

        A delivery with schemas to an execution that has others (`Instance.signal_schemas`) is `Outdated`.
        """
        ...

    async def revive(self, executions: Sequence[r.Addressed]) -> Sequence[r.Revived | r.Missing]:
        """Offer dead letters again, instances and activities, and parked runs to the workers that tried them."""
        ...

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.Claim]:
        """Lease instances that are ready, whose deadline has come, or whose lease has expired.

        A parked instance is offered once to each worker that has not tried it. Paused instances are not offered, and
        ``scheduled`` ones not before their moment.
        """
        ...

    async def commit(self, parts: Sequence[r.Commit]) -> Sequence[r.Committed | r.Refused]:
        """Append events, consume inbox entries and queue activities; then apply the rest, in the order of `Outcome`.

        Forgotten entries, old or just appended, are kept under the location that is named, but no longer read; a
        ``seq`` that is not there is skipped. Dropped locations delete what is forgotten below them. ``last_seq`` does
        not change.

        A child of an instance that is paused with its tree starts paused, and a successor is paused like its
        predecessor. A promise that a later attempt opens again is open unless its settlement waits in the inbox. A
        closed execution keeps its promises, which can no longer be settled, unless the next attempt takes them over.

        Refused if the lease is lost, or if the outcome is *strict* and unseen entries overtake it (`rules.overtakes`).
        After release the instance is ready again if and only if the wake counter has moved.

        Activities that the lease on the instance covers (`Commit.covers`) share its fate. If it is lost, or released
        without a commit, they are back on their queues, each as delivered once. If a commit, a termination or a dead
        letter ends it while they run, they stay leased to the same worker, with epoch 0. A renewal that names one,
        with the details of a heartbeat, gives it a lease of its own with epoch 0.
        """
        ...

    def submit(self, part: r.Commit, done: Callable[[r.Committed | r.Refused | Exception], None]) -> None:
        """Commit one outcome as `commit` does; *done* is called with the answer, or with the error of the store.

        This is the hot path: no future and no task. *done* is called outside of any task, perhaps before this returns.
        """
        ...

    async def extend(self, leases: Sequence[r.Lease]) -> Sequence[r.Extended | r.Refused]:
        """Renew leases that are still held; the details of a heartbeat are kept for the next attempt."""
        ...

    async def release(self, parts: Sequence[r.Release]) -> Sequence[r.Released | r.Refused]:
        """End leases, so that the work is offered at once; a *final* release makes it a dead letter instead."""
        ...

    async def claim_activities(self, worker: str, queues: Sequence[str], limit: int) -> Sequence[r.ActivityTask]:
        """Lease activities whose time has come.

        The claim of one with a prepared entry (`ActivityRequest.starts`) puts that into the inbox, with the number of this
        delivery as its attempt. It does not wake the instance, raises no counter, and ends no wait: it is returned
        together with the next entry that does, behind all that came before it, and by claims after the first such entry.
        """
        ...

    async def complete_activities(self, parts: Sequence[r.ActivityResult]) -> Sequence[r.Accepted | r.Refused]:
        """Put results of activities into inboxes; refused if the lease is lost or the activity is answered already."""
        ...

    async def read(self, execution: r.Addressed, after: int = 0) -> Sequence[events.Event]:
        """Return the log of an execution after ``seq`` *after*; forgotten entries leave gaps."""
        ...

    async def wait(self, watch: r.Watch, until: int | None = None) -> bool:
        """Return True once the watch is fulfilled, False if the moment *until* comes first.

        What another store has done may become known a little later: a wait for it lasts until then, and is never in vain.
        """
        ...

    async def purge(self, executions: Sequence[r.Addressed]) -> Sequence[r.Purged | r.Missing | r.Unfinished]:
        """Delete closed executions, with all that belongs to them.

        The caller decides whether another execution or a running activity still needs one (`retention`).
        """
        ...

    async def close(self) -> None:
        """Refuse all further use, and raise `StoreError` in calls that still wait."""
        ...
