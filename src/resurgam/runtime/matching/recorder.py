"""Match each durable call with the recorded history, or append it.

Rule 1: a call takes its location when it is made, and its command event is in the commit of that same tick.
Rule 2: once there is a `Verdict` (the code diverged, or is evicted) every further call raises it.
"""

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar, cast

import msgspec

from resurgam.core import event as events
from resurgam.core.codec import Codec, codec_for
from resurgam.core.commands import COMMANDS, COMMANDS_BY_TAG, Intent
from resurgam.core.edit import Check, Insert, Note, Remove
from resurgam.core.errors import Evicted, NotDeterministic
from resurgam.core.location import ROOT, Coordinate, Location
from resurgam.core.matchers import (
    Diverged,
    Ignored,
    New,
    Peeked,
    Replayed,
    differs,
    removal,
    version_check,
)
from resurgam.core.retry import Duration, milliseconds
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.loop.event_loop import WorkflowLoop
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.loop.scope import Scope, current
from resurgam.runtime.loop.verdict import PATIENCE, Verdict
from resurgam.runtime.matching.carryover import Carryover
from resurgam.runtime.matching.course import Course
from resurgam.runtime.matching.divergence import diverged, gone_on, in_values, source
from resurgam.runtime.matching.durable_state import DurableState
from resurgam.runtime.matching.ended_scopes import EndedScopes
from resurgam.runtime.matching.log import Log
from resurgam.runtime.matching.mailbox import Mailbox
from resurgam.runtime.matching.mode import LIVE, Mode, Rehearsing
from resurgam.runtime.matching.outbox import Outbox
from resurgam.runtime.matching.payloads import Payloads
from resurgam.runtime.matching.pending import PendingCommands
from resurgam.runtime.matching.recorded import EarlyAnswers, RecordedCommands

logger = logging.getLogger("resurgam.runtime")

C = TypeVar("C", bound=events.Command)
ANY = codec_for(Any)
_TIMED: Final = frozenset(kind.event for kind in COMMANDS.values() if kind.timed_out is not None)

_NOWHERE = events.ActivityScheduled(location=ROOT, command="", name="", queue="")
"""The command of the future that code gets which goes on after too many refused calls."""


class Place(msgspec.Struct, gc=False, frozen=True):
    """Where a new command goes: its location and id in its scope, its version, the version check that it comes after."""

    location: Location
    version: int
    command: str
    gate: int | None = None


