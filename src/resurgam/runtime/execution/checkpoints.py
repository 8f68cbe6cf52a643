"""Write the checkpoints of durable loops, and forget the entries that led there."""

from typing import Any

from resurgam.core import event as events
from resurgam.core.outcome import Forgotten, Span
from resurgam.runtime.matching.dedup import ReceivedIds
from resurgam.runtime.matching.forgetting import dropped
from resurgam.runtime.matching.open_locations import is_quiet_below
from resurgam.runtime.matching.pending import LoopProgress
from resurgam.runtime.replay.driver import Driver


class Checkpoints:
    """The checkpoints of one advance, and which entries each of them forgets."""

    def __init__(self, driver: Driver, received: ReceivedIds) -> None:
        self._recorder, self._handlers = driver.recorder, driver.handlers
        self._received = received
        # Each checkpoint with the entries that it forgets, and the locations whose forgotten entries are dropped. Most
        # advances make none, so callers look here first.
        self.made: list[tuple[int, list[Forgotten], tuple[Span, ...]]] = []

    def begin(self) -> None:
        """Start an advance: the checkpoints of the last one are committed."""
        self.made = []

    def forgotten(self) -> set[int]:
        """Return the entries that this advance has forgotten so far."""
        return {entry.seq for _, gone, _ in self.made for entry in gone}

    def fields(self, last_seq: int) -> dict[str, Any]:
        """Return what the checkpoints up to an entry forget, as fields of an outcome."""
        made = [(gone, spans) for seq, gone, spans in self.made if seq <= last_seq]
        return {
            "forgotten": tuple(entry for gone, _ in made for entry in gone),
            "dropped": tuple(span for _, spans in made for span in spans),
        }

    def next_entry(self) -> events.Event | None:
        """Write the checkpoint or the end that a loop waits for."""
        for loop in self._recorder.pending.loops.values():
            if loop.wants is events.LoopCheckpointed:
                return self._write(loop, state=loop.state)
            if loop.wants is events.LoopCompleted:
                if loop.forgets and is_quiet_below(self._recorder, loop.command.location):
                    return self._write(loop, result=loop.value, whole=True)
                loop.wants = None
                ref, done = loop.command.seq, loop.done
                return self._recorder.log.add(events.LoopCompleted, ref=ref, iteration=done, result=loop.value)
        return None

    def _write(self, loop: LoopProgress, **fields: Any) -> events.Event:
        """Write an entry that holds all state, and forget what the finished iterations and handlers did."""
        recorder, command = self._recorder, loop.command
        log = recorder.log
        kind, loop.wants = loop.wants, None
        assert kind is not None
        gone = log.footprint.through(command, loop.done, self._handlers.unforgettable())
        entry = log.add(
            kind,
            ref=command.seq,
            iteration=loop.done,
            variables=dict(recorder.state.values),
            forgotten=log.state.forgotten + len(gone),
            signals=tuple(self._received.after(gone)),
            handlers=log.state.handlers,
            tags=None
            if log.state.tags is recorder.started.tags
            else log.state.tags,  # the same object until it is changed
            **fields,
        )
        seqs = [one.seq for one in gone]
        log.footprint.forget(gone)
        log.state.forget(seqs)
        self._received.forget(gone)
        recorder.recorded.forget(seqs)
        recorder.pending.forget(seqs)
        self.made.append((entry.seq, gone, dropped(command, loop.done, log.state.handlers)))
        return entry
