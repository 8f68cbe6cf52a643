"""Rows of the tables as the values that cross the seam."""

import sqlite3
from contextlib import closing

import pytest

from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.core.state import Status
from resurgam.store.encoding import encode
from resurgam.store.sqlite.rows import instance_of, status_of, unpack
from resurgam.store.sqlite.statements import migrations, queries

PARENT = events.Parent(entity_id="p", run_id="pr", execution_id="pe", location=Location.parse("{2}"), key="k")


ODD = '"quoted" \\ \n \x00 \x1f \u2028 é \N{GRINNING FACE}'


@pytest.fixture
def connection():
    """Return a file with one instance in which every column has a value of its own."""
    own = {
        "status": "failed",
        "paused": None,
        "tags": '{"a":"b"}',
        "parent": encode(PARENT),
        "signal_schemas": '{"go":{}}',
    }
    with closing(sqlite3.connect(":memory:")) as opened:
        for step in migrations():
            opened.executescript(step)
        opened.row_factory = sqlite3.Row
        columns = opened.execute("PRAGMA table_info(instances)").fetchall()
        values = {
            column["name"]: column["cid"] + 2**60 if column["type"] == "INTEGER" else f"{ODD} {column['name']}"
            for column in columns
        } | own
        names = ", ".join(values)
        marks = ", ".join(f":{name}" for name in values)
        opened.execute(f"INSERT INTO instances ({names}) VALUES ({marks})", values)
        yield opened


@pytest.fixture
def row(connection):
    """Return the row of the instance, with another column behind its own."""
    return connection.execute("SELECT instances.*, 5 AS beside FROM instances").fetchone()


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


@pytest.mark.parametrize(
    "change", ["closed_at = NULL", "paused = 'tree'", "tags = '{}'", "parent = NULL, failure = NULL"]
)
def test_a_packed_instance_is_the_one_that_is_read_by_columns(connection, change):
    connection.execute(f"UPDATE instances SET {change}")
    row = connection.execute("SELECT * FROM instances").fetchone()
    for ref, letter in enumerate(["first", ODD]):
        columns = "execution_id, ref, queue, request, visible_at, dead_letter"
        connection.execute(
            f"INSERT INTO activities ({columns}) VALUES (?, ?, 'q', '{{}}', 1, ?)", (row["execution_id"], ref, letter)
        )
    [shown] = connection.execute(queries()["shown_newest"], {"entity_id": row["entity_id"]})

    assert unpack(*shown) == instance_of(row, ("first", ODD))
    assert unpack(shown[0]) == instance_of(row)


def test_the_status_of_another_version_is_refused_as_a_value_of_no_enum_is():
    assert [status_of(status.value) for status in Status] == list(Status)
    with pytest.raises(ValueError, match="'hibernating' is not a valid Status"):
        status_of("hibernating")
