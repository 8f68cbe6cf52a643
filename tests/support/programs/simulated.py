"""What the tests of the named programs have in common: running one, and saying whether a history replays exactly."""

from collections.abc import Sequence

from resurgam.core import event as events
from resurgam.core.errors import HistoryDiverged
from resurgam.runtime.execution.completion import terminal_event as how_it_ends
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.matching.dedup import ReceivedIds
from resurgam.testing.simulation import Chooser, Simulation
from support.programs import MESSAGES, PROGRAMS, registry

ENDS = (events.WorkflowCompleted, events.WorkflowFailed, events.WorkflowCancelled)


def simulate(name: str, chooser: Chooser, log: Sequence[events.Event] = ()) -> Simulation:
    """Return a simulation of a named program, from the beginning or from where *log* ends."""
    return Simulation(PROGRAMS[name], log=log, chooser=chooser, registry=registry, messages=MESSAGES[name])


def terminal_event(log: Sequence[events.Event]) -> events.Event:
    """Return the entry that says how a run ended."""
    (end,) = [entry for entry in log if isinstance(entry, ENDS)]
    return end


async def misfit(name: str, log: Sequence[events.Event]) -> str:
    """Replay a history that has ended, and return in which way that was not exact; nothing, if it was.

    Exact means: nothing is written and nothing asked of the world, the code asks for all that is recorded, and comes
    to the same end.
    """
    execution = Execution(PROGRAMS[name], log)
    outcome = await run_outside_task(lambda: execution.advance([], log[-1].at))
    execution.close()
    if isinstance(execution.verdict, HistoryDiverged):
        return str(execution.verdict)
    if outcome.events or outcome.activities:
        return f"replay wrote {[entry.to_json() for entry in outcome.events]}, asked for {outcome.activities}"
    if (left := execution.recorder.recorded.first_missing()) is not None:
        return f"replay did not ask for {left.to_json()}"
    end, _ = how_it_ends(execution.driver, execution.verdict, None, ReceivedIds(log), 0)
    before, now = _what_it_says(terminal_event(log)), _what_it_says(end)
    return "" if before == now else f"the end was {before}, and is now {now}"


def _what_it_says(end: events.Event) -> tuple[str, str]:
    """Return what an end says, apart from when and at which line it came about."""
    if isinstance(end, events.WorkflowFailed):
        return end.failure.type, end.failure.message
    return end.type, bytes(getattr(end, "result", b"")).decode()