class Recorder:
    """Match the durable calls of one execution's code with its history, or append them to its log.

    The parts that it works on are attributes, each with an interface of its own: the *payloads*, the *log* and the
    *outbox* of the next commit, the *recorded* commands, the *pending* calls, answers that came *early* or by
    *carryover*, the *mailbox* of signals, the durable *state*, the *ended_scopes*, the *mode* and the *verdict*.
    """

    def __init__(
        self,
        log: Sequence[events.Event],
        *,
        workflow: Workflow[..., Any],
        started: events.WorkflowStarted,
        settings: Settings,
        mode: Mode = LIVE,
    ) -> None:
        self.workflow, self.started, self.settings = workflow, started, settings
        self.options = options = workflow.settings_of(started)
        self.matching = started.matching or options.matching
        self.mode = mode
        # Remedies are searched for by many rehearsals, of which the reason is all that is wanted.
        self.verdict = Verdict(PATIENCE // 20 if mode.rehearsing else PATIENCE)
        self.log, self.recorded = Log(log), RecordedCommands(log, self.matching)
        self.course = course = Course()
        self.outbox, self.pending = Outbox(course), PendingCommands(course)
        self.early = EarlyAnswers(self.pending if self.matching == "location" else None, self.verdict)
        if mode.rehearsing or options.input_check != "off" or started.carried:
            self.verdict.end_routine()
        # The workflow's time, and the entry that was delivered last.
        self.now = self.entry = 0
        # The workflow's own timeout in milliseconds, once that has asked the code to stop.
        self.timed_out: int | None = None
        self.ignored: tuple[events.StepRemoved, ...] = ()
        self.notes: tuple[Note, ...] = ()
        # The forbidden methods are set on the class from a table, where mypy does not see them.
        self.loop = WorkflowLoop(started.run_id, self)  # type: ignore[abstract]
        self.root = self.scope_at(ROOT)

    def close(self) -> None:
        """Unwind the code, and end all references in a circle: else the run stays in memory until Python looks for circles.

        That look visits every object there is, so the fewer it must find the better.
        """
        self.loop.unwind()
        self.loop.detach()
        self.pending.futures.clear()
        self.root.owner = None

    # Parts that most runs never need. To make them with the others would cost a start more than its first call.

    @cached_property
    def payloads(self) -> Payloads:
        """The values that the code records."""
        return Payloads(self.mode.rehearsing, self.settings.max_payload)

    @cached_property
    def carryover(self) -> Carryover:
        """Answers that came before their calls: from an earlier attempt, or from outside."""
        return Carryover(self.started.carried, self.started.children, self.verdict)

    @cached_property
    def mailbox(self) -> Mailbox:
        """The signals that no listener or handler has consumed."""
        return Mailbox()

    @cached_property
    def state(self) -> DurableState:
        """The durable state that the code has set."""
        return DurableState()

    @cached_property
    def ended_scopes(self) -> EndedScopes:
        """The scopes whose code has ended before their recorded history."""
        return EndedScopes()

    # Calls.

    def scope(self) -> Scope:
        """Return the running scope, which must belong to this execution."""
        scope = current.get(None)
        if scope is None or scope.owner is not self:
            if self.verdict.reason is not None:
                raise self.verdict.refuse(self.verdict.reason)
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
        """Take the next location of the running scope for a command, and return its event, recorded or new.

        *step* is the number given to ``ctx.v``, None without it; *target* the id that the code gives to a child.
        *complete* returns the fields of a new command that depend on its location.
        """
        given = fields.get("input", fields.get("value"))
        found = self.place(kind, name, step, key, target, digest, given)
        if type(found) is not Place:
            return cast("events.Command", found)
        if complete is not None:
            fields |= complete(found.location)
        return self._append(kind, found, name=name, key=key, digest=digest, **fields)

    def place(
        self,
        kind: type[events.Command],
        name: str | None,
        step: int | None,
        key: str | None,
        target: str | None = None,
        digest: str | None = None,
        given: object = None,
    ) -> events.Command | Place:
        """Take the next location of the running scope for a call; return its recorded command, or where a new one goes.

        *digest* is the fingerprint of the input *given*; None if inputs are not compared.
        """
        scope = current.get(None)
        # Fast path of `_matched`, of which it leaves out what has no effect on a routine call that fits at first sight.
        if (
            self.verdict.routine
            and step is None
            and scope is not None
            and scope.owner is self
            and (name is None or type(name) is str)
        ):
            found = scope.cursor.take_obvious(kind, name, scope.version, in_order=scope.in_order)
            if found is not None:
                scope.calls += 1
                scope.gate = None
                called = COMMANDS[kind].type
                if type(found) is tuple:
                    if self.log.state.ended is None:  # `_vacant`, without its call
                        return Place(scope.location.child(found), scope.version, scope.command_id(called))
                    return self._vacant(scope, found, kind, name, scope.command_id(called), scope.version)
                scope.counts[called] = scope.counts.get(called, 0) + 1
                self.recorded.reach(found)  # type: ignore[arg-type]  # what is not a coordinate is a command
                return found  # type: ignore[return-value]
        return self._matched(kind, name, step, key, target, digest, given)

    def _matched(
        self,
        kind: type[events.Command],
        name: str | None,
        step: int | None,
        key: str | None,
        target: str | None,
        digest: str | None,
        given: object,
    ) -> events.Command | Place:
        """Do what `place` says, with every check, by the matcher of the scope."""
        described = COMMANDS[kind]
        self.verdict.check_allowed(described.type)
        if name is not None and not isinstance(name, str):
            raise TypeError(f"the name of a {described.type} must be a string, got {name!r}")
        scope = self.scope()
        step = self._counted(scope, step, (described.verb, name))
        command_id = scope.command_id(described.type)
        intent = Intent(kind, name, scope.absolute(step), key, target)
        match = scope.match(scope.cursor, intent)
        if isinstance(match, Diverged):
            raise self.verdict.decide(diverged(match, scope, command_id, intent))
        scope.cursor.take(match)
        gate, scope.gate = scope.gate, None
        if isinstance(match, Replayed):
            self.recorded.reach(match.event)
            if self.options.input_check != "off":
                self._compare(match.event, intent, digest, given, scope, command_id)
            return match.event
        if isinstance(match, New):
            gate = None
            if scope.by_type and scope.cursor.step is not None:
                self._check_late(scope, intent, command_id)
        return self._vacant(scope, match.coordinate, kind, name, command_id, intent.version, gate)

    def _vacant(
        self,
        scope: Scope,
        coordinate: Coordinate,
        kind: type[events.Command],
        name: str | None,
        command_id: str,
        version: int,
        gate: int | None = None,
    ) -> Place:
        """Return where a new command goes, unless the history says that the workflow has ended."""
        location = scope.location.child(coordinate)
        ended = self.log.state.ended
        if ended is None:
            return Place(location, version, command_id, gate)
        if isinstance(ended, events.WorkflowTerminated) and ended.seq == self.started.seq + 1:
            # Terminated before a worker ran it: the first calls of the code were never recorded.
            raise self.verdict.decide(Evicted("the workflow was terminated before it began"))
        raise self.verdict.decide(gone_on(location, ended, kind, command_id, name))

    def _append(self, kind: type[C], place: Place, **fields: Any) -> C:
        log = self.log
        return log.append(
            kind(
                seq=log.state.last_seq + 1,
                at=log.stamp(),
                location=place.location,
                version=place.version,
                command=place.command,
                gate=place.gate,
                **fields,
            )
        )

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
        """Issue a command that has an answer, and return its future, of the class *made*. *codec* reads the value."""
        if self.verdict.exhausted:
            return self.endless(codec)
        return self.wait_for(self.issue(kind, name, step=step, **fields), codec, made)

    def wait_for(self, command: events.Command, codec: Codec[Any], made: type[Durable[Any]] = Durable) -> Durable[Any]:
        """Return the future of a command's answer, which *codec* reads."""
        seq = command.seq
        future = self.pending.futures[seq] = made(self.loop, command, self, codec)
        if not self.verdict.routine:
            if self.carryover.anything and seq in self.log.state.open:
                self.carryover.ask(command)
            if seq in self.early.answers:
                self.early.come_to(command)
                return future
        if type(command) in _TIMED and seq in self.log.state.open:
            deadline: int | None = command.deadline  # type: ignore[attr-defined]  # each of these kinds has one
            if deadline is not None:
                self.pending.add_deadline(deadline, seq)
        return future

    def endless(self, codec: Codec[Any]) -> Durable[Any]:
        """Return a future that never settles, for code that goes on after too many refused calls."""
        return Durable(self.loop, _NOWHERE, self, codec)

    def start_timer(self, duration: Duration, *, step: int | None = None) -> Durable[None]:
        """Start a durable timer of this length."""
        length = max(0, milliseconds(duration))
        return self.wait_until(self.log.stamp() + length, f"{length} ms", step)

    def wait_until(self, deadline: int, digest: str, step: int | None) -> Durable[None]:
        """Start a durable timer that fires at *deadline*: `call`, without the fields of other commands."""
        if self.verdict.exhausted:
            return self.endless(ANY)
        found = self.place(events.TimerStarted, None, step, None, None, digest)
        if isinstance(found, events.Command):
            return self.wait_for(found, ANY)
        timer = events.TimerStarted(
            seq=self.log.state.last_seq + 1,
            at=self.log.stamp(),
            location=found.location,
            version=found.version,
            command=found.command,
            gate=found.gate,
            digest=digest,
            deadline=deadline,
        )
        return self.wait_for(self.log.schedule(timer), ANY)

    def cancel(self, command: events.Command) -> None:
        """Record that the code no longer waits for a command, unless the history holds an answer to it."""
        self.pending.drop(command.seq)
        kind = COMMANDS[type(command)].cancelled
        if kind is None or self.verdict.reason is not None or command.seq not in self.log.state.open:
            return
        self.course.leave()
        entry = self.log.add(kind, ref=command.seq)
        if not self.log.is_new(command):
            self.pending.note_cancelled(command)
        if isinstance(command, events.PromiseCreated):
            self.outbox.add(entry.seq, "closed", command.promise_id)

    def is_wanted(self, command: events.Command) -> bool:
        """Whether the outbox must ask for a command: it is new, and no answer is carried over."""
        return self.log.is_new(command) and command.seq not in self.carryover.answered

    # Calls that were removed from the code, and checks of its version.

    def remove(self, kind: type[events.Command], name: str | None, *, step: int | None = None) -> None:
        """Skip a removed call where it is recorded, and leave a mark where there is no history."""
        removed = COMMANDS[kind]
        self.verdict.check_allowed(removed.type)
        scope = self.scope()
        self._counted(scope, step)
        skipped = self._skip(scope, Intent(kind, name, scope.absolute(step)))
        if self.mode.replaying:
            holds = skipped is not None and not isinstance(skipped, events.StepRemoved)
            self.notes += (Note(source=source(), verb=removed.verb, name=name, holds=holds),)

    def _skip(self, scope: Scope, removed: Intent) -> events.Command | None:
        """Return the recorded command that is skipped, if there is one."""
        match = removal(scope.cursor, removed, by_type=scope.by_type)
        name, tag = removed.name, COMMANDS[removed.kind].tag
        mark = COMMANDS[events.StepRemoved].type
        if isinstance(match, Ignored):
            where = events.StepRemoved(location=match.event.location, command=mark, name=name, removed=tag)
            self.ignored += (where,)
            return None
        scope.cursor.take(match)
        scope.gate = None
        if isinstance(match, New):
            command_id, version = scope.command_id(mark), removed.version
            place = self._vacant(scope, match.coordinate, events.StepRemoved, name, command_id, version)
            self._append(events.StepRemoved, place, name=name, removed=tag)
            return None
        self.recorded.skip(match.event)
        self.early.answers.pop(match.event.seq, None)
        scope.command_id(COMMANDS[type(match.event)].type)
        return match.event

    def check_version(self, version: int, name: str | None = None) -> int:
        """Return the version of the code that this run belongs to here; *version*, where there is no history yet."""
        self.verdict.check_allowed(COMMANDS[events.VersionChecked].type)
        scope = self.scope()
        self._counted(scope, None)
        if isinstance(self.mode, Rehearsing):
            trial = self.mode.trial
            trial.asked_twice |= (scope.location, name) in trial.put_back
        return self._checked(scope, version, name)

    def _checked(self, scope: Scope, version: int, name: str | None) -> int:
        """Return the answer of a version check in a scope."""
        type_name = COMMANDS[events.VersionChecked].type
        numbered = scope.command_id(type_name) if scope.by_type else None
        match = version_check(scope.cursor, name, by_type=scope.by_type, command=numbered)
        if isinstance(match, Peeked):
            scope.gate = match.version
            return match.version - scope.version + 1
        command_id = numbered or scope.command_id(type_name)
        if isinstance(match, Diverged):
            raise self.verdict.decide(diverged(match, scope, command_id))
        scope.cursor.take(match)
        if isinstance(match, New):
            stored = scope.version + version - 1
            place = self._vacant(scope, match.coordinate, events.VersionChecked, name, command_id, stored)
            self._append(events.VersionChecked, place, name=name, answer=version)
            return version
        assert isinstance(match.event, events.VersionChecked)
        self.recorded.reach(match.event)
        return match.event.answer

    # Scopes.

    def branch(self, name: str | None = None, *, step: int | None = None, **fields: Any) -> Scope:
        """Open a scope at the next location of the running one."""
        return self.scope_below(self.issue(events.BranchStarted, name, step=step, **fields))

    def scope_below(self, command: events.Command) -> Scope:
        """Return the scope whose steps have their locations below a command."""
        matching = command.matching if isinstance(command, events.BranchStarted) else None
        return self.scope_at(command.location, command.version, matching)

    def scope_at(self, location: Location, version: int = 1, matching: str | None = None) -> Scope:
        """Return a scope whose steps have their locations below a location."""
        cursor = self.recorded.cursor(location)
        return Scope(location, cursor, self.loop.seed, self, version, matching or self.matching)

    def close_scope(self, scope: Scope) -> None:
        """Note that the code of a scope has returned; its history must not continue."""
        if self.mode.rehearsing:
            self._apply_edits(scope, None, None)
        if scope.cursor.next is not None:
            self.ended_scopes.add_returned(scope)
            if self.ended_scopes.returned:
                self.course.leave()

    def cut_scope(self, scope: Scope) -> None:
        """Note that the code of a scope was cancelled or has failed."""
        self.ended_scopes.add_cut(scope)

    # Reports.

    def reports_unawaited(self, *, settled: bool) -> bool:
        """Return whether a future that was dropped without being awaited is a mistake of the code.

        One that is not settled may belong to an evicted execution, and will be made again.
        """
        over = settled or isinstance(self.log.state.ended, events.WorkflowCompleted)
        return over and not self.mode.replaying

    def warn(self, message: str) -> None:
        """Log a warning about this execution, unless it was logged before the replay."""
        if not self.mode.replaying:
            logger.warning("workflow %r (%s): %s", self.started.name, self.started.entity_id, message)

    # Checks of a call against its workflow's options.

    def _compare(
        self,
        found: events.Command,
        intent: Intent,
        digest: str | None,
        given: object,
        scope: Scope,
        command_id: str,
    ) -> None:
        """Compare the fingerprint of a replayed command, as ``input_check`` says."""
        difference = differs(found, intent, digest)
        if difference is None:
            return
        error = diverged(in_values(difference, given), scope, command_id)
        if self.options.input_check == "strict":
            raise self.verdict.decide(error)
        if not self.mode.rehearsing:
            logger.warning("input_check: %s", error)

    def _check_late(self, scope: Scope, intent: Intent, command_id: str) -> None:
        """Check a new command whose scope has unmatched history left, as ``late_new`` says."""
        if self.options.late_new == "allow":
            return
        left = scope.cursor.step
        assert left is not None
        asked = intent.name or COMMANDS[intent.kind].tag
        error = diverged(Diverged(left, "order", asked, left.name or left.type), scope, command_id)
        if self.options.late_new == "error":
            raise self.verdict.decide(error)
        if not self.mode.rehearsing:
            logger.warning("late_new: %s", error)

    def _counted(
        self, scope: Scope, step: int | None, call: tuple[str | None, str | None] = (None, None)
    ) -> int | None:
        """Count one more call of a scope; return the number that it gives to ``ctx.v``."""
        if self.mode.rehearsing:
            step = self._apply_edits(scope, step, call)
        scope.calls += 1
        return step

    def _apply_edits(self, scope: Scope, step: int | None, call: tuple[str | None, str | None] | None) -> int | None:
        """Apply the edits that are tried out to the next call; return the number that it gives to ``ctx.v``.

        *call* is its verb and name, None at the end of the scope. A line may make several calls, so an edit that is
        found by the line applies to the call that it names.
        """
        assert isinstance(self.mode, Rehearsing)
        trial = self.mode.trial
        if not trial.edits:
            return step
        location = self.recorded.code_location(scope.location)
        numbered = trial.edits.get((location, scope.calls), ())
        for edit in (*numbered, *trial.edits.get(location if call is None else source(), ())):
            if isinstance(edit, Insert):
                step = edit.version if edit in numbered or (edit.verb, edit.name) == call else step
            elif isinstance(edit, Remove):
                skipped = self._skip(scope, Intent(COMMANDS_BY_TAG[edit.kind].event, edit.name, scope.version))
                trial.taken_out += () if skipped is None else self.recorded.at_or_below(skipped.location)
            elif isinstance(edit, Check):
                self._checked(scope, edit.version, edit.name)
                trial.put_back |= set() if edit.name is None else {(scope.location, edit.name)}
        return step
