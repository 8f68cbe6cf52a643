"""Find instances by their ids, and tag them."""

from collections.abc import Mapping

from resurgam.store import records as r
from resurgam.store.encoding import encode
from resurgam.store.sqlite.session import Row, Session


def find(session: Session, execution_id: str) -> Row | None:
    """Return the row of an execution."""
    rows = session.fetch("instance_by_execution", execution_id=execution_id)
    return rows[0] if rows else None


def newest(session: Session, entity_id: str) -> Row | None:
    """Return the row of the newest execution of an entity."""
    if not session.finds("entity_known", (entity_id,)):
        return None  # as at most starts: sqlite3 describes all columns even of no row
    rows = session.fetch("newest_execution", entity_id=entity_id)
    return rows[0] if rows else None


def tag(session: Session, instance: r.Instance) -> None:
    """Insert the tags of a new instance."""
    of = {"created_at": instance.created_at, "execution_id": instance.execution_id}
    rows = [{"name": name, "value": value, **of} for name, value in instance.tags.items()]
    session.execute_many("tag_instance", rows)


def change_tags(session: Session, execution_id: str, tags: Mapping[str, str]) -> None:
    """Give an instance these tags in place of its own."""
    session.execute("set_tags", execution_id=execution_id, tags=encode(tags))
    session.execute("purge_tags", execution_id=execution_id)
    rows = [{"name": name, "value": value, "execution_id": execution_id} for name, value in tags.items()]
    session.execute_many("add_tag", rows)
