"""Leases on instances: how they are given out, run on and end."""

from collections.abc import Mapping, Sequence

import msgspec

from resurgam.store import records as r
from resurgam.store.protocol import REDELIVERIES
from resurgam.store.sqlite.activities import Activities
from resurgam.store.sqlite.rows import instance_of
from resurgam.store.sqlite.session import Row, claimable_instances
from resurgam.store.sqlite.writing import Undecodable, entry_of


class Claiming(Activities):
    """What verbs do to leases."""

    def claim(self, worker: str, queues: Sequence[str], limit: int) -> list[r.Claim]:
        """Lease instances that are ready, due, or left behind."""
        return self._claim(claimable_instances(self._session, worker, queues, limit, self._now))

    def _claim_at_once(self, execution_id: str, queue: str, offer: r.EagerOffer | None) -> r.Claim | None:
        """Lease what was made ready to the worker that offers itself, unless older work waits in its queue."""
        if offer is None or queue not in offer.queues:
            return None
        rows = self._session.all("claimable_at_once", execution_id=execution_id, worker=offer.worker, now=self._now)
        return next(iter(self._claim(rows)), None)

    def _claim(self, rows: Sequence[Row]) -> list[r.Claim]:
        alive = [row for row in rows if not self._is_dead(row)]
        inboxes = self._inboxes([row["execution_id"] for row in alive if row["wake"]])
        claims = [(row["place"], claim) for row in alive if (claim := self._claim_of(row, inboxes)) is not None]
        if not claims:
            return []
        self._session.many(
            "lease_instance", [{"place": place, "owner": self._owner, "until": self._until} for place, _ in claims]
        )
        self.changes.due(self._until)
        return [claim for _, claim in claims]

    def _inboxes(self, execution_ids: Sequence[str]) -> dict[str, list[Row]]:
        """Return the rows of some inboxes, by execution."""
        found: dict[str, list[Row]] = {}
        ids = msgspec.json.encode(execution_ids).decode()
        for row in self._session.all("inboxes", execution_ids=ids) if execution_ids else ():
            found.setdefault(row["execution_id"], []).append(row)
        return found

    def _claim_of(self, row: Row, inboxes: Mapping[str, Sequence[Row]]) -> r.Claim | None:
        """Return the claim of an instance; one that cannot be decoded becomes a dead letter, and there is no claim."""
        execution_id = row["execution_id"]
        try:
            inbox = tuple([entry_of(entry) for entry in inboxes.get(execution_id, ())])
            return r.Claim(instance=instance_of(row), epoch=row["epoch"] + 1, wake=row["wake"], inbox=inbox)
        except Undecodable as error:
            self._dead_letter(execution_id, error.what, error)
        except ValueError as error:
            self._dead_letter(execution_id, "its row", error)
        return None

    def _is_dead(self, row: Row) -> bool:
        """Put an instance aside that was handed out too often."""
        if row["deliveries"] < REDELIVERIES:
            return False
        dead = f"handed out {row['deliveries']} times without a commit{row['last_failure']}"
        self._session.do("bury_instance", execution_id=row["execution_id"], dead=dead)
        return True

    def extend(self, lease: r.Lease) -> r.Extended | r.Refused:
        """Renew a lease."""
        if lease.ref is not None:
            return self._extend_activity(lease)
        hit = self._session.all(
            "extend_instance", execution_id=lease.execution_id, epoch=lease.epoch, until=self._until
        )
        if not hit:
            return r.Refused(reason="the lease is lost")
        self.changes.due(self._until)
        news = self._news(lease.execution_id, lease.wake)
        if news is None:
            return r.Refused(reason="something in the inbox cannot be decoded")
        return r.Extended(wake=hit[0]["wake"], inbox=news)

    def release(self, part: r.Release) -> r.Released | r.Refused:
        """Give a lease back."""
        lease, undelivered = part.lease, int(part.failed is None)
        self.changes.work = True
        if lease.ref is not None:
            return self._release_activity(part, undelivered)
        failure = f"; the last error: {part.failed}" if part.failed else ""
        released = self._session.do(
            "release_instance",
            execution_id=lease.execution_id,
            epoch=lease.epoch,
            undelivered=undelivered,
            last_failure=failure,
            turn=self.turn(),
        )
        if released and part.final:
            self._session.do("bury_instance", execution_id=lease.execution_id, dead=part.failed)
        return r.Released() if released else r.Refused(reason="the lease is lost")

    def end_leases_of(self, owner: str) -> None:
        """End the leases of an owner that is dead."""
        self._session.do("end_instance_leases", owner=owner, now=self._now)
        self._session.do("end_activity_leases", owner=owner, now=self._now)
        self.changes.work = True
