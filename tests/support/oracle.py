"""What must be the same of a world, however often its engines died."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from resurgam.core import event as events
from resurgam.core.commands import ANSWERS
from resurgam.core.state import InstanceState
from resurgam.store.records import Copy
from resurgam.testing.crash import commands
from support.faults import Effect, World

_ENDS = (
    events.WorkflowCompleted,
    events.WorkflowFailed,
    events.WorkflowCancelled,
    events.WorkflowTerminated,
    events.WorkflowContinued,
    events.WorkflowRetried,
)
_HALTS = (events.WorkflowPaused, events.WorkflowResumed)
"""Who is halted with its tree depends on how far that has come; nothing else may."""


@dataclass(frozen=True)
class Verdict:
    """All that is compared. Ids that are made by chance are replaced by what they stand for."""

    fates: dict[str, Any]
    """Of each execution: its status, its end, its commands by places, and how often each kind of entry is there."""
    effects: Counter[Effect]
    answers: list[Any]
    heard: list[Any]


class Names:
    """What stands for the ids of a world."""

    def __init__(self, copies: list[Copy]) -> None:
        self._ids: dict[str, str] = {}
        ordinals: Counter[str] = Counter()
        in_order = sorted(copies, key=lambda c: (c.instance.created_at, c.instance.generation, c.instance.attempt))
        for copy in in_order:
            instance = copy.instance
            ordinals[instance.entity_id] += 1
            self._ids.setdefault(instance.run_id, f"<{instance.entity_id} run {ordinals[instance.entity_id]}>")
            self._ids[instance.execution_id] = f"<{instance.entity_id} {ordinals[instance.entity_id]}>"
            for entry in copy.log:
                if isinstance(entry, events.PromiseCreated):
                    self._ids[entry.promise_id] = f"<promise {entry.name!r} of {instance.entity_id}>"

    def replace(self, text: str) -> str:
        """Put names for ids; a child's own id is made from the run of its parent."""
        before = ""
        while before != text:
            before = text
            for made, name in self._ids.items():
                text = text.replace(made, name)
        return text


async def verdict(world: World) -> Verdict:
    """Look at all that has become of a world."""
    copies = await world.copies()
    names = Names(copies)
    fates = {}
    for copy in copies:
        name = names.replace(copy.instance.execution_id)
        assert name not in fates, f"{name} is there twice"
        fates[name] = _fate(copy, names)
        _check(copy, name)
    effects = Counter(Effect(e.name, names.replace(e.key), e.attempt) for e in world.effects)
    return Verdict(fates, effects, [names.replace(repr(answer)) for answer in world.answers], world.heard)


def _fate(copy: Copy, names: Names) -> dict[str, Any]:
    places = {entry.seq: str(entry.location) for entry in copy.log if isinstance(entry, events.Command)}
    return {
        "status": copy.instance.status.value,
        "end": [names.replace(_end(entry)) for entry in copy.log if isinstance(entry, _ENDS)],
        "commands": [(place, kind, names.replace(name or "")) for place, kind, name in commands(copy.log)],
        "entries": Counter(
            (entry.type, places.get(entry.ref or 0, "")) for entry in copy.log if not isinstance(entry, _HALTS)
        ),
        "state": {key: bytes(value) for key, value in InstanceState(_active(copy)).variables.items()},
    }


def _active(copy: Copy) -> list[events.Event]:
    gone = {entry.seq for entry in copy.forgotten}
    return [entry for entry in copy.log if entry.seq not in gone]


def _end(entry: events.Event) -> str:
    if isinstance(entry, events.WorkflowCompleted):
        return f"completed {bytes(entry.result).decode()}"
    if isinstance(entry, events.WorkflowFailed | events.WorkflowRetried):
        chain, failure = [], entry.failure
        while failure is not None:
            chain.append(f"{failure.type}: {failure.message} {failure.notes}")
            failure = failure.cause
        return f"{entry.type} {' <- '.join(chain)}"
    return f"{entry.type} {getattr(entry, 'reason', '')}"


def _check(copy: Copy, name: str) -> None:
    """Check what holds of every execution that has ended."""
    answered = Counter(entry.ref for entry in copy.log if isinstance(entry, ANSWERS))
    assert max(answered.values(), default=0) <= 1, f"{name}: a command was answered twice"
    signals = Counter((entry.name, entry.id) for entry in copy.log if isinstance(entry, events.SignalReceived))
    assert max(signals.values(), default=0) <= 1, f"{name}: a signal was heard twice"
    assert sum(isinstance(entry, _ENDS) for entry in copy.log) == 1, f"{name}: ended more than once"
    assert not copy.activities, f"{name}: activities are left over"
    assert not copy.inbox, f"{name}: never told {[entry.type for entry in copy.inbox]}"


def compare(undisturbed: Verdict, disturbed: Verdict, world: World) -> None:
    """Check that deaths have changed nothing but how often an attempt was started whose result was lost."""
    assert disturbed.fates.keys() == undisturbed.fates.keys()
    for name, fate in undisturbed.fates.items():
        for what, expected in fate.items():
            assert disturbed.fates[name][what] == expected, f"{name}: {what}"
    assert disturbed.answers == undisturbed.answers
    assert disturbed.heard == undisturbed.heard
    assert disturbed.effects.keys() == undisturbed.effects.keys()
    for effect, times in disturbed.effects.items():
        assert undisturbed.effects[effect] <= times <= undisturbed.effects[effect] + len(world.died), f"{effect}"
    for number, recorded in world.done:
        again = [effect for effect in world.effects[number:] if effect in recorded]
        assert not again, f"done again, though it was on record: {again}"
