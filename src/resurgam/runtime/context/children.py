"""Children, workflows or flows: their futures, their start, and their cancellation."""

import asyncio
from hashlib import blake2b
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.codec import Codec, check_size
from resurgam.core.failure import capture
from resurgam.core.flow_event import FlowStarted
from resurgam.core.identity import entity_of
from resurgam.core.location import Location
from resurgam.core.outcome import ChildRequest, Message
from resurgam.runtime.context.outbound import send
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.ids import derived_id
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.matching.log import Log
from resurgam.runtime.matching.recorder import Recorder
from resurgam.runtime.system import python

T = TypeVar("T")
OnParentClose: TypeAlias = Literal["cancel", "abandon", "terminate"]
ChildCall: TypeAlias = events.ChildCommand | events.EarlierChild


class ChildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a child's start, and of its fate when the parent closes."""

    id: str | None = None
    queue: str | None = None
    detach: bool = False
    deferred: bool = False
    on_parent_close: OnParentClose | None = None
    verb: str = "ctx.workflow"

    def __post_init__(self) -> None:
        for option in ("id", "queue"):
            value = getattr(self, option)
            if value is not None and not (isinstance(value, str) and value and "\0" not in value):
                raise ValueError(f"{self.verb}: {option} must be a non-empty string without NUL, got {value!r}")
        for option in ("detach", "deferred"):
            value = getattr(self, option)
            if not isinstance(value, bool):
                raise TypeError(f"{self.verb}: {option} must be True or False, got {value!r}")
        if self.on_parent_close not in (None, "cancel", "abandon", "terminate"):
            raise ValueError(
                f"{self.verb}: on_parent_close must be 'cancel', 'abandon' or 'terminate', got {self.on_parent_close!r}"
            )
        if self.detach and self.on_parent_close not in (None, "abandon"):
            raise ValueError(
                f"{self.verb}: on_parent_close must be 'abandon' for a detached child, got {self.on_parent_close!r}; "
                "omit one of the two"
            )

    @property
    def policy(self) -> str:
        """The close policy; a deferred child is abandoned by default, because others start it."""
        if self.detach:
            return "abandon"
        return self.on_parent_close or ("abandon" if self.deferred else "cancel")


class Child(Durable[T]):
    """The future of a child: await it for the result of the child's last generation.

    Cancelling it cancels the child, and waits until the child has closed.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, command: events.Command, recorder: Recorder, codec: Codec[Any]
    ) -> None:
        super().__init__(loop, command, recorder, codec)
        self._recorder = recorder
        self.started: asyncio.Future[str] = loop.create_future()
        self._cancel_requested = False

    @property
    def call(self) -> events.ChildCommand:
        """The command that started the child."""
        assert isinstance(self.command, events.ChildCommand)
        return self.command

    @property
    def entity_id(self) -> str:
        """The child's id."""
        return self.call.entity_id

    @property
    def run_id(self) -> str:
        """The first run of the child."""
        return self.call.run_id

    def signal(self, name: str, value: object = None) -> Durable[None]:
        """Send the child a signal."""
        return send(self._recorder, self.entity_id, name, value, key=child_key(self._recorder.started, self.call))

    def cancel(self, msg: object = None) -> bool:
        """Cancel the child; awaiting this raises `asyncio.CancelledError` once the child has closed, in any way."""
        if self.done():
            return False
        if not self._cancel_requested:
            self._cancel_requested = True
            # After its own timeout a workflow does not wait for the children that it cancels.
            if cancel_child(self._recorder, self.call) or self._recorder.timed_out is not None:
                self.started.cancel()
                return super().cancel(msg)
        return True

    def settle(self, deliver: Any) -> None:
        """Settle the future when the child has closed; a cancelled child counts as cancelled in any case."""
        if self._cancel_requested:
            self.started.cancel()
            super().cancel()
            return
        deliver()
        if self.started.done() or not self.done():
            return
        error = self.exception()
        if error is None:
            self.started.set_result(self._first_execution_id())  # in an earlier attempt of this workflow
        else:
            self.started.set_exception(error)
            self.started.exception()  # mark it as retrieved: the future itself raises the error too

    def _first_execution_id(self) -> str:
        adopted = self._recorder.carryover.adopted(self.call)
        if adopted is None:
            return ""
        return adopted.execution_id or derived_id(adopted.at, adopted.by, adopted.location, "execution")

    def set_started(self, execution_id: str) -> None:
        """Settle `started` with the id of the child's execution."""
        if not self.started.done():
            self.started.set_result(execution_id)


def child_key(own: events.WorkflowStarted, call: ChildCall) -> str:
    """Return the key of a child, which is the same for all attempts of its parent and all its own executions.

    A call of another workflow, or with other arguments, is another child.
    """
    return f"{own.run_id}/{call.location}/{call.name}/{call.digest}"


def message_to_child(own: events.WorkflowStarted, call: ChildCall, event: events.Event) -> Message:
    """Return a message to the child started by a call, and to no other workflow with its id."""
    return Message(event=event, entity_id=call.entity_id, key=child_key(own, call))


def start_child(
    recorder: Recorder, definition: Workflow[..., Any], args: tuple[Any, ...], options: ChildOptions, step: int | None
) -> Child[Any]:
    """Start a child workflow."""
    queue = definition.queue or recorder.settings.queue_of(definition.name)
    what = f"arguments of {definition.name!r}"
    written = events.NULL if recorder.mode.rehearsing else definition.encode(args)
    return issue_child(
        recorder,
        events.ChildScheduled,
        definition.name,
        definition.result,
        fingerprinted(recorder, written, what),
        options,
        step,
        queue=queue,
        matching=definition.matching,
        retry=definition.overrides.retry,
        timeout=definition.overrides.timeout,
    )


