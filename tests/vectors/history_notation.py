"""Histories as text: ``1=a 1.1=x@2 2=~branch 2/1=k``.

Each word is a place, what stands there, and its version unless that is 1. ``2/11/4.1`` is the location ``{2, 11, 4.1}``.
An activity is told by its name, other kinds by a tilde and their verb: ``~sleep``, ``~listen``, ``~branch``, ``~loop``,
``~set``, ``~run``, ``~check:2`` with its answer, ``~gone:b`` for the mark of a removed activity.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.location import Location

KINDS: dict[str, type[events.Command]] = {
    "sleep": events.TimerStarted,
    "listen": events.ListenStarted,
    "branch": events.BranchStarted,
    "loop": events.LoopStarted,
    "race": events.RaceStarted,
    "set": events.StateSet,
    "run": events.OperationStarted,
}
VERBS = {kind: verb for verb, kind in KINDS.items()}
NAMES = {"listen": "go", "set": "k", "run": "r"}
TAGS = {str(kind.__struct_config__.tag): f"~{verb}" for verb, kind in KINDS.items()}


def location(text: str) -> Location:
    """Return the location that ``2/11/4.1`` is."""
    return Location.parse("{" + text.replace("/", ", ") + "}") if text else Location()


def place(where: Location) -> str:
    """Undo `location`."""
    return str(where)[1:-1].replace(", ", "/")


def spelled(command: events.Command) -> str:
    """Return what stands at a place."""
    if isinstance(command, events.ActivityScheduled):
        return command.name
    if isinstance(command, events.VersionChecked):
        return f"~check:{command.answer}"
    if isinstance(command, events.StepRemoved):
        return f"~gone:{TAGS.get(command.removed, command.name)}"
    return f"~{VERBS[type(command)]}"


def told(commands: Iterable[events.Event]) -> str:
    """Return a history as text, in the order of places."""
    recorded = sorted((c for c in commands if isinstance(c, events.Command)), key=lambda c: c.location)
    texts = (f"{place(c.location)}={spelled(c)}{'' if c.version == 1 else f'@{c.version}'}" for c in recorded)
    return " ".join(texts)


def merged(*histories: str) -> str:
    """Return histories as one, in the order of places."""
    words = [word for history in histories for word in history.split()]
    return " ".join(sorted(words, key=lambda word: location(word.partition("=")[0])))


def recorded(history: str) -> list[events.Command]:
    """Return the commands of a history given as text, numbered from 2."""
    return [_command(seq, word) for seq, word in enumerate(history.split(), 2)]


def _command(seq: int, word: str) -> events.Command:
    where, _, what = word.partition("=")
    what, _, version = what.partition("@")
    common = {"seq": seq, "location": location(where), "command": f"c{seq}", "version": int(version or 1)}
    if not what.startswith("~"):
        return events.ActivityScheduled(name=what, queue="default", **common)
    verb, _, detail = what[1:].partition(":")
    if verb == "check":
        return events.VersionChecked(answer=int(detail), **common)
    if verb == "gone":
        return events.StepRemoved(name=detail, removed="activity_scheduled", **common)
    extra = {"sleep": {"deadline": 5}, "listen": {"names": ("go",)}}.get(verb, {})
    return KINDS[verb](**common, **({"name": NAMES[verb]} if verb in NAMES else {}), **extra)


def answered(commands: Sequence[events.Command]) -> list[events.Event]:
    """Return a whole log: each activity's command followed by its answer, which the code that waits was told."""
    log: list[events.Event] = []
    for command in commands:
        seq = len(log) + 2
        log.append(replace(command, seq=seq))
        if isinstance(command, events.ActivityScheduled):
            log.append(events.ActivityCompleted(seq=seq + 1, ref=seq))
    return log
