"""An ordered view of the commands in a history, by scope."""

from collections import defaultdict
from collections.abc import Iterable

from resurgam.core import event as events
from resurgam.core.location import Location


class History:
    """The recorded commands of one execution, by scope, in the order of their locations.

    A snapshot: commands appended later are not added, because the code that made them is already running.
    """

    __slots__ = ("_scopes",)

    def __init__(self, log: Iterable[events.Event]) -> None:
        self._scopes: defaultdict[Location, list[events.Command]] = defaultdict(list)
        for entry in log:
            if isinstance(entry, events.Command):
                self._scopes[entry.location.scope].append(entry)
        for commands in self._scopes.values():
            commands.sort(key=_location)

    def commands(self, scope: Location) -> tuple[events.Command, ...]:
        """Return the direct commands of *scope* in the order of their locations."""
        return tuple(self._scopes.get(scope, ()))

    def last_child(self, parent: Location) -> int:
        """Return the highest first ordinate among the non-empty scopes below *parent*, 0 if there is none."""
        depth = len(parent.coordinates)
        below = (scope for scope in self._scopes if len(scope.coordinates) > depth and parent.contains(scope))
        return max((scope.coordinates[depth][0] for scope in below), default=0)


def _location(command: events.Command) -> Location:
    return command.location
