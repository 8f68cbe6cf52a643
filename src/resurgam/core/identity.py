"""Ids derived from the location of a durable call, so that they need not be stored.

An *entity* id belongs to one location of one run: it is the same for every attempt of the activity and of its workflow,
and differs between runs, even under a reused workflow id. It is safe in a header and in a path. An *execution* id
belongs to one attempt.
"""

from hashlib import blake2b

from resurgam.core.location import Location


def entity_of(run_id: str, location: Location, undone: int = 0) -> str:
    """Return the entity id of a call at this location of a run: an activity, an operation, a saga step, a child.

    *undone* counts the compensations of the call's saga step: after each, the step is a new entity to the outside
    world.
    """
    match location.coordinates:
        case ((number,),):  # most calls are made by the workflow's own function, one after another
            entity_id = f"{run_id}/{number}"
        case _:
            entity_id = f"{run_id}/{str(location)[1:-1].replace(', ', '/')}"
    return f"{entity_id}~{undone}" if undone else entity_id


def execution_of(entity_id: str, attempt: int, workflow_attempt: int = 1) -> str:
    """Return the execution id of one attempt, counted from 1, in an attempt of its workflow."""
    return f"{entity_id}#{attempt}" if workflow_attempt == 1 else f"{entity_id}#{workflow_attempt}.{attempt}"


def route_of(entity_id: str) -> str:
    """Return four hex digits by which a store with partitions finds an entity: ``int(route, 16) % partitions``.

    Ids that clients hold, such as those of promises, begin with the route of their entity.
    """
    return blake2b(entity_id.encode(), digest_size=2).hexdigest()