def issue_child(  # noqa: PLR0913 -- what a command has, a workflow or a flow
    recorder: Recorder,
    kind: type[events.ChildCommand],
    name: str,
    codec: Codec[Any],
    given: tuple[Raw, str | None],
    options: ChildOptions,
    step: int | None,
    *,
    queue: str | None = None,
    matching: str | None = None,
    **fields: Any,
) -> Child[Any]:
    """Issue the command that starts a child, and put its request into the outbox.

    *given* is its input and the fingerprint of that; *queue* is the one of its definition.
    """
    own, (written, digest) = recorder.started, given

    def complete(location: Location) -> dict[str, Any]:
        entity_id = options.id or entity_of(own.run_id, location)
        earlier = recorder.carryover.run_of(location, entity_id, name, digest)
        run_id = earlier or derived_id(recorder.log.stamp(), own.execution_id, location, "run")
        return {"entity_id": entity_id, "run_id": run_id}

    future = recorder.call(
        kind,
        name,
        codec,
        step=step,
        made=Child,
        complete=complete,
        target=options.id,
        queue=options.queue or queue or own.queue,
        input=written,
        digest=digest,
        detach=options.detach,
        deferred=options.deferred,
        on_parent_close=options.policy,
        **fields,
    )
    if not isinstance(future, Child):
        return future  # type: ignore[return-value]  # the execution has a verdict and makes no more calls
    if recorder.is_wanted(future.command) and not recorder.mode.rehearsing:
        recorder.outbox.add(future.command.seq, "children", _request(recorder, future.call, written, matching))
    if recorder.mode.rehearsing or future.command.seq in recorder.pending.started_children:
        future.set_started(recorder.pending.started_children.get(future.command.seq, ""))
    return future


def fingerprinted(recorder: Recorder, written: Raw, what: str) -> tuple[Raw, str | None]:
    """Return the input of a child as it is recorded, and its fingerprint; a rehearsal has none."""
    if recorder.mode.rehearsing:
        return events.NULL, None
    checked = check_size(recorder.settings.max_payload, written, what)
    return checked, blake2b(bytes(checked), digest_size=8).hexdigest()


def execution_id_of(parent: events.WorkflowStarted, call: events.ChildCommand) -> str:
    """Return the execution id of the child that a call starts, unless an earlier attempt has started it."""
    return derived_id(call.at, parent.execution_id, call.location, "execution")


def _request(recorder: Recorder, call: events.ChildCommand, written: Raw, matching: str | None) -> ChildRequest:
    own = recorder.started
    started = first_entry(own, call, written, matching, tags=recorder.log.state.tags)
    kind = started.kind
    in_use = errors.AlreadyExists(
        f"{kind} id {call.entity_id!r} is in use by an open execution; give the child another id, or omit it"
    )
    about: dict[str, Any] = {"ref": 0, "at": call.at, "child": str(call.location), "by": own.execution_id}
    refused: events.ChildAnswer
    if isinstance(call, events.FlowScheduled):
        refused = events.FlowAnswered(**about, outcome="failed", failure=capture(in_use))
    else:
        refused = events.ChildFailed(**about, failure=capture(in_use))
    return ChildRequest(
        started=started,
        created=events.ChildStarted(ref=call.seq, at=call.at, execution_id=started.execution_id),
        refused=refused,
    )


def first_entry(
    own: events.WorkflowStarted,
    call: events.ChildCommand,
    written: Raw,
    matching: str | None = None,
    *,
    tags: dict[str, str],
) -> events.Started:
    """Return the first entry of the child that a call starts; *tags* are those that its parent has by then."""
    about: dict[str, Any] = {
        "seq": 1,
        "at": call.at,
        "name": call.name,
        "queue": call.queue,
        "entity_id": call.entity_id,
        "execution_id": execution_id_of(own, call),
        "run_id": call.run_id,
        "tree_id": call.run_id if call.detach else own.tree_id,
        "input": written,
        "deferred": call.deferred,
        "tags": tags,
        "parent": events.Parent(
            entity_id=own.entity_id,
            run_id=own.run_id,
            execution_id=own.execution_id,
            location=call.location,
            key=child_key(own, call),
            first_run=call.run_id,
            detached=call.detach,
        ),
    }
    if isinstance(call, events.FlowScheduled):
        return FlowStarted(**about)
    return events.WorkflowStarted(**about, matching=matching, python=python(), retry=call.retry, timeout=call.timeout)


def record_never_started(log: Log, call: events.ChildCommand) -> None:
    """Record that a child was cancelled before it had been started."""
    if isinstance(call, events.FlowScheduled):
        log.add(events.FlowAnswered, ref=call.seq, outcome="cancelled")
    else:
        log.add(events.ChildCancelled, ref=call.seq)


def cancel_child(recorder: Recorder, call: events.ChildCommand) -> bool:
    """Request the cancellation of a child; return True if it is final, because the child had not been started."""
    state, log = recorder.log.state, recorder.log
    if call.seq in state.never_started:
        recorder.pending.drop(call.seq)
        return True
    if recorder.verdict.reason is not None or call.seq not in state.open or call.seq in state.cancel_requested:
        return False
    if recorder.outbox.take_back(call.seq, "children"):
        recorder.pending.drop(call.seq)
        record_never_started(log, call)
        return True
    entry = log.add(events.ChildCancelRequested, ref=call.seq)
    request = events.CancelRequested(at=entry.at, reason=f"cancelled by its parent {recorder.started.entity_id}")
    recorder.outbox.add(entry.seq, "messages", message_to_child(recorder.started, call, request))
    return False
