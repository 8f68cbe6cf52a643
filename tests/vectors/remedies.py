"""Takes the remedy of a divergence as a person would: writes its edits into the program."""

from resurgam.core import event as events
from resurgam.core.edit import Edit
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.rehearsal.rehearsal import rehearse
from vectors.player import player, workflow
from vectors.program_notation import Program, edited


async def remedied(calls: Program, log: list[events.Event], remedy: "tuple[Edit, ...]") -> Program:
    """Return the program with the edits of a remedy."""
    played = player(calls)
    await run_outside_task(lambda: rehearse(workflow(played), log, remedy))
    return edited(calls, [(played.places[edit.scope, edit.call], edit) for edit in remedy])
