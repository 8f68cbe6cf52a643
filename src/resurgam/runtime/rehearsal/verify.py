"""Decide whether code fits a history, before anything is written or started.

The history is replayed first. If the code then makes new calls while recorded ones are unmatched, a rehearsal shows
whether the code returns to them. If the code diverges, a remedy is searched for.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from resurgam.core import event as events
from resurgam.core.edit import Note
from resurgam.core.errors import HistoryDiverged
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.rehearsal import rehearsal
from resurgam.runtime.rehearsal.rehearsal import Fits, Undecided
from resurgam.runtime.replay.driver import Driver, decode_arguments


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of replaying code on a history: it fits, unless it *diverged* or is *undecided*.

    *new* are commands that the history does not hold, *orphans* recorded ones that the code has not reached, *ignored*
    removal notes without effect, *notes* all removal notes that the code reached. *error* is an exception of the code
    where the history has not ended.
    """

    diverged: HistoryDiverged | None = None
    undecided: Undecided | None = None
    error: BaseException | None = None
    new: tuple[events.Command, ...] = ()
    orphans: tuple[events.Command, ...] = ()
    ignored: tuple[events.StepRemoved, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the code neither diverged nor is undecided."""
        return self.diverged is None and self.undecided is None


def verify(workflow: Workflow[..., Any], log: Sequence[events.Event], *, remedy: bool = True) -> Finding:
    """Decide whether the code of *workflow* fits *log*, without writing or starting anything."""
    driver = Driver(workflow, log)
    try:
        if len(log) == 1 or driver.is_delayed:
            # There is nothing to replay, but the code must accept the arguments.
            return Finding(diverged=decode_arguments(workflow, driver.started)[1])
        driver.replay()
        found = look_ahead(driver, log, driver.recorder.log.new, remedy=remedy)
        return _finding(driver, found)
    finally:
        driver.close()


def look_ahead(
    driver: Driver,
    log: Sequence[events.Event],
    written: Sequence[events.Event],
    *,
    remedy: bool = True,
    rehearsed: bool = False,
) -> rehearsal.Prediction | None:
    """Rehearse the rest of *log* beyond the position of *driver*; a divergence becomes the driver's verdict.

    *written* are the new entries that the code has caused. Return None if no rehearsal was necessary, or the code was
    *rehearsed* before.
    """
    new = any(isinstance(entry, events.Command) for entry in written)
    found = None
    # Where orphans are an error, code that skipped one without making a new call must be rehearsed too.
    if (new or driver.orphans_fail) and not rehearsed and driver.goes_on and driver.recorder.recorded.unreached():
        found = rehearsal.rehearse(driver.workflow, log)
        if isinstance(found, HistoryDiverged):
            driver.verdict.decide(found)
    if remedy and driver.diverged is not None and driver.parks:
        driver.diverged.remedy = rehearsal.find_remedy(driver.workflow, log, driver.diverged)
    return found


def _finding(driver: Driver, foreseen: rehearsal.Prediction | None) -> Finding:
    recorder, root = driver.recorder, driver.root
    # Behind a step that was inserted only a rehearsal reaches the notes.
    beyond = foreseen.notes if isinstance(foreseen, Fits) else ()
    diverged, error = driver.diverged, None
    if diverged is None and recorder.log.state.ended is None and root is not None and root.done():
        error = None if root.cancelled() else root.exception()
    return Finding(
        diverged=diverged,
        undecided=foreseen if isinstance(foreseen, Undecided) else None,
        error=error,
        new=tuple(entry for entry in recorder.log.new if isinstance(entry, events.Command)),
        orphans=tuple(recorder.recorded.unreached()),
        ignored=recorder.ignored,
        notes=tuple(dict.fromkeys((*recorder.notes, *beyond))),
    )
