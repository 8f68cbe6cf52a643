"""A short notation for histories, and the world in which the vectors of sequence matching are run.

A history is written as its entries, divided by ``|``; ``workflow_started`` goes without saying::

    task P        activity P scheduled          done 0 "r"    command 0 completed with "r"
    timer 5       timer of 5 s started          failed 0 no   command 0 failed with the message "no"
    op fetch      operation started             fired 0       timer 0 fired
    set k 42      state set                     cancelled 0   command 0 called off
    clear k       state cleared                 won 0 1       race 0 won by competitor 1
    listen n      listener started              heard 0 2     listener 0 took signal 2
    branch        strand begun                  lapsed 0      listener 0 timed out
    race 2        race of two begun             signal n 1    signal n received with the value 1
    removed P     mark of a removed activity    check 2       version check, answered 2
    child c       child c begun                 begun 0       child 0 is there
    promise p     promise p made                resolved 0 1  promise 0 settled with 1
                                                rejected 0 no promise 0 rejected with the message "no"
                                                expired 0     promise 0 timed out

Commands are numbered from 0 over all kinds, signals likewise. ``@{1}`` behind a command puts it into the scope ``{1}``.
"""

import json
from collections import Counter
from typing import Any

from msgspec import Raw

from resurgam import Context, Registry
from resurgam.core import event as events
from resurgam.core.commands import COMMANDS
from resurgam.core.location import ROOT, Location
from resurgam.runtime.context.activities import fingerprint
from resurgam.runtime.definitions.definition import Workflow
from resurgam.testing.simulation import START, start_event

NAMES = (*"ABPQXfpuo", "fb", "slow", "after-0", "after-1", "A1", "A2", "B1", "B2", "SendEmail", "ProcessPayment")
HOUR, DAY = 3600, 86400


def called(registry: Registry, name: str) -> None:
    """Register the activity of that name, which returns its name and what it was given."""

    @registry.activity(name=name)
    async def activity(value: Any = None) -> str:
        return name if value is None else f"{name}({value})"


def registry_of(*names: str) -> Registry:
    """Return a registry with these activities, by default with all that the vectors name."""
    registry = Registry()
    for name in names or NAMES:
        called(registry, name)
    return registry


def workflow(code: Any, registry: Registry | None = None, /, **options: Any) -> Workflow[..., Any]:
    """Return the workflow 'w' with this code, matched by sequence if nothing else is said."""
    return (registry or Registry()).workflow(name="w", **{"matching": "sequence", **options})(code)


