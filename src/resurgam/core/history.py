"""An ordered, scope-aware view of the commands that a history holds."""

from collections import defaultdict
from collections.abc import Iterable

from resurgam.core import event as events
from resurgam.core.location import Location


class History:
    """The recorded commands of one execution, each scope's in the order of their places.

    A snapshot: what a run appends later is not added, because the code that asked for it has already had its answer.
    """

    __slots__ = ("_scopes",)

    def __init__(self, log: Iterable[events.Event]) -> None:
        self._scopes: defaultdict[Location, list[events.Command]] = defaultdict(list)
        for entry in log:
            if isinstance(entry, events.Command):
                self._scopes[entry.location.scope].append(entry)
        for commands in self._scopes.values():
            commands.sort(key=_place)

    def commands(self, scope: Location) -> tuple[events.Command, ...]:
        """Return the direct commands of *scope* in the order of their places."""
        return tuple(self._scopes.get(scope, ()))

    def last_child(self, place: Location) -> int:
        """Return the highest head of a scope below *place* that holds commands, 0 if there is none."""
        depth = len(place.coordinates)
        below = (scope for scope in self._scopes if len(scope.coordinates) > depth and place.contains(scope))
        return max((scope.coordinates[depth][0] for scope in below), default=0)


def _place(command: events.Command) -> Location:
    return command.location
