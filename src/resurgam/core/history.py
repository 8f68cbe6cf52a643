"""An ordered view of the commands in a history, by scope."""

from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter

from resurgam.core import event as events
from resurgam.core.location import Coordinate, Location


class History:
    """The recorded commands of one execution, by scope, in the order of their locations.

    A snapshot: commands appended later are not added, because the code that made them is already running.
    """

    __slots__ = ("_scopes",)

    def __init__(self, log: Iterable[events.Event]) -> None:
        # By the coordinates of the scope: to make and to hash a location costs more, and all of a log pass here.
        scopes: defaultdict[tuple[Coordinate, ...], list[events.Command]] = defaultdict(list)
        for entry in log:
            if isinstance(entry, events.Command):
                scopes[entry.location.coordinates[:-1]].append(entry)
        for commands in scopes.values():
            commands.sort(key=_coordinates)
            _ = commands[0].location.last  # no command is at the root itself
        self._scopes = dict(scopes)

    def commands(self, scope: Location) -> tuple[events.Command, ...]:
        """Return the direct commands of *scope* in the order of their locations."""
        return tuple(self._scopes.get(scope.coordinates, ()))

    def last_child(self, parent: Location) -> int:
        """Return the highest first ordinate among the non-empty scopes below *parent*, 0 if there is none."""
        above, depth = parent.coordinates, len(parent.coordinates)
        below = (scope for scope in self._scopes if len(scope) > depth and scope[:depth] == above)
        return max((scope[depth][0] for scope in below), default=0)


_coordinates = attrgetter("location.coordinates")
