"""The SQL files of the functions: what each says of itself."""

from pathlib import Path

import pytest

from resurgam.store.postgres import functions

FILES = sorted((Path(functions.__file__).parent / "functions").glob("*.sql"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_verb_opens_with_its_tables_and_the_order_of_its_locks(file):
    head = file.read_text().partition("\nCREATE ")[0]
    named = [line.split()[1] for line in head.splitlines() if line.startswith(("-- tables: ", "-- locks: "))]
    assert named == ["tables:", "locks:"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_verb_is_defined_in_the_file_of_its_name(file):
    assert f"CREATE FUNCTION {{schema}}.{file.stem}_{{code}}(" in file.read_text()
