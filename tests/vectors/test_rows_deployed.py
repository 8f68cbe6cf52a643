"""Every row of the table on SQLite: the old code is run by an engine, then the new code by another on the same file."""

import pytest

from vectors.deployments import World, found
from vectors.edit_table import ROWS, Row
from vectors.history_notation import merged, place
from vectors.player import player
from vectors.program_notation import Program


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Divergences are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


async def brought_there(world: World, row: Row) -> None:
    """Run the deployments of the past, or take in the history that none of them can have written."""
    if row.history and not row.past:
        await world.adopt(row.history)
    for calls in row.past:
        done = await world.deploy(calls, advance=row.advance)
        assert done.status == "running"
        assert done.error is None
    if row.past:
        assert done.history == row.history


@pytest.mark.parametrize("row", [row for row in ROWS if row.parts is None], ids=str)
async def test_a_row_that_fits(world: World, row: Row):
    await brought_there(world, row)
    before = dict(world.ran)

    done = await world.deploy(row.code, signal=row.signal, advance=row.advance)
    assert (done.status, done.error) == ("running", None)
    assert done.written == merged(row.writes)
    assert done.history == merged(row.history, row.writes)
    assert_ran(world, before, row.writes)

    again = await world.deploy(row.code, open_end=False)
    assert (again.status, again.error) == ("completed", None)
    assert again.written == ""
    assert tuple(again.result) == row.notes
    assert_ran(world, before, row.writes)


def assert_ran(world: World, before: dict[str, int], writes: str) -> None:
    """Each activity that was written ran once; no other did."""
    expected = dict(before)
    for word in writes.split():
        name = word.partition("=")[2].partition("@")[0]
        if not name.startswith("~"):
            expected[name] = expected.get(name, 0) + 1
    assert dict(world.ran) == expected


@pytest.mark.parametrize("row", [row for row in ROWS if row.parts is not None], ids=str)
async def test_a_row_that_parts(world: World, row: Row):
    """Nothing is written but the diagnosis, nothing is run, and the code of before takes the run up again."""
    await brought_there(world, row)
    before, past = dict(world.ran), list(world.log)

    parted = await world.deploy(row.code, open_end=False, signal=row.signal)

    assert parted.status == "diverged"
    assert parted.written == ""
    assert [entry.type for entry in parted.log[len(past) :] if entry.type != "signal_received"] == ["workflow_diverged"]
    assert dict(world.ran) == before
    error = await found(player(row.code), past)
    assert error is not None
    assert (place(error.location), error.field) == row.parts
    assert f"{type(error).__name__}: {error}" == parted.error

    back: Program = row.past[-1]
    done = await world.deploy(back, open_end=False, advance=100)
    assert (done.status, done.written) == ("completed", "")
    assert dict(world.ran) == before
