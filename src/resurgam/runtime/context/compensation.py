"""The workflow that takes back a step of a saga by hand, when the saga itself is long over.

Every worker knows it. It is begun with a run id such that its one activity has the same id, and so the same idempotency
key, as the compensation that the saga would have run, or has tried to.
"""

from typing import Any, Final

from resurgam.core.identity import entity_of
from resurgam.core.location import Location
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.definition import Workflow, WorkflowOptions, activity_of

NAME: Final = "resurgam.compensation"


async def _compensate(ctx: Context, undo: str, result: Any) -> None:
    await ctx.activity(activity_of(undo), result)


COMPENSATION: Final[Workflow[..., None]] = Workflow(NAME, _compensate, None, settings=WorkflowOptions())


def run_id_of(run_id: str, step: Location) -> str:
    """Return the run id of the compensation of a step: the place below which the saga itself would take it back."""
    return entity_of(run_id, Location(*step.coordinates, (2,)))
