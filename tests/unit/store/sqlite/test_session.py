"""Rows that are put off: whatever their number, all of them are written, in their order."""

from itertools import chain

import pytest

from resurgam.store.sqlite.connection import Database
from resurgam.store.sqlite.session import _BLOCK


@pytest.mark.parametrize("number", [1, 2, _BLOCK - 1, _BLOCK, _BLOCK + 1, 3 * _BLOCK + 5])
def test_rows_that_were_put_off_are_written_in_their_order(tmp_path, number):
    database = Database(tmp_path / "a.db")
    entries = [("x", seq, f'{{"n": {seq}}}') for seq in reversed(range(number))]
    activities = [("x", ref, "q", "{}", 1, 2, 1, "me") for ref in range(number)]
    written = []

    def work(session):
        session.append(list(chain.from_iterable(entries[:1])))
        session.append(list(chain.from_iterable(entries[1:])))
        session.put_off("schedule_activity", activities)
        session.write_rows()

    database.transact(work)
    database.trace(written.append, None)
    try:
        [*found] = database._reading.execute("SELECT execution_id, seq, body FROM events ORDER BY position")
        assert [tuple(row) for row in found] == entries
        columns = "execution_id, ref, queue, request, visible_at, available_at, deliveries, lease_owner"
        [*found] = database._reading.execute(f"SELECT {columns} FROM activities ORDER BY ref")
        assert [tuple(row) for row in found] == activities
        # Nothing is left for the next transaction.
        database.transact(lambda session: session.write_rows())
        assert written == ["BEGIN IMMEDIATE", "COMMIT"]
    finally:
        database.close()
