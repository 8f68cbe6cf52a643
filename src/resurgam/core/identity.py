"""The ids of what a workflow's code asks for, derived from where it asks: nobody has to keep them.

An *entity* id belongs to one place of one run, so it is the same for every attempt of it and of its workflow; a run that
is another one, even of a reused workflow id, has others; and it is safe in a header and in a path. An *execution* id
belongs to one attempt.
"""

from resurgam.core.location import Location


def entity_of(run_id: str, location: Location, undone: int = 0) -> str:
    """Return the id of what is at this place of a run: an activity, a side effect, a step of a saga, a timer.

    What is done anew after its saga has taken it back, so many times, is another one to anybody outside.
    """
    entity_id = f"{run_id}/{str(location)[1:-1].replace(', ', '/')}"
    return f"{entity_id}~{undone}" if undone else entity_id


def execution_of(entity_id: str, attempt: int, of: int = 1) -> str:
    """Return the id of one attempt at it; the first is number 1. *of* is the attempt of its workflow that makes it."""
    return f"{entity_id}#{attempt}" if of == 1 else f"{entity_id}#{of}.{attempt}"
