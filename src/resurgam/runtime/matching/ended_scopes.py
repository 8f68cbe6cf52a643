"""Ended scopes of an execution whose recorded commands are not all matched."""

import msgspec

from resurgam.core.location import Location
from resurgam.runtime.loop.scope import Scope
from resurgam.runtime.loop.verdict import Verdict
from resurgam.runtime.matching.divergence import latent


class EndedScopes(msgspec.Struct, eq=False):
    """Scopes whose code has ended while recorded commands of theirs are unmatched."""

    returned: tuple[Scope, ...] = ()
    _cut: tuple[Location, ...] = ()

    def add_returned(self, scope: Scope) -> None:
        """Note that the code of a scope has returned.

        This is no divergence yet: a callback that the code left behind may still make the recorded calls.
        """
        if scope.matching == "location" and scope.cursor.step is not None:
            self.returned += (scope,)

    def add_cut(self, scope: Scope) -> None:
        """Note that the code of a scope was cancelled or has failed; recorded answers beyond that point have no receiver."""
        if scope.cursor.next is not None:
            self._cut += (scope.location,)

    def is_cut_off(self, location: Location) -> bool:
        """Whether a location belongs to a scope that was cut off before it reached that location."""
        return any(cut.contains(location) for cut in self._cut)

    def check(self, verdict: Verdict) -> None:
        """Diverge if the history of a returned scope continues, once every entry is delivered."""
        if not self.returned or verdict.reason is not None:
            return
        for scope in self.returned:
            left = scope.cursor.step
            if left is not None:
                verdict.decide(latent(left, scope))
                return
