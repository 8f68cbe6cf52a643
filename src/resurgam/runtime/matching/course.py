"""Whether anything of a run needs more than "take in the result of an activity, go on with the code"."""

import msgspec


class Course(msgspec.Struct, gc=False):
    """The course of one run: *plain* as long as its code waits for activities, timers and other instances alone.

    Each part of a run that needs attention at every tick, or a field of the next outcome, calls `leave` where it comes
    up: a listener, a race, a loop, an operation, a handler, a cancelled call, a request to another instance.
    An advance reads the one attribute instead of asking every part. `Execution` sets it again, once none of them is
    left at the end of an advance.
    """

    plain: bool = False

    def leave(self) -> None:
        """Note that something has come up."""
        self.plain = False