class Book:
    """Writes the events of a history that is given in the notation above."""

    def __init__(self, first: events.WorkflowStarted) -> None:
        self.log: list[events.Event] = [first]
        self.commands: list[int] = []
        self.signals: list[int] = []
        self._heads: Counter[Location] = Counter()
        self._numbers: Counter[tuple[Location, str]] = Counter()

    def write(self, text: str) -> None:
        """Append one entry."""
        verb, _, rest = text.strip().partition(" ")
        rest, _, scope = rest.partition(" @") if " @" in rest else (rest.removeprefix("@"), "", "")
        if rest.startswith("{"):
            rest, scope = "", rest
        getattr(self, f"_{verb}")(rest.strip(), Location.parse(scope) if scope else ROOT)

    def command(self, kind: type[events.Command], scope: Location, **fields: Any) -> None:
        """Append a command at the next place of a scope."""
        self._heads[scope] += 1
        number = self._numbers[scope, COMMANDS[kind].type]
        self._numbers[scope, COMMANDS[kind].type] += 1
        where = f"@{scope}" if scope.coordinates else ""
        place = scope.child((self._heads[scope],))
        self.commands.append(
            self._append(kind, location=place, command=f"{COMMANDS[kind].type}({number}){where}", **fields)
        )

    def _append(self, kind: type[events.Event], **fields: Any) -> int:
        seq = len(self.log) + 1
        self.log.append(kind(seq=seq, at=self.log[-1].at, **fields))
        return seq

    def _answer(self, kind: type[events.Answer], rest: str, **fields: Any) -> None:
        self._append(kind, ref=self.commands[int(rest.split(maxsplit=1)[0])], **fields)

    def _kind_of(self, rest: str) -> type[events.Event]:
        return type(self.log[self.commands[int(rest.split(maxsplit=1)[0])] - 1])

    def _task(self, rest: str, scope: Location) -> None:
        name, _, given = rest.partition(" ")
        args = Raw(f"[{given}]".encode()) if given else Raw(b"[]")
        self.command(events.ActivityScheduled, scope, name=name, queue="default", input=args, digest=fingerprint(args))

    def _timer(self, rest: str, scope: Location) -> None:
        length = int(float(rest) * 1000)
        self.command(events.TimerStarted, scope, deadline=self.log[-1].at + length, digest=f"{length} ms")

    def _op(self, rest: str, scope: Location) -> None:
        self.command(events.OperationStarted, scope, name=rest)

    def _set(self, rest: str, scope: Location) -> None:
        key, _, value = rest.partition(" ")
        self.command(
            events.StateSet, scope, name=key, value=Raw(value.encode()), digest=fingerprint(Raw(value.encode()))
        )

    def _clear(self, rest: str, scope: Location) -> None:
        self.command(events.StateCleared, scope, name=rest)

    def _listen(self, rest: str, scope: Location) -> None:
        self.command(events.ListenStarted, scope, name=rest, names=tuple(rest.split(", ")))

    def _branch(self, rest: str, scope: Location) -> None:
        self.command(events.BranchStarted, scope, name=rest or None)

    def _map(self, rest: str, scope: Location) -> None:
        self.command(events.BranchStarted, scope, matching="keyed")

    def _item(self, rest: str, scope: Location) -> None:
        """An activity in a keyed scope: its name and its item, which is its key."""
        name, _, item = rest.partition(" ")
        args = Raw(f"[{item}]".encode())
        self.command(
            events.ActivityScheduled, scope, name=name, queue="default", input=args, digest=fingerprint(args), key=item
        )

    def _race(self, rest: str, scope: Location) -> None:
        self.command(events.RaceStarted, scope, size=int(rest))

    def _loop(self, rest: str, scope: Location) -> None:
        self.command(events.LoopStarted, scope, state=Raw(rest.encode() or b"null"))

    def _removed(self, rest: str, scope: Location) -> None:
        self.command(events.StepRemoved, scope, name=rest, removed="activity_scheduled")

    def _check(self, rest: str, scope: Location) -> None:
        self.command(events.VersionChecked, scope, answer=int(rest), version=int(rest))

    def _signal(self, rest: str, scope: Location) -> None:
        name, _, value = rest.partition(" ")
        seq = len(self.log) + 1
        self.signals.append(self._append(events.SignalReceived, name=name, id=f"s{seq}", value=Raw(value.encode())))

    def _child(self, rest: str, scope: Location) -> None:
        name, _, given = rest.partition(" ")
        entity_id = given or f"child of {len(self.log)}"
        about = {"queue": "default", "entity_id": entity_id, "run_id": f"run of {len(self.log)}"}
        self.command(events.ChildScheduled, scope, name=name, input=Raw(b"[]"), digest=fingerprint(Raw(b"[]")), **about)

    def _begun(self, rest: str, scope: Location) -> None:
        self._answer(events.ChildStarted, rest, execution_id=f"execution of {rest}")

    def _promise(self, rest: str, scope: Location) -> None:
        self.command(events.PromiseCreated, scope, name=rest, promise_id=f"promise of {len(self.log)}")

    def _resolved(self, rest: str, scope: Location) -> None:
        self._answer(events.PromiseResolved, rest, value=Raw((rest.partition(" ")[2] or "null").encode()))

    def _rejected(self, rest: str, scope: Location) -> None:
        failure = events.Failure(type="builtins.ValueError", message=rest.partition(" ")[2])
        self._answer(events.PromiseRejected, rest, failure=failure)

    def _expired(self, rest: str, scope: Location) -> None:
        self._answer(events.PromiseTimedOut, rest)

    def _done(self, rest: str, scope: Location) -> None:
        kinds = {events.OperationStarted: events.OperationCompleted, events.ChildScheduled: events.ChildCompleted}
        answer: Any = kinds.get(self._kind_of(rest), events.ActivityCompleted)
        self._answer(answer, rest, result=Raw((rest.partition(" ")[2] or "null").encode()))

    def _failed(self, rest: str, scope: Location) -> None:
        failure = events.Failure(type="builtins.ValueError", message=rest.partition(" ")[2])
        kinds = {events.OperationStarted: events.OperationFailed, events.ChildScheduled: events.ChildFailed}
        answer: Any = kinds.get(self._kind_of(rest), events.ActivityFailed)
        self._answer(answer, rest, failure=failure)

    def _cancelled(self, rest: str, scope: Location) -> None:
        kinds = {
            events.ActivityScheduled: events.ActivityCancelled,
            events.TimerStarted: events.TimerCancelled,
            events.OperationStarted: events.OperationCancelled,
            events.ListenStarted: events.ListenCancelled,
            events.PromiseCreated: events.PromiseCancelled,
        }
        self._answer(kinds[self._kind_of(rest)], rest)

    def _fired(self, rest: str, scope: Location) -> None:
        timer = self.log[self.commands[int(rest)] - 1]
        assert isinstance(timer, events.TimerStarted)
        self.log.append(events.TimerFired(seq=len(self.log) + 1, at=timer.deadline, ref=timer.seq))

    def _won(self, rest: str, scope: Location) -> None:
        self._answer(events.RaceDecided, rest, winner=int(rest.split()[1]))

    def _heard(self, rest: str, scope: Location) -> None:
        self._answer(events.SignalsConsumed, rest, signals=(self.signals[int(rest.split()[1])],))

    def _lapsed(self, rest: str, scope: Location) -> None:
        self._answer(events.ListenTimedOut, rest)


def history(text: str, first: events.WorkflowStarted | None = None) -> list[events.Event]:
    """Return the events of a history in the notation above."""
    book = Book(first or started())
    for entry in text.split("|"):
        if entry.strip():
            book.write(entry)
    return book.log


def started(matching: str = "sequence", *args: object) -> events.WorkflowStarted:
    """Return the first entry of a history."""
    first = start_event(workflow(_nothing, matching=matching), args)
    assert first.at == START
    return first


async def _nothing(ctx: Context) -> None:
    return None


def told(commands: Any) -> list[str]:
    """Return commands as their id and their name."""
    return [f"{command.command} {command.name}" if command.name else command.command for command in commands]


def answer_of(log: list[events.Event]) -> Any:
    """Return the result that a history ended with."""
    end = next(entry for entry in log if isinstance(entry, events.WorkflowCompleted))
    return json.loads(bytes(end.result))
