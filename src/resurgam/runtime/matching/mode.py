"""How the code of an execution is being run: live, on replay, or in a rehearsal."""

from typing import ClassVar, Final, TypeAlias

import msgspec

from resurgam.runtime.matching.trial import Trial


class Live(msgspec.Struct, frozen=True):
    """The code runs beyond its history: new calls are recorded, and the world is asked for them."""

    replaying: ClassVar[bool] = False
    rehearsing: ClassVar[bool] = False


class Replaying(msgspec.Struct, frozen=True):
    """The code is brought to where its history ends: it has logged and warned before."""

    replaying: ClassVar[bool] = True
    rehearsing: ClassVar[bool] = False


class Rehearsing(msgspec.Struct, frozen=True):
    """The code runs on a throwaway coroutine: nothing is encoded, logged or asked of the world.

    *trial* holds the edits that are tried out. *unknown* stands in for values that no history holds, once the recorded
    entries are delivered.
    """

    replaying: ClassVar[bool] = True
    rehearsing: ClassVar[bool] = True

    trial: Trial = msgspec.field(default_factory=Trial)
    unknown: object | None = None


Mode: TypeAlias = Live | Replaying | Rehearsing

LIVE: Final = Live()
REPLAYING: Final = Replaying()
