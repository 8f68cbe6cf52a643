"""Rows of the tables as the values that cross the seam."""

import sqlite3
from contextlib import closing

import pytest

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.state import Status
from resurgam.store.encoding import encode
from resurgam.store.sqlite.rows import instance_of, status_of
from resurgam.store.sqlite.statements import migrations

PARENT = events.Parent(entity_id="p", run_id="pr", execution_id="pe", location=Location.parse("{2}"), key="k")


@pytest.fixture
def row():
    """Return a row of an instance in which every column has a value of its own, with another column behind them."""
    own = {
        "status": "failed",
        "paused": None,
        "tags": '{"a":"b"}',
        "parent": encode(PARENT),
        "signal_schemas": '{"go":{}}',
    }
    with closing(sqlite3.connect(":memory:")) as connection:
        for step in migrations():
            connection.executescript(step)
        connection.row_factory = sqlite3.Row
        columns = connection.execute("PRAGMA table_info(instances)").fetchall()
        values = {
            column["name"]: column["cid"] + 100 if column["type"] == "INTEGER" else f"the {column['name']}"
            for column in columns
        } | own
        names = ", ".join(values)
        marks = ", ".join(f":{name}" for name in values)
        connection.execute(f"INSERT INTO instances ({names}) VALUES ({marks})", values)
        yield connection.execute("SELECT instances.*, 5 AS beside FROM instances").fetchone()


def test_each_field_of_an_instance_is_the_column_of_its_name(row):
    found = instance_of(row, ("dead",))
    read = {name: getattr(found, name) for name in found.__struct_fields__}
    assert read.pop("activity_dead_letters") == ("dead",)
    assert read.pop("parent") == PARENT
    assert read.pop("tags") == {"a": "b"}
    assert {name: bytes(schema) for name, schema in read.pop("signal_schemas").items()} == {"go": b"{}"}
    assert read.pop("deactivated") is True
    assert read.pop("status") is Status.FAILED
    assert read == {name: row[name] for name in read}


def test_the_status_of_another_version_is_refused_as_a_value_of_no_enum_is():
    assert [status_of(status.value) for status in Status] == list(Status)
    with pytest.raises(ValueError, match="'hibernating' is not a valid Status"):
        status_of("hibernating")
