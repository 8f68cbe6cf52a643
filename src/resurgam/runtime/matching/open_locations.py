"""The locations of an execution at which something is under way."""

from collections.abc import Iterator

from resurgam.core.location import Location
from resurgam.runtime.matching.log import outstanding
from resurgam.runtime.matching.recorder import Recorder


def open_locations(recorder: Recorder) -> Iterator[Location]:
    """Return the locations of open calls and of scopes that have not ended."""
    yield from (command.location for command in recorder.pending.commands())
    yield from (task.scope.location for task in recorder.loop.tasks)
    # Calls that the code no longer makes are answered too: removed calls, items that a map has lost.
    yield from (command.location for command in outstanding(recorder.log.state))


def is_quiet_below(recorder: Recorder, location: Location) -> bool:
    """Whether nothing is under way below a location."""
    depth = len(location.coordinates)
    return not any(location.contains(at) and len(at.coordinates) > depth for at in open_locations(recorder))
