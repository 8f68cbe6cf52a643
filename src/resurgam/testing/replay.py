"""Does this code fit that history? Asked without a store, and without anything being done."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from resurgam.core import event as events
from resurgam.core.errors import HistoryDiverged
from resurgam.runtime.callback import outside_tasks
from resurgam.runtime.definition import Workflow
from resurgam.runtime.execution import Execution
from resurgam.store.lines import newest_history


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a replay found.

    *new*: the commands that the code issued and the history does not hold. *result* is what the code returned, *error*
    what it raised, both None if it is still under way at the end of the history.
    """

    new: tuple[events.Command, ...]
    diverged: HistoryDiverged | None
    result: Any = None
    error: BaseException | None = None
    finished: bool = False


async def replay(workflow: Workflow[..., Any], history: str | Iterable[events.Event | str]) -> Report:
    """Replay a history, given as events, as JSON lines or as an export, against the code of *workflow*."""
    execution = Execution(workflow, parse(history))
    try:
        await outside_tasks(execution.replay)
        return _report(execution)
    finally:
        await outside_tasks(execution.close)


def parse(history: str | Iterable[events.Event | str]) -> list[events.Event]:
    """Return the events of a history given as text, as lines or as events; of an export, those of the last execution."""
    return newest_history(history.split("\n") if isinstance(history, str) else history)


def _report(execution: Execution) -> Report:
    verdict = execution.verdict if isinstance(execution.verdict, HistoryDiverged) else None
    new = tuple(entry for entry in execution.new if isinstance(entry, events.Command))
    root = execution.root
    if verdict is not None or root is None or not root.done():
        return Report(new=new, diverged=verdict)
    error = None if root.cancelled() else root.exception()
    result = None if root.cancelled() or error is not None else root.result()
    return Report(new=new, diverged=None, result=result, error=error, finished=True)
