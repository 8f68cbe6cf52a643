"""Every row of the table on the matchers alone."""

import pytest

from resurgam.core.location import Location
from vectors.edit_table import ROWS, Row
from vectors.history_notation import merged, recorded, told
from vectors.matcher_runner import Matching, Parted
from vectors.program_notation import program

NUMBERS = {
    *(1, 2, 3, 4, 5, 6, 8, 10, 12, 13, 14, 15, 16, 17, 19, 20, 21, 22, 24, 25, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37),
    *(38, 39, 41, 42, 43, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 59, 61),
}
"""All but 62, which is about reading a location; 42 and 57 are each about two runs."""


def test_every_row_is_there():
    assert {row.number for row in ROWS} == NUMBERS
    assert len(NUMBERS) == 50
    assert len(ROWS) == 52
    assert len({str(row) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_on_the_matchers(row: Row):
    history = recorded(row.history)
    assert told(history) == row.history
    if row.parts is not None:
        with pytest.raises(Parted) as parted:
            Matching(history).run(row.code)
        assert (parted.value.where, parted.value.field) == row.parts
        return

    matched = Matching(history).run(row.code)

    assert merged(" ".join(matched.written)) == merged(row.writes)
    assert tuple(matched.ignored) == row.ignores
    assert tuple(matched.answers) == tuple(note for note in row.notes if isinstance(note, int))


@pytest.mark.parametrize("row", [row for row in ROWS if row.parts is None and row.number != 43], ids=str)
def test_the_same_code_writes_nothing_the_second_time(row: Row):
    """Row 43 needs the mark that a step put in behind a gate has; see below."""
    after = recorded(merged(row.history, row.writes))

    matched = Matching(after).run(row.code)

    assert matched.written == []
    assert tuple(matched.answers) == tuple(note for note in row.notes if isinstance(note, int))


def test_a_gate_does_not_flip_because_of_the_mark_of_what_was_put_in_behind_it():
    (row,) = (row for row in ROWS if row.number == 43)
    first = Matching(recorded(row.history)).run(row.code)
    assert first.gates == {"1.1": 1}

    import msgspec

    after = recorded(merged(row.history, row.writes))
    marked = [
        msgspec.structs.replace(entry, gate=first.gates.get("1.1")) if entry.name == "x" else entry for entry in after
    ]

    assert Matching(marked).run(row.code).answers == [1]
    # Without the mark it would: that is what the mark is for.
    with pytest.raises(Parted):
        Matching(after).run(row.code)


def test_reading_a_location():
    """Row 62: the fourth step; below it what was put in first between its 0.3 and 0.4; below that, the sixth before all."""
    where = Location.parse("{4, 0.3.1, 0.6}")

    assert where.coordinates == ((4,), (0, 3, 1), (0, 6))
    assert str(where) == "{4, 0.3.1, 0.6}"
    assert where.last == (0, 6)
    assert where.scope == Location.parse("{4, 0.3.1}")
    assert Location.parse("{4, 0.3}") < where.scope < Location.parse("{4, 0.4}")
    assert Location.parse("{4, 0.3.1, 0.5}") < where < Location.parse("{4, 0.3.1, 1}")
    assert Location.from_key(where.key()) == where


def test_how_six_steps_come_before_the_first():
    """The places that row 62 reads are those that the matcher gives."""
    before = " ".join(f"x{number}@2" for number in range(1, 7))
    matched = Matching(recorded("1=a")).run(program(before, "a"))

    assert matched.written[-1] == "0.6=x6@2"
