"""Edits of the code that a rehearsal tries out on a history, and their effects."""

from collections.abc import Mapping, Sequence

import msgspec

from resurgam.core import event as events
from resurgam.core.edit import Edit
from resurgam.core.location import Location


class Trial(msgspec.Struct):
    """Edits that a rehearsal applies to the code's calls, and what they did.

    *edits* are found by the number of a call in its scope, by the line of a call, or by the end of a scope. *taken_out*
    are the commands that they skipped as removed, *put_back* the version checks that they inserted by name;
    *asked_twice* if the code still makes one of those checks itself.
    """

    edits: Mapping[object, Sequence[Edit]] = msgspec.field(default_factory=dict)
    taken_out: list[events.Command] = msgspec.field(default_factory=list)
    put_back: set[tuple[Location, str]] = msgspec.field(default_factory=set)
    asked_twice: bool = False
