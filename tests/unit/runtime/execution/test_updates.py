"""Updates wait for their handlers only while an open call is settled without a further message."""

import pytest

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS, CommandKind
from resurgam.core.location import ROOT
from resurgam.runtime.execution.updates import goes_on

FIELDS = {"name": "n", "queue": "q", "names": ("n",), "entity_id": "e", "run_id": "r", "promise_id": "p", "id": "i"}
ANSWERED = [kind for kind in COMMANDS.values() if kind.answers]


def opened(kind: CommandKind, deadline: int | None) -> dict[int, events.Command]:
    known = set(kind.event.__struct_fields__)
    fields = {name: value for name, value in FIELDS.items() if name in known}
    if "deadline" in known:
        fields["deadline"] = deadline
    if "size" in known:
        fields["size"] = 1
    return {2: kind.event(seq=2, location=ROOT, command="c", **fields)}


@pytest.mark.parametrize("kind", ANSWERED, ids=lambda kind: kind.tag)
def test_a_call_keeps_a_workflow_going_if_work_or_a_deadline_settles_it(kind):
    assert goes_on(opened(kind, deadline=5)) == (kind.answered_by != "code")
    if kind.answered_by == "message":
        assert not goes_on(opened(kind, deadline=None))


def test_without_open_calls_a_workflow_waits_for_messages():
    assert not goes_on({})
