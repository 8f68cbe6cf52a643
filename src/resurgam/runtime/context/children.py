"""Child workflows: their futures, their start, and their cancellation."""

import asyncio
from hashlib import blake2b
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from resurgam.core import errors
from resurgam.core import event as events
from resurgam.core.codec import Codec, check_size
from resurgam.core.failure import capture
from resurgam.core.identity import entity_of
from resurgam.core.location import Location
from resurgam.core.outcome import ChildRequest, Message
from resurgam.runtime.context.outbound import send
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.ids import derived_id
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.matching.recorder import Recorder
from resurgam.runtime.system import python

T = TypeVar("T")
OnParentClose: TypeAlias = Literal["cancel", "abandon", "terminate"]
ChildCall: TypeAlias = events.ChildScheduled | events.EarlierChild


class ChildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a child's start, and of its fate when the parent closes."""

    id: str | None = None
    queue: str | None = None
    detach: bool = False
    deferred: bool = False
    on_parent_close: OnParentClose | None = None

    def __post_init__(self) -> None:
        for option in ("id", "queue"):
            value = getattr(self, option)
            if value is not None and not (isinstance(value, str) and value):
                raise ValueError(f"ctx.workflow: {option} must be a non-empty string, got {value!r}")
        for option in ("detach", "deferred"):
            value = getattr(self, option)
            if not isinstance(value, bool):
                raise TypeError(f"ctx.workflow: {option} must be True or False, got {value!r}")
        if self.on_parent_close not in (None, "cancel", "abandon", "terminate"):
            raise ValueError(
                f"ctx.workflow: on_parent_close must be 'cancel', 'abandon' or 'terminate', got {self.on_parent_close!r}"
            )
        if self.detach and self.on_parent_close not in (None, "abandon"):
            raise ValueError(
                f"ctx.workflow: on_parent_close must be 'abandon' for a detached child, got {self.on_parent_close!r}; "
                "omit one of the two"
            )

    @property
    def policy(self) -> str:
        """The close policy; a deferred child is abandoned by default, because others start it."""
        if self.detach:
            return "abandon"
        return self.on_parent_close or ("abandon" if self.deferred else "cancel")


class Child(Durable[T]):
    """The future of a child workflow: await it for the result of the child's last generation.

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
    def call(self) -> events.ChildScheduled:
        """The command that started the child."""
        assert isinstance(self.command, events.ChildScheduled)
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
    """Issue the command that starts a child, and put its request into the outbox."""
    own = recorder.started
    queue = options.queue or definition.queue or recorder.settings.queue_of(definition.name) or own.queue
    written, digest = _encode(recorder, definition, args)

    def complete(location: Location) -> dict[str, Any]:
        entity_id = options.id or entity_of(own.run_id, location)
        earlier = recorder.carryover.run_of(location, entity_id, definition.name, digest)
        run_id = earlier or derived_id(recorder.log.stamp(), own.execution_id, location, "run")
        return {"entity_id": entity_id, "run_id": run_id}

    future = recorder.call(
        events.ChildScheduled,
        definition.name,
        definition.result,
        step=step,
        made=Child,
        complete=complete,
        target=options.id,
        queue=queue,
        input=written,
        digest=digest,
        detach=options.detach,
        deferred=options.deferred,
        on_parent_close=options.policy,
        retry=definition.overrides.retry,
        timeout=definition.overrides.timeout,
    )
    if not isinstance(future, Child):
        return future  # type: ignore[return-value]  # the execution has a verdict and makes no more calls
    if recorder.is_wanted(future.command) and not recorder.mode.rehearsing:
        request = _request(recorder, future.call, written, definition.matching)
        recorder.outbox.add(future.command.seq, "children", request)
    if recorder.mode.rehearsing or future.command.seq in recorder.pending.started_children:
        future.set_started(recorder.pending.started_children.get(future.command.seq, ""))
    return future


def _encode(recorder: Recorder, definition: Workflow[..., Any], args: tuple[Any, ...]) -> tuple[Raw, str | None]:
    """Return the arguments of a child as they are recorded, and their fingerprint; neither in a rehearsal."""
    if recorder.mode.rehearsing:
        return events.NULL, None
    written = check_size(recorder.settings.max_payload, definition.encode(args), f"arguments of {definition.name!r}")
    return written, blake2b(bytes(written), digest_size=8).hexdigest()


def execution_id_of(parent: events.WorkflowStarted, call: events.ChildScheduled) -> str:
    """Return the execution id of the child that a call starts, unless an earlier attempt has started it."""
    return derived_id(call.at, parent.execution_id, call.location, "execution")


def _request(recorder: Recorder, call: events.ChildScheduled, written: Raw, matching: str | None) -> ChildRequest:
    own, execution_id = recorder.started, execution_id_of(recorder.started, call)
    started = events.WorkflowStarted(
        seq=1,
        at=call.at,
        name=call.name,
        queue=call.queue,
        entity_id=call.entity_id,
        execution_id=execution_id,
        run_id=call.run_id,
        tree_id=call.run_id if call.detach else own.tree_id,
        matching=matching,
        python=python(),
        input=written,
        parent=events.Parent(
            entity_id=own.entity_id,
            run_id=own.run_id,
            execution_id=own.execution_id,
            location=call.location,
            key=child_key(own, call),
            first_run=call.run_id,
            detached=call.detach,
        ),
        deferred=call.deferred,
        retry=call.retry,
        timeout=call.timeout,
    )
    in_use = errors.AlreadyExists(
        f"workflow id {call.entity_id!r} is in use by an open execution; give the child another id, or omit it"
    )
    return ChildRequest(
        started=started,
        created=events.ChildStarted(ref=call.seq, at=call.at, execution_id=execution_id),
        refused=events.ChildFailed(
            ref=0, at=call.at, child=str(call.location), by=own.execution_id, failure=capture(in_use)
        ),
    )


def cancel_child(recorder: Recorder, call: events.ChildScheduled) -> bool:
    """Request the cancellation of a child; return True if it is final, because the child had not been started."""
    state, log = recorder.log.state, recorder.log
    if call.seq in state.never_started:
        recorder.pending.drop(call.seq)
        return True
    if recorder.verdict.reason is not None or call.seq not in state.open or call.seq in state.cancel_requested:
        return False
    if recorder.outbox.take_back(call.seq, "children"):
        recorder.pending.drop(call.seq)
        log.add(events.ChildCancelled, ref=call.seq)
        return True
    entry = log.add(events.ChildCancelRequested, ref=call.seq)
    request = events.CancelRequested(at=entry.at, reason=f"cancelled by its parent {recorder.started.entity_id}")
    recorder.outbox.add(entry.seq, "messages", message_to_child(recorder.started, call, request))
    return False
