"""Replay a history against code, without a store and without side effects."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, get_args

import msgspec

from resurgam.core import event as events
from resurgam.core.errors import HistoryDiverged
from resurgam.runtime.definitions.definition import Matching, Workflow
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.runtime.rehearsal.rehearsal import Undecided
from resurgam.runtime.rehearsal.verify import look_ahead
from resurgam.runtime.replay.driver import Driver
from resurgam.store.export import newest_history


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a replay.

    *new*: the commands of the code that the history does not have. *orphans*: the commands of the history that the code
    has not issued. *removed_ignored*: the ``ctx.removed`` calls without effect. *result* is the return value of the
    code, *error* its exception, both None if it is still running at the end of the history. *undecided*: the code uses
    the result of a step that has not run, so whether it fits the rest of the history is not known.
    """

    new: tuple[events.Command, ...]
    diverged: HistoryDiverged | None
    result: Any = None
    error: BaseException | None = None
    finished: bool = False
    orphans: tuple[events.Command, ...] = ()
    removed_ignored: tuple[events.StepRemoved, ...] = ()
    undecided: bool = False


async def replay(
    workflow: Workflow[..., Any], history: str | Iterable[events.Event | str], *, matching: Matching | None = None
) -> Report:
    """Replay a history, given as events, as JSON lines or as an export, against the code of *workflow*.

    *matching* is the matching rule; by default the one under which the history was recorded.
    """
    log = parse(history)
    if matching is not None and log:
        log[0] = _matched_by(matching, log[0])
    driver = Driver(workflow, log)
    try:
        await run_outside_task(driver.replay)
        found = await run_outside_task(lambda: look_ahead(driver, log, driver.recorder.log.new))
        return replace(_report(driver), undecided=isinstance(found, Undecided))
    finally:
        await run_outside_task(driver.close)


def parse(history: str | Iterable[events.Event | str]) -> list[events.Event]:
    """Return the events of a history given as text, lines or events; of an export, those of the last execution."""
    return newest_history(history.split("\n") if isinstance(history, str) else history)


def _matched_by(matching: Matching, first: events.Event) -> events.Event:
    if matching not in get_args(Matching):
        raise ValueError(f"matching must be one of {get_args(Matching)}, got {matching!r}")
    return msgspec.structs.replace(first, matching=matching) if isinstance(first, events.WorkflowStarted) else first


def _report(driver: Driver) -> Report:
    recorder, root, diverged = driver.recorder, driver.root, driver.diverged
    finished = diverged is None and root is not None and root.done()
    returned = root if finished and root is not None and not root.cancelled() else None
    error = returned.exception() if returned is not None else None
    return Report(
        new=tuple(entry for entry in recorder.log.new if isinstance(entry, events.Command)),
        diverged=diverged,
        result=returned.result() if returned is not None and error is None else None,
        error=error,
        finished=finished,
        orphans=tuple(recorder.recorded.orphans()) if diverged is None else (),
        removed_ignored=tuple(recorder.ignored),
    )
