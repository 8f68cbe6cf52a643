"""Named programs, one for each primitive of asyncio, for each verb of the context, and for the nasty combinations.

Each is a small workflow that notes down what happens as it happens, so that any difference in order shows in its
result. `MESSAGES` holds the messages that are sent to it, `EXPECTED` the result that does not depend on the order of
events, `FAILING` the programs that end with an error, and `BOUND_TO_MINOR` those whose history another minor version of
Python cannot replay, with the reason.
"""

from support.programs import sharing, verbs, waiting
from support.programs.tables import BOUND_TO_MINOR, EXPECTED, FAILING, MESSAGES, PROGRAMS, registry

__all__ = [
    "BOUND_TO_MINOR",
    "EXPECTED",
    "FAILING",
    "MESSAGES",
    "PROGRAMS",
    "registry",
    "sharing",
    "verbs",
    "waiting",
]
