"""Dead letters: instances and activities that are no longer handed out, until they are revived."""

from resurgam.store import records as r
from resurgam.store.sqlite.covered import lease_alone
from resurgam.store.sqlite.instances import find
from resurgam.store.sqlite.transaction import Transaction


def mark_instance_dead(t: Transaction, execution_id: str, reason: str) -> None:
    """Stop handing out an instance."""
    lease_alone(t, execution_id)
    t.session.execute("mark_instance_dead", execution_id=execution_id, reason=reason)
    t.changes.touched.add(execution_id)


def mark_activity_dead(t: Transaction, execution_id: str, ref: int, reason: str) -> None:
    """Stop handing out an activity."""
    t.session.execute("mark_activity_dead", execution_id=execution_id, ref=ref, reason=reason)
    t.changes.touched.add(execution_id)


def undecodable(what: str, error: ValueError) -> str:
    """Return the reason of a dead letter that this version cannot decode."""
    reason = f"{what} cannot be decoded by this version of Resurgam: {error}"
    return f"{reason}; start workers of the version that wrote it, then retry the run"


def revive(t: Transaction, execution: r.Addressed) -> r.Revived | r.Missing:
    """Hand out again an instance that is a dead letter or parked, and its activities that are dead letters."""
    execution_id = execution.execution_id
    if find(t.session, execution_id) is None:
        return r.Missing()
    t.changes.work = True
    count = t.session.execute("revive_instance", execution_id=execution_id, ready_at=t.ready_at())
    if count:
        t.session.execute("forget_tries", execution_id=execution_id)
    return r.Revived(count=count + t.session.execute("revive_activities", execution_id=execution_id))
