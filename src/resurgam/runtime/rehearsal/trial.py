"""Edits of the code that are being tried out on a history, and what they did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from resurgam.core import event as events
from resurgam.core.commands import COMMANDS_BY_TAG, Intent
from resurgam.core.edit import Check, Edit, Insert, Remove
from resurgam.core.location import Location
from resurgam.runtime.loop.scope import Scope
from resurgam.runtime.matching.divergence import source

if TYPE_CHECKING:
    from resurgam.runtime.matching.recorder import Recorder


@dataclass(slots=True)
class Trial:
    """Edits that are being tried out, and what they did.

    *edits* are found by the number of a call in its scope, by the line of a call, or by the end of a scope. *taken_out* is
    what they took for removed, *put_back* the checks that they put back by name, *asked_twice* if the code still asks for
    one of those itself.
    """

    edits: Mapping[object, Sequence[Edit]] = field(default_factory=dict)
    taken_out: list[events.Command] = field(default_factory=list)
    put_back: set[tuple[Location, str]] = field(default_factory=set)
    asked_twice: bool = False


def edited(
    recorder: "Recorder", scope: Scope, step: int | None, call: tuple[str | None, str | None] | None
) -> int | None:
    """Do what the edits that are being tried out say of the next call; return the number it gives to ``ctx.v``.

    *call* is its verb and its name, None at the end of the strand. A line may make several calls, so an edit that goes by
    the line is of the one that it names.
    """
    place = recorder.past.code_place(scope.location)
    trial = recorder.trial
    numbered = trial.edits.get((place, scope.calls), ())
    for edit in (*numbered, *trial.edits.get(place if call is None else source(), ())):
        if isinstance(edit, Insert):
            step = edit.version if edit in numbered or (edit.verb, edit.name) == call else step
        elif isinstance(edit, Remove):
            skipped = recorder.skip(scope, Intent(COMMANDS_BY_TAG[edit.kind].event, edit.name, scope.version))
            trial.taken_out += () if skipped is None else recorder.past.at_or_below(skipped.location)
        elif isinstance(edit, Check):
            recorder.checked(scope, edit.version, edit.name)
            trial.put_back |= set() if edit.name is None else {(scope.location, edit.name)}
    return step
