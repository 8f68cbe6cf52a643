"""Two wrong tick drivers. Both look plausible, and both have been built by others."""

from typing import Any

import pytest

from resurgam.core import event as events
from resurgam.runtime.matching.recorder import Recorder
from resurgam.runtime.replay import delivery
from resurgam.runtime.replay.driver import Driver


def hands_results_over_at_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replayed call gets its recorded answer when it is made, not when the answer's turn comes."""
    original_init, original_call = Recorder.__init__, Recorder.call

    def init(self: Recorder, log: Any, **options: str) -> None:
        original_init(self, log, **options)
        self.answers = {e.ref: e for e in log if delivery.is_answer(e)}  # type: ignore[attr-defined]

    def call(self: Recorder, kind: type[events.Command], *args: Any, **kwargs: Any) -> Any:
        future = original_call(self, kind, *args, **kwargs)
        answer = self.answers.get(future.command.seq)  # type: ignore[attr-defined]
        if answer is not None and not isinstance(answer, events.RaceDecided | events.SignalsConsumed):
            delivery.settle(self, answer)
        return future

    monkeypatch.setattr(Recorder, "__init__", init)
    monkeypatch.setattr(Recorder, "call", call)


def delivers_two_entries_before_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """On replay two recorded entries are told to the code before it runs."""
    original = Driver.tick

    def tick(self: Driver, entry: events.Event) -> None:
        following = next((e for e in self.undelivered if delivery.is_answer(e)), None)
        asked = following is not None and self.recorder.recorded.is_reached(following.ref or 0)
        if delivery.is_answer(entry) and following is not None and asked:
            self.undelivered.remove(following)
            self.recorder.now = following.at
            self.recorder.loop.open = True
            delivery.settle(self.recorder, entry)  # type: ignore[arg-type]
            entry = following
        original(self, entry)

    monkeypatch.setattr(Driver, "tick", tick)
    monkeypatch.setattr(Driver, "tick_result", tick)


MUTANTS = [hands_results_over_at_creation, delivers_two_entries_before_running]
