"""Takes the intents of workflow code to the history: each is matched with a recorded command, or recorded.

Rule 1: a intent takes its place when it is made, and its command event is in the commit of that same tick.
Rule 2: once there is a verdict (the code diverged, or is being put away) every further intent raises it, so no
``except BaseException`` of the user can swallow it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappush
from typing import Any, TypeVar

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.codec import Codec, check_size, codec_for
from resurgam.core.commands import COMMANDS, Intent
from resurgam.core.edit import Note
from resurgam.core.errors import Evicted, NotDeterministic
from resurgam.core.location import ROOT, Location
from resurgam.core.replay import (
    Diverged,
    Ignored,
    Inserted,
    New,
    Peeked,
    Replayed,
    differs,
    removal,
    version_check,
)
from resurgam.core.retry import milliseconds
from resurgam.runtime.context.durable_loop import DurableLoop
from resurgam.runtime.context.race import Race
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.loop.event_loop import WorkflowLoop
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.loop.scope import Scope, current
from resurgam.runtime.matching.carryover import Carryover
from resurgam.runtime.matching.divergence import diverged, gone_on, in_values, latent, orphaned, source
from resurgam.runtime.matching.durable_state import DurableState
from resurgam.runtime.matching.handlers import Handlers
from resurgam.runtime.matching.log import Log, outstanding
from resurgam.runtime.matching.mailbox import Mailbox
from resurgam.runtime.matching.operation import Operation
from resurgam.runtime.matching.outbox import Outbox
from resurgam.runtime.matching.recorded import EarlyAnswers, RecordedCommands
from resurgam.runtime.rehearsal.trial import Trial, edited

logger = logging.getLogger("resurgam.runtime")

T = TypeVar("T")
ANY = codec_for(Any)

_PATIENCE = 1000
"""Refused calls after which a future that never settles is returned: a loop around ``except BaseException`` would
otherwise never give the thread back."""

_NOWHERE = events.ActivityScheduled(location=ROOT, command="", name="", queue="")
"""The command of a future that is returned when there is nothing to be asked for any more."""


class Recorder:
    """The history of one execution as its code sees it: what it asked for, and what it waits for."""

    def __init__(
        self,
        log: Sequence[events.Event],
        *,
        workflow: Workflow[..., Any],
        started: events.WorkflowStarted,
        settings: Settings,
    ) -> None:
        self.log, self.past = Log(log), RecordedCommands(log)
        self.workflow, self.started, self.settings = workflow, started, settings
        self.options = options = workflow.settings_of(started)
        self.matching = started.matching or options.matching
        # What the loop forbids is set on the class from a table, where mypy does not see it.
        self.loop = WorkflowLoop(started.run_id, self)  # type: ignore[abstract]
        self.pending: dict[int, Durable[Any]] = {}
        self.deadlines: list[tuple[int, int]] = []
        self.start_deadlines: list[tuple[int, int]] = []
        self.outbox = Outbox()
        self.carryover = Carryover(started.carried, started.children)
        self.handlers = Handlers(self)
        # The executions of children that have begun, by their calls.
        self.begun: dict[int, str] = {}
        self.operations: dict[int, Operation] = {}
        self.races: dict[int, Race] = {}
        self.mailbox = Mailbox()
        self.listeners: dict[int, tuple[str, ...]] = {}
        self.early = EarlyAnswers()
        # Recorded commands that the code has cancelled since the last delivered entry, and the history has not.
        self.called_off: list[events.Command] = []
        self.state = DurableState()
        self.loops: dict[int, DurableLoop] = {}
        # In a rehearsal values that are not known yet stand in as they are, so nothing is written or read.
        self.rehearsing = self.replaying = self.is_looked_at = self.is_late = False
        self.unknown: object | None = None
        self.verdict: BaseException | None = None
        self.now = self.position = 0
        self.ignored: list[events.StepRemoved] = []
        self.notes: list[Note] = []
        self.trial = Trial()
        self._ended: list[Scope] = []
        self._cut: list[Location] = []
        self._refusals = 0
        self._busy = ""
        self.root = self.scope_at(ROOT)

    # Wishes.

    def watch_start(self, command: events.ActivityScheduled) -> None:
        """See to it that an activity that nobody begins in time is called off."""
        if command.start_by is not None and command.seq in self.log.state.open:
            heappush(self.start_deadlines, (command.start_by, command.seq))

    def scope(self) -> Scope:
        """Return the running strand, which must be one of this execution's."""
        scope = current.get(None)
        if scope is None or scope.owner is not self:
            if self.verdict is not None:
                self._refusals += 1
                raise self.verdict
            raise NotDeterministic("a workflow's context was used outside of that workflow's own code")
        return scope

    def issue(
        self,
        kind: type[events.Command],
        name: str | None = None,
        *,
        step: int | None = None,
        key: str | None = None,
        target: str | None = None,
        digest: str | None = None,
        complete: Callable[[Location], dict[str, Any]] | None = None,
        **fields: Any,
    ) -> events.Command:
        """Take the next place of the running strand for a command, and return its event, recorded or new.

        *step* is the number that ``ctx.v`` was given, None if it was not called; *target* the id that the code gives to a
        child. *complete* gives the fields of a new command that depend on its place.
        """
        made = COMMANDS[kind]
        self.refuse_if_over(made.type)
        if name is not None and not isinstance(name, str):
            raise TypeError(f"the name of a {made.type} is {name!r}; it must be a string")
        scope = self.scope()
        step = self._counted(scope, step, (made.verb, name))
        command_id = scope.command_id(made.type)
        intent = Intent(kind, name, scope.absolute(step), key, target)
        verdict = scope.match(scope.cursor, intent)
        if isinstance(verdict, Diverged):
            raise self._diverge(verdict, scope, command_id, intent)
        scope.cursor.take(verdict)
        gate, scope.gate = scope.gate, None
        if isinstance(verdict, Replayed):
            self.past.ask(verdict.event)
            if self.options.input_check != "off":
                given = fields.get("input", fields.get("value"))
                self._compare(verdict.event, intent, digest, given, scope, command_id)
            return verdict.event
        if complete is not None:
            fields |= complete(scope.location.child(verdict.coordinate))
        if isinstance(verdict, Inserted):
            fields["gate"] = gate
        elif scope.by_type and scope.cursor.step is not None:
            self._late(scope, intent, command_id)
        return self._record(
            scope,
            verdict,
            kind,
            command=command_id,
            name=name,
            version=intent.version,
            key=key,
            digest=digest,
            **fields,
        )

    def _record(
        self, scope: Scope, verdict: New | Inserted, kind: type[events.Command], **fields: Any
    ) -> events.Command:
        location = scope.location.child(verdict.coordinate)
        ended = self.log.state.ended
        if isinstance(ended, events.WorkflowTerminated) and ended.seq == self.started.seq + 1:
            # Terminated before any worker had it: what the code does first was never recorded.
            raise self.over(Evicted("the workflow was terminated before it began"))
        if ended is not None:
            raise self.over(gone_on(location, ended, kind, fields["command"], fields["name"]))

        def make(seq: int, at: int) -> events.Command:
            return kind(seq=seq, at=at, location=location, **fields)

        entry = self.log.append(make)
        assert isinstance(entry, kind)
        return entry

    def call(
        self,
        kind: type[events.Command],
        name: str | None = None,
        codec: Codec[Any] = ANY,
        *,
        step: int | None = None,
        made: type[Durable[Any]] = Durable,
        **fields: Any,
    ) -> Durable[Any]:
        """Issue a command that has an answer, and return the future of it. *codec* reads the answer's value."""
        if self.exhausted:
            return Durable(self.loop, _NOWHERE, self, codec)
        command = self.issue(kind, name, step=step, **fields)
        future: Durable[Any] = made(self.loop, command, self, codec)
        self.pending[command.seq] = future
        if self.carryover.anything and command.seq in self.log.state.open:
            self.carryover.ask(command)
        if self.early.answers and command.seq in self.early.answers:
            self.early.come_to(command)
            return future
        deadline = getattr(command, "deadline", None)
        if deadline is not None and command.seq in self.log.state.open:
            heappush(self.deadlines, (deadline, command.seq))
        return future

    def remove(self, kind: type[events.Command], name: str | None, *, step: int | None = None) -> None:
        """A call was removed here: skip it where it is recorded, and leave a mark where there is no history."""
        removed = COMMANDS[kind]
        self.refuse_if_over(removed.type)
        scope = self.scope()
        self._counted(scope, step)
        skipped = self.skip(scope, Intent(kind, name, scope.absolute(step)))
        if self.replaying:
            holds = skipped is not None and not isinstance(skipped, events.StepRemoved)
            self.notes.append(Note(source=source(), verb=removed.verb, name=name, holds=holds))

    def skip(self, scope: Scope, removed: Intent) -> events.Command | None:
        """Return the recorded command that is skipped, if there is one."""
        verdict = removal(scope.cursor, removed, by_type=scope.by_type)
        name, tag = removed.name, str(removed.kind.__struct_config__.tag)
        if isinstance(verdict, Ignored):
            where = events.StepRemoved(location=verdict.event.location, command="Removed", name=name, removed=tag)
            self.ignored.append(where)
            return None
        scope.cursor.take(verdict)
        scope.gate = None
        if isinstance(verdict, New):
            command_id = scope.command_id(COMMANDS[events.StepRemoved].type)
            self._record(
                scope, verdict, events.StepRemoved, command=command_id, name=name, version=removed.version, removed=tag
            )
            return None
        self.past.skip(verdict.event)
        self.early.answers.pop(verdict.event.seq, None)
        scope.command_id(COMMANDS[type(verdict.event)].type)
        return verdict.event

    def check_version(self, version: int, name: str | None = None) -> int:
        """Return the version of the code that this run belongs to here; *version*, where there is no history yet."""
        self.refuse_if_over(COMMANDS[events.VersionChecked].type)
        scope = self.scope()
        self._counted(scope, None)
        self.trial.asked_twice |= (scope.location, name) in self.trial.put_back
        return self.checked(scope, version, name)

    def checked(self, scope: Scope, version: int, name: str | None) -> int:
        """Return the answer of a version check in a strand."""
        numbered = scope.command_id(COMMANDS[events.VersionChecked].type) if scope.by_type else None
        verdict = version_check(scope.cursor, name, by_type=scope.by_type, command=numbered)
        if isinstance(verdict, Peeked):
            scope.gate = verdict.version
            return verdict.version - scope.version + 1
        command_id = numbered or scope.command_id(COMMANDS[events.VersionChecked].type)
        if isinstance(verdict, Diverged):
            raise self._diverge(verdict, scope, command_id)
        scope.cursor.take(verdict)
        if isinstance(verdict, New):
            stored = scope.version + version - 1
            self._record(
                scope, verdict, events.VersionChecked, command=command_id, name=name, version=stored, answer=version
            )
            return version
        assert isinstance(verdict.event, events.VersionChecked)
        self.past.ask(verdict.event)
        return verdict.event.answer

    @property
    def exhausted(self) -> bool:
        """Whether the code has been refused so often that it must be catching the refusals in a loop."""
        # A rehearsal is one of many, and the verdict is all that is wanted of it.
        return self._refusals > (_PATIENCE // 20 if self.rehearsing else _PATIENCE)

    def is_new(self, command: events.Command) -> bool:
        """Whether a command was not in the history that this execution was loaded with."""
        return command.seq > self.log.recorded_seq

    def is_wanted(self, command: events.Command) -> bool:
        """Whether the world has to be asked for what a command wants: it is new, and nothing of it is carried over."""
        return command.seq > self.log.recorded_seq and command.seq not in self.carryover.answered

    def start_timer(self, seconds: float, *, step: int | None = None) -> Durable[None]:
        """Start a durable timer of this length."""
        length = max(0, milliseconds(seconds))
        deadline = self.log.stamp() + length
        return self.call(events.TimerStarted, step=step, deadline=deadline, digest=f"{length} ms")

    def write(self, codec: Codec[Any], value: object, what: str) -> Any:
        """Return a value as it is recorded."""
        return value if self.rehearsing else check_size(self.settings.max_payload, codec.check(value, what), what)

    def read(self, codec: Codec[Any], written: Any, what: str) -> Any:
        """Return the value that was recorded."""
        return codec.decode(written, what) if isinstance(written, Raw) else written

    # What has been recorded, and what of it the code has asked for.

    def may_be_asked_for(self, ref: int) -> bool:
        """Whether the code may still come to the command with this ``seq``, though it is being answered already.

        By location that is so only where the code waits for a step that was recorded later: one that was inserted.
        """
        return self.is_put_off(ref) or self.past.is_keyed(self.past.command(ref).location)

    def is_put_off(self, entry: int) -> bool:
        """Whether the code waits for something that was asked for after this entry was recorded."""
        return self.matching != "location" or any(seq > entry for seq in self.pending)

    def unasked(self) -> events.Command | None:
        """Return the first recorded command that the code should have come to by its end."""
        if self.matching != "location":
            return None
        return next((left for left in self.past.orphans() if not self.past.is_keyed(left.location)), None)

    def orphans(self) -> list[events.Command]:
        """Return the recorded commands that the code does not ask for, where that is no divergence."""
        left = self.past.orphans()
        return left if self.matching != "location" else [one for one in left if self.past.is_keyed(one.location)]

    def check_orphans(self) -> None:
        """Once the code has returned, nothing may be left, if its workflow says so; what has a key may always be."""
        if self.options.orphans != "error" or self.matching == "location" or self.verdict is not None:
            return
        left = next((left for left in self.orphans() if not self.past.is_keyed(left.location)), None)
        if left is not None:
            self.verdict = orphaned(left, self.root)

    def is_beside_a_loop(self) -> bool:
        """Whether a loop that forgets is under way elsewhere than around the running strand."""
        if self.is_looked_at:
            return False
        place = self.scope().location
        loops = (looping.command for looping in self.loops.values())
        return any(loop.forget_every is not None and not loop.location.contains(place) for loop in loops)

    def places_at_work(self) -> Iterator[Location]:
        """Return where something is under way: calls that are not answered, strands that have not ended."""
        yield from (future.command.location for future in self.pending.values())
        yield from (task.scope.location for task in self.loop.tasks)
        # Those that the code does not ask for any more are answered too: removed calls, items that a map has lost.
        yield from (command.location for command in outstanding(self.log.state))

    # Strands.

    def branch(self, name: str | None = None, *, step: int | None = None, **fields: Any) -> Scope:
        """Open a strand at the next place of the running one."""
        return self.scope_below(self.issue(events.BranchStarted, name, step=step, **fields))

    def scope_below(self, command: events.Command) -> Scope:
        """Return the strand whose steps stand below a command."""
        matching = command.matching if isinstance(command, events.BranchStarted) else None
        return self.scope_at(command.location, command.version, matching)

    def scope_at(self, location: Location, version: int = 1, matching: str | None = None) -> Scope:
        """Return a strand whose steps stand below a place."""
        cursor = self.past.cursor(location)
        seed, rule = self.loop.seed, matching or self.matching
        return Scope(location, cursor, seed=seed, owner=self, version=version, matching=rule)

    def close_scope(self, scope: Scope) -> None:
        """A strand has ended by returning; the history may not go on where its code does not."""
        if self.trial.edits:
            edited(self, scope, None, None)
        if scope.matching == "location" and scope.cursor.step is not None:
            # Not a verdict yet: a callback that the strand left behind may still ask for what is recorded.
            self._ended.append(scope)

    def cut_scope(self, scope: Scope) -> None:
        """A strand has ended otherwise than by returning; what is recorded of it beyond that is answered to nobody."""
        if scope.cursor.next is not None:
            self._cut.append(scope.location)

    def is_cut_off(self, place: Location) -> bool:
        """Whether a place is of a strand that was cut off before it came there."""
        return any(cut.contains(place) for cut in self._cut)

    def check_ended(self) -> None:
        """Once every recorded entry is delivered, nothing may be left in the history of a strand that has ended."""
        if not self._ended or self.verdict is not None:
            return
        for scope in self._ended:
            left = scope.cursor.step
            if left is not None:
                self.verdict = latent(left, scope)
                return

    def call_off(self, command: events.Command) -> None:
        """Record that the code no longer waits for a command, unless the history holds an answer to it."""
        self.pending.pop(command.seq, None)
        self.operations.pop(command.seq, None)
        self.listeners.pop(command.seq, None)
        self.races.pop(command.seq, None)
        kind = COMMANDS[type(command)].cancelled
        if kind is None or self.verdict is not None:
            return
        if command.seq in self.log.state.open:
            entry = self.log.append(lambda seq, at: kind(seq=seq, at=at, ref=command.seq))
            if not self.is_new(command):
                self.called_off.append(command)
            if isinstance(command, events.PromiseCreated):
                self.outbox.add(entry.seq, "closed", command.promise_id)

    def over(self, verdict: BaseException) -> BaseException:
        """Decide that the code has come to its end here, whatever it does: every later call raises the same."""
        self.verdict = verdict
        return verdict

    def complain(self, said: str) -> None:
        """Say what went wrong, once: not again on replay."""
        if not self.replaying and not self.rehearsing:
            logger.warning("workflow %r (%s): %s", self.started.name, self.started.entity_id, said)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Let a function look at the durable state without leaving a trace: a query, or a validator."""
        self.is_looked_at = True
        try:
            yield
        finally:
            self.is_looked_at = False

    # Refusals.

    def without_wishes(self, what: str, function: Callable[[], T]) -> T:
        """Call a function of the user that must not make durable calls."""
        self._busy, before = what, self._busy
        try:
            return function()
        finally:
            self._busy = before

    def refuse_if_over(self, what: str) -> None:
        """Refuse a call once there is a verdict, and inside of functions that may not make any."""
        if self.verdict is not None:
            self._refusals += 1
            raise self.verdict
        if self._busy:
            raise NotDeterministic(
                f"a durable call ({what}) inside {self._busy}; make it before, and pass on what it gave"
            )

    def _compare(
        self, found: events.Command, intent: Intent, digest: str | None, given: object, scope: Scope, command_id: str
    ) -> None:
        """Compare the fingerprints of a replayed command, as far as its workflow wants to be told."""
        difference = differs(found, intent, digest)
        if difference is None:
            return
        error = diverged(in_values(difference, given), scope, command_id)
        if self.options.input_check == "strict":
            self.verdict = error
            raise error
        if not self.rehearsing:
            logger.warning("input_check: %s", error)

    def _late(self, scope: Scope, intent: Intent, command_id: str) -> None:
        """A new command comes where the history of its strand has not been matched to the end."""
        if self.options.late_new == "allow":
            return
        left = scope.cursor.step
        assert left is not None
        asked = intent.name or str(intent.kind.__struct_config__.tag)
        error = diverged(Diverged(left, "order", asked, left.name or left.type), scope, command_id)
        if self.options.late_new == "error":
            self.verdict = error
            raise error
        if not self.rehearsing:
            logger.warning("late_new: %s", error)

    def _diverge(self, verdict: Diverged, scope: Scope, command_id: str, intent: Intent | None = None) -> BaseException:
        self.verdict = diverged(verdict, scope, command_id, intent)
        return self.verdict

    def _counted(
        self, scope: Scope, step: int | None, call: tuple[str | None, str | None] = (None, None)
    ) -> int | None:
        """Count one more call of a strand; return the number that it gives to ``ctx.v``."""
        if self.trial.edits:
            step = edited(self, scope, step, call)
        scope.calls += 1
        return step
