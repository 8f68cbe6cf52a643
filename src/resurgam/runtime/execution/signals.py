"""Hand signals of the mailbox to the listeners and handlers that wait for them; each is an entry of the history."""

from collections import deque

from resurgam.core import event as events
from resurgam.core.outcome import Entry
from resurgam.runtime.matching.handlers import Handlers
from resurgam.runtime.matching.recorder import Recorder


def meet_any_listener(recorder: Recorder) -> events.Event | None:
    """Hand its oldest signal to the first listener that has one."""
    for seq in recorder.pending.listeners:
        # A listener that is cancelled in the history, and not yet by edited code, gets nothing.
        met = meet_listener(recorder, seq) if seq in recorder.log.state.open else None
        if met is not None:
            return met
    return None


def meet_listener(recorder: Recorder, seq: int) -> events.Event | None:
    """Hand a listener the signals that wait for it."""
    names, limit = recorder.pending.listeners[seq], _limit(recorder, seq)
    if limit is None:
        oldest = recorder.mailbox.oldest(names)
        taken: tuple[int, ...] = () if oldest is None else (oldest.seq,)
    else:
        taken = tuple(signal.seq for signal in recorder.mailbox.several(names, limit))
    return recorder.log.add(events.SignalsConsumed, ref=seq, signals=taken, cause=taken[0]) if taken else None


def meet_handler(recorder: Recorder, handlers: Handlers) -> events.Event | None:
    """Hand the oldest signal that has a handler to it."""
    signal = recorder.mailbox.oldest(tuple(handlers.signals))
    if signal is None:
        return None
    scope = recorder.log.state.handlers + 1
    return recorder.log.add(events.SignalHandled, signal=signal.seq, scope=scope, cause=signal.seq)


def awaits_more(recorder: Recorder, waiting: deque[Entry]) -> bool:
    """Whether a batch has some of its signals, and the next entry of the inbox is one more signal."""
    if not waiting or not isinstance(waiting[0].event, events.SignalReceived):
        return False
    for seq, names in recorder.pending.listeners.items():
        limit = _limit(recorder, seq)
        if limit is not None and 0 < recorder.mailbox.count(names) < limit and seq in recorder.log.state.open:
            return True
    return False


def _limit(recorder: Recorder, seq: int) -> int | None:
    listener = recorder.pending.futures[seq].command
    return listener.limit if isinstance(listener, events.ListenStarted) else None
