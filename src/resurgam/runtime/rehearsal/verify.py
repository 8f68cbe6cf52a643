"""Says whether code fits a history, before anything is done: what a worker asks itself, and what others may ask.

Replay first. Where the code then goes its own way, while part of the history has not been come to, it is rehearsed
whether it comes back. Where it diverges, a remedy is looked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from resurgam.core import event as events
from resurgam.core.edit import Note
from resurgam.core.errors import HistoryDiverged
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.rehearsal import rehearsal
from resurgam.runtime.rehearsal.rehearsal import Undecided
from resurgam.runtime.replay.driver import Driver, decode_arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of code on a history: it fits, unless it *diverged* or it is *undecided*.

    *new* are the commands that the history does not hold, *orphans* those that the code has not come to, *ignored* the
    removals that have no effect on it, *notes* all removals that it came to. *error* is what the code raised at a point where the history has not ended.
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
        """Whether nothing speaks against it."""
        return self.diverged is None and self.undecided is None


def verify(workflow: Workflow[..., Any], log: Sequence[events.Event], *, remedy: bool = True) -> Finding:
    """Say whether the code of *workflow* fits *log*. Nothing is written, and nothing is started."""
    driver = Driver(workflow, log)
    try:
        if len(log) == 1 or driver.is_delayed:
            # There is nothing to replay, but the code must take the arguments.
            return Finding(diverged=decode_arguments(workflow, driver.started)[1])
        driver.replay()
        found = look_ahead(driver, log, driver.recorder.log.new, remedy=remedy)
        return _finding(driver, found if isinstance(found, Undecided) else None)
    finally:
        driver.close()


def look_ahead(
    driver: Driver,
    log: Sequence[events.Event],
    written: Sequence[events.Event],
    *,
    remedy: bool = True,
    rehearsed: bool = False,
) -> rehearsal.Finding | None:
    """Look beyond the *log* that *driver* has come to; what is found against the code becomes its verdict.

    *written* is what the code has asked for beyond it. None where there was nothing to be looked at, or it has been
    *rehearsed* before.
    """
    asked = any(isinstance(entry, events.Command) for entry in written)
    found = None
    # Where orphans are an error, code that has passed one by without asking for anything new is to be looked at too.
    if (asked or driver.orphans_fail) and not rehearsed and driver.goes_on and driver.recorder.recorded.unreached():
        found = rehearsal.rehearse(driver.workflow, log)
        if isinstance(found, HistoryDiverged):
            driver.verdict.decide(found)
    if remedy and driver.diverged is not None and driver.parks:
        driver.diverged.remedy = rehearsal.find_remedy(driver.workflow, log, driver.diverged)
    return found


def _finding(driver: Driver, undecided: Undecided | None) -> Finding:
    recorder, root = driver.recorder, driver.root
    diverged, error = driver.diverged, None
    if diverged is None and recorder.log.state.ended is None and root is not None and root.done():
        error = None if root.cancelled() else root.exception()
    return Finding(
        diverged=diverged,
        undecided=undecided,
        error=error,
        new=tuple(entry for entry in recorder.log.new if isinstance(entry, events.Command)),
        orphans=tuple(recorder.recorded.unreached()),
        ignored=tuple(recorder.ignored),
        notes=tuple(dict.fromkeys(recorder.notes)),
    )
