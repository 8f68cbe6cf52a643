"""Rehearse how the code goes on, while part of its history has not been reached."""

from collections.abc import Sequence

from resurgam.core import event as events
from resurgam.runtime.rehearsal.rehearsal import Fits, Undecided
from resurgam.runtime.rehearsal.verify import look_ahead
from resurgam.runtime.replay.driver import Driver


class LookAhead:
    """Keep the log of an execution until its code has reached all of it, and rehearse when the code makes new calls."""

    def __init__(self, driver: Driver, log: Sequence[events.Event]) -> None:
        self._driver = driver
        self._log: Sequence[events.Event] | None = log
        self._caught_up = False
        # Calls were made while it was unknown whether the code comes back to its history.
        self.undecided = False
        # The code comes back to all of its history, whatever the answers are, so one rehearsal is enough.
        self._fits = False
        self.started: list[str] = []
        # Whether part of the history is unreached; a plain attribute, since every tick reads it.
        self.needed = True

    def begin(self, forgotten: set[int]) -> None:
        """Start an advance: what the last one appended is committed."""
        self._log = self._extended(self._driver.recorder.log.new, forgotten)

    def catch_up(self) -> None:
        """Look ahead once after the replay."""
        if self._log is not None and not self._caught_up:
            self._caught_up = True
            self._look(self._driver.recorder.log.new, self._log)

    def after_tick(self, forgotten: set[int]) -> None:
        """Look ahead after the tick of a new entry."""
        log = self._driver.recorder.log
        self._look(log.new[log.tick_start :], self._extended(log.new[: log.tick_start], forgotten))

    def note_started(self, written: Sequence[events.Event]) -> None:
        """Note the calls that are committed while it is unknown whether the code fits."""
        commands = (entry for entry in written if isinstance(entry, events.Command))
        self.started += (f"{entry.name or entry.type} at {entry.location}" for entry in commands)

    def _look(self, written: Sequence[events.Event], log: Sequence[events.Event]) -> None:
        found = look_ahead(self._driver, log, written, rehearsed=self._fits)
        if found is not None:
            self.undecided = isinstance(found, Undecided)
            self._fits = isinstance(found, Fits) and found.whole
        if not self._driver.recorder.recorded.unreached():
            self._log, self.needed = None, False

    def _extended(self, new: Sequence[events.Event], forgotten: set[int]) -> list[events.Event]:
        """Return the log with what was appended since, without what is forgotten."""
        assert self._log is not None
        return [entry for entry in (*self._log, *new) if entry.seq not in forgotten]
