"""The built-in workflow for manual compensation of a saga step, after the saga has ended.

Every worker registers it. Its run id is chosen so that its only activity has the same id, and so the same idempotency
key, as the compensation that the saga itself would have run, or has tried.
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
    """Return the run id for the compensation of a step: derived from the location of the saga's own compensation."""
    return entity_of(run_id, Location(*step.coordinates, (2,)))
