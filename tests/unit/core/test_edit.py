"""Edits are printed as code that can be pasted."""

import pytest

from resurgam.core.edit import Insert
from resurgam.core.location import ROOT


@pytest.mark.parametrize(
    ("verb", "name", "written"),
    [
        ("activity", "charge", "ctx.v(2).activity(charge, ...)"),
        ("activity", "charge-card", "ctx.v(2).activity('charge-card', ...)"),
        ("run", "roll", "ctx.v(2).run(roll, ...)"),
        ("sleep", None, "ctx.v(2).sleep(...)"),
        ("set", "stage", "ctx.v(2).set('stage', ...)"),
        ("promise", "signature", "ctx.v(2).promise('signature', ...)"),
        ("resolve", "pr-1/a", "ctx.v(2).resolve('pr-1/a', ...)"),
        ("signal", "approve", "ctx.v(2).signal(..., 'approve')"),
    ],
)
def test_an_inserted_call_is_valid_python(verb, name, written):
    edit = Insert(scope=ROOT, call=0, version=2, verb=verb, name=name, source="shop.py:3")
    compile(written, "remedy", "eval")

    assert str(edit) == f"write {written} at shop.py:3"
