"""The error tree. Each error carries its data in fields and says what to do.

::

    ResurgamError
    ├── WorkflowFailed          the workflow raised an exception (`cause` is that exception)
    ├── WorkflowCancelled       the workflow was cancelled
    ├── WorkflowTerminated      the workflow was terminated from outside, without clean-up
    ├── WorkflowTimeout         the workflow exceeded its own timeout (also a `TimeoutError`)
    ├── ActivityFailed          an activity failed for good (`cause` is the exception of its last attempt)
    ├── ActivityCancelled       an activity was cancelled, but not by the workflow's own code
    ├── ProcessDied             the process of an activity ended before it returned a result
    ├── OperationFailed         a side effect run by ``ctx.run`` raised (`cause` is that exception)
    ├── ChildWorkflowFailed     a child failed, was terminated, or could not be started (`cause` says which)
    ├── ChildWorkflowCancelled  a child was cancelled, but not by its parent's own code
    ├── PromiseRejected         a promise was rejected (`cause` is the reason given)
    ├── PromiseTimeout          a promise was not settled before its deadline (also a `TimeoutError`)
    ├── SignalTimeout           no signal arrived before the deadline (also a `TimeoutError`)
    ├── SignalFailed            a signal could not be delivered to another workflow (`cause` says why)
    ├── UpdateRejected          the workflow rejected an update, or its handler raised (`cause` is that exception)
    ├── ResultTimeout           the result, or an answer, did not arrive in time (also a `TimeoutError`)
    ├── RemoteError             replaces an exception whose type is not known in this process
    ├── AlreadyExists           an open execution has this id
    ├── NotFound                no workflow, activity or execution has this name or id
    ├── DefinitionError         a workflow or activity cannot be registered or called like this (also a `TypeError`)
    ├── SerializationError      a value cannot be encoded or decoded; `path` leads to the field
    │   └── PayloadTooLarge     a value exceeds ``max_payload``
    ├── NotDeterministic        workflow code made a call that cannot be replayed
    ├── NonRetryable            raised by an activity: do not retry
    │   ├── StepRejected        the service of a step has refused a call for good
    │   ├── StepNotCompleted    no call of a step was completed, and no attempt is left
    │   └── NotWanted           the flow does not need a work item any more, so that it is not attempted again
    ├── RetryAfter              raised by an activity: retry after this delay
    ├── Postponed               raised by the engine's own activities: run again at this moment
    ├── CorruptHistory          the events of a history contradict each other
    └── StoreError              the store is unavailable or refused the call
        ├── WriteRejected       the store can never accept this write
        ├── BadCursor           the cursor is not one that this store returned
        └── WrongState          the workflow is in no state for this call

    BaseException               control flow: workflow code must not catch these
    ├── Evicted                 the coroutine is being discarded; its further actions have no effect
    ├── ContinueAsNew           this execution ends, and the next generation starts with these arguments
    └── HistoryDiverged         the code does not fit the history
        ├── LatentHistory       the code of a scope ended, but its history continues
        └── DeterminismViolation  the code does not fit the history, under matching="sequence"
"""

from collections.abc import Sequence

from msgspec import Raw

from resurgam.core.edit import Edit
from resurgam.core.event import Command, Event, Failure
from resurgam.core.location import Location
from resurgam.core.retry import Duration, milliseconds


class ResurgamError(Exception):
    """The base class of all errors of Resurgam."""


def describe(error: BaseException) -> str:
    """Return the type and message of an error in one line."""
    text = str(error)
    kind = error.type_name if isinstance(error, RemoteError) else type(error).__name__
    return f"{kind}: {text}" if text else kind


class _Caused(ResurgamError):
    """A failure caused by another exception; its text names every exception of the chain."""

    @property
    def cause(self) -> BaseException | None:
        """The exception that caused this one, rebuilt from its record."""
        return self.__cause__

    def _summary(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return self._summary() + (f": {describe(self.__cause__)}" if self.__cause__ else "")


class _OfInstance(ResurgamError):
    """An error about a workflow or, by its *kind*, about a flow."""

    kind = "workflow"

    def __init__(self, name: str, entity_id: str, kind: str = "workflow") -> None:
        super().__init__(name, entity_id)
        self.name, self.entity_id = name, entity_id
        if kind != self.kind:
            self.kind = kind


class WorkflowFailed(_OfInstance, _Caused):
    """The workflow raised an exception, or the flow failed; `cause` is that exception."""

    def _summary(self) -> str:
        return f"{self.kind} {self.name!r} ({self.entity_id}) failed"


class WorkflowCancelled(_OfInstance):
    """The workflow or flow was cancelled."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} ({self.entity_id}) was cancelled"


class WorkflowTerminated(_OfInstance):
    """The workflow or flow was terminated from outside, without clean-up."""

    def __init__(self, name: str, entity_id: str, reason: str = "", kind: str = "workflow") -> None:
        super().__init__(name, entity_id, kind)
        self.args, self.reason = (name, entity_id, reason), reason

    def __str__(self) -> str:
        said = f": {self.reason}" if self.reason else ""
        return f"{self.kind} {self.name!r} ({self.entity_id}) was terminated{said}"


class WorkflowTimeout(ResurgamError, TimeoutError):
    """The workflow did not end within its ``timeout``, which includes retries. Raise the timeout or do less work in a run."""

    def __init__(self, name: str, entity_id: str, seconds: float) -> None:
        super().__init__(name, entity_id, seconds)
        self.name, self.entity_id, self.seconds = name, entity_id, seconds

    def __str__(self) -> str:
        return f"workflow {self.name!r} ({self.entity_id}) did not end within its timeout of {self.seconds:g} s"


class ActivityFailed(_Caused):
    """An activity failed for good; `cause` is the exception of its last attempt."""

    def __init__(self, name: str, attempts: int) -> None:
        super().__init__(name, attempts)
        self.name, self.attempts = name, attempts

    def _summary(self) -> str:
        tries = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return f"activity {self.name!r} failed after {tries}"


class ActivityCancelled(ResurgamError):
    """An activity was cancelled, but not by the workflow's own code."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"activity {self.name!r} was cancelled"


class ProcessDied(ResurgamError):
    """The process that ran an attempt of an activity ended before it returned a result."""

    def __init__(self, name: str, how: str) -> None:
        super().__init__(name, how)
        self.name, self.how = name, how

    def __str__(self) -> str:
        return f"the process that ran activity {self.name!r} {self.how}"


class OperationFailed(_Caused):
    """A side effect run by ``ctx.run`` raised. Operations are not retried; use an activity for retries."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def _summary(self) -> str:
        return f"operation {self.name!r} failed"


class ChildWorkflowFailed(_OfInstance, _Caused):
    """A child workflow or flow failed, was terminated, or could not be started; `cause` says which."""

    def _summary(self) -> str:
        return f"child {self.kind} {self.name!r} ({self.entity_id}) failed"


class ChildWorkflowCancelled(_OfInstance):
    """A child workflow or flow was cancelled, but not by its parent's own code."""

    def __str__(self) -> str:
        return f"child {self.kind} {self.name!r} ({self.entity_id}) was cancelled"


class PromiseRejected(_Caused):
    """A promise was rejected; `cause` is the reason given."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def _summary(self) -> str:
        return f"promise {self.name!r} was rejected"


class PromiseTimeout(ResurgamError, TimeoutError):
    """A promise was not settled before its deadline."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"promise {self.name!r} was not settled in time"


class SignalTimeout(ResurgamError, TimeoutError):
    """No signal arrived before the listener's deadline."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self.names = tuple(names)

    def __str__(self) -> str:
        return f"no signal {' or '.join(map(repr, self.names))} arrived in time"


class SignalFailed(_Caused):
    """A signal could not be delivered: no workflow has this id, or it is closed."""

    def __init__(self, entity_id: str, name: str) -> None:
        super().__init__(entity_id, name)
        self.entity_id, self.name = entity_id, name

    def _summary(self) -> str:
        return f"signal {self.name!r} did not reach workflow {self.entity_id!r}"


class UpdateRejected(_Caused):
    """The workflow rejected an update, or the update's handler raised; `cause` is that exception."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def _summary(self) -> str:
        return f"update {self.name!r} was rejected"


class ResultTimeout(ResurgamError, TimeoutError):
    """The result, or the answer to a query or an update, did not arrive in time. The workflow continues."""


class RemoteError(ResurgamError):
    """Replaces an exception whose type is not known, or cannot be rebuilt, in this process.

    *fields* are the recorded attributes of that exception.
    """

    def __init__(self, type_name: str, message: str, traceback: str = "") -> None:
        super().__init__(type_name, message, traceback)
        self.type_name, self.message, self.traceback = type_name, message, traceback
        self.fields: dict[str, object] = {}

    def __str__(self) -> str:
        return self.message


class AlreadyExists(ResurgamError):
    """An open execution has this id. Use another id, or ``if_exists=``."""


class NotFound(ResurgamError):
    """No workflow, activity or execution has this name or id."""


class DefinitionError(ResurgamError, TypeError):
    """A workflow or activity cannot be registered, or does not accept the arguments of a call."""


class SerializationError(ResurgamError):
    """A value cannot be encoded for a history, or decoded from one."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class PayloadTooLarge(SerializationError):
    """The encoded value is larger than ``max_payload`` of the engine."""

    def __init__(self, path: str, size: int, limit: int) -> None:
        super().__init__(
            path,
            f"{size:,} bytes exceed the limit of {limit:,}; store the value elsewhere and pass a reference to it, "
            "or raise max_payload",
        )
        self.size, self.limit = size, limit


class NotDeterministic(ResurgamError):
    """Workflow code made a call that cannot be replayed."""


class NonRetryable(ResurgamError):
    """Raise this in an activity to fail it without further retries."""


class StepRejected(NonRetryable):
    """The service of an HTTP step has refused a call for good, or the step cannot be called as it is defined."""


class StepNotCompleted(NonRetryable):
    """No call of a step was completed, and no attempt is left: its service failed, or gave no answer in time."""


class NotWanted(NonRetryable):
    """The flow does not need a work item any more, so that it is not attempted again."""


class RetryAfter(ResurgamError):
    """Raise this in an activity to set the delay before the next attempt."""

    def __init__(self, pause: Duration, message: str = "") -> None:
        super().__init__(pause, message)
        self.pause_ms = min(max(0, milliseconds(pause)), 10 * 365 * 86400 * 1000)
        self.message = message

    def __str__(self) -> str:
        return self.message or f"retry after {self.pause_ms / 1000:g} s"


class Postponed(ResurgamError):
    """Raised by activities of the engine itself: run again at the moment *next_at*, whatever the retry policy says.

    *failure* is recorded, and *details* are those of the next attempt. *failed*: this attempt has failed, and did not
    only find that it is too early.
    """

    def __init__(self, next_at: int, failure: Failure, details: Raw, *, failed: bool = True) -> None:
        super().__init__(next_at, failure.message)
        self.next_at, self.failure, self.details, self.failed = next_at, failure, details, failed

    def __str__(self) -> str:
        return self.failure.message


class CorruptHistory(ResurgamError):
    """The events of a history contradict each other, or one cannot be decoded; *readable* are the entries before it."""

    def __init__(self, *args: object, readable: Sequence[Event] = ()) -> None:
        super().__init__(*args)
        self.readable = tuple(readable)


class StoreError(ResurgamError):
    """The store is unavailable or refused the call."""


class WriteRejected(StoreError):
    """The store can never accept this write: a row is too large, or violates a constraint of the database.

    Retrying does not help. A workflow whose commit is rejected becomes a dead letter, and ``handle.retry()`` releases
    it.
    """


class BadCursor(StoreError):
    """The cursor is not one that the feed of this store returned."""


class WrongState(StoreError):
    """The workflow or flow is in no state for this call: it is not paused, has nothing to retry, or takes no messages."""


class Evicted(BaseException):
    """The coroutine is being discarded, and its further actions have no effect. Never catch this."""


class ContinueAsNew(BaseException):
    """The execution ends, and the next generation starts with *args*. Never catch this.

    *signals* decides whether unread signals are passed on: ``"carry"`` or ``"drop"``.
    """

    def __init__(self, args: tuple[object, ...] = (), signals: str = "carry") -> None:
        super().__init__(*args)
        self.signals = signals

    def __str__(self) -> str:
        return f"the workflow continues as new with {len(self.args)} arguments; do not catch this"


class HistoryDiverged(BaseException):
    """The code does not fit the recorded history. The run is parked until a worker has code that fits.

    *remedy* lists the edits that make the code fit; it is empty if no local edit does, and None if none was searched
    for. *ran* lists the steps that were started before the divergence was detected.
    """

    def __init__(
        self,
        location: Location,
        command: str,
        field: str,
        *,
        code_value: str,
        history_value: str,
        event_seq: int,
        source: str = "",
    ) -> None:
        super().__init__(str(location), command, field, code_value, history_value, event_seq, source)
        self.location, self.command, self.field = location, command, field
        self.code_value, self.history_value = code_value, history_value
        self.event_seq, self.source = event_seq, source
        self.remedy: Sequence[Edit] | None = None
        self.ran: tuple[str, ...] = ()
        # For the search for a remedy: the scope, the number of the call in it, the code's call, the recorded command.
        self.call: tuple[Location, int] | None = None
        self.scope_version = 1
        self.intent: type[Command] | None = None
        self.intent_name: str | None = None
        self.event: Command | None = None

    def __str__(self) -> str:
        return self._summary() + self._advice()

    def _summary(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return (
            f"{self.command} at {self.location}{where}: the code has {self.field} {self.code_value!r}, "
            f"entry {self.event_seq} of the history has {self.history_value!r}"
        )

    def _advice(self) -> str:
        ran = f"; started before this was detected: {', '.join(self.ran)}" if self.ran else ""
        if self.remedy is None:
            return ran
        if not self.remedy:
            return f"{ran}; no local edit fits: restore the code that wrote this history, or terminate the run"
        return f"{ran}; the remedy: " + "; ".join(map(str, self.remedy))


class LatentHistory(HistoryDiverged):
    """The code of a scope ended, but its history continues."""

    def _summary(self) -> str:
        return (
            f"the code of scope {self.location.scope} ended, but its history continues with {self.command} "
            f"{self.history_value!r} at {self.location} (entry {self.event_seq})"
        )


_MISMATCHES = {
    ("Task", "name"): "Task type",
    ("Operation", "name"): "Operation name",
    ("State", "name"): "State key",
    ("Promise", "name"): "Promise name",
    ("ChildWorkflow", "name"): "Child workflow name",
    ("ChildWorkflow", "kind"): "Child workflow kind",
    ("Flow", "name"): "Flow name",
    ("Flow", "kind"): "Flow goals",
    ("Settlement", "name"): "Promise ID",
}


class DeterminismViolation(HistoryDiverged):
    """The code does not fit the recorded history, matched by type and number: ``matching="sequence"``."""

    def _summary(self) -> str:
        if self.field == "orphan":
            held = f"{self.command} {self.history_value!r} at {self.location} (entry {self.event_seq})"
            return f"{held} is recorded, but the code does not request it"
        kind = self.command.partition("(")[0]
        what = _MISMATCHES.get((kind, self.field), "Type" if self.field == "type" else f"{kind} {self.field}")
        return f"{what} mismatch at {self.command}: expected {self.code_value!r}, got {self.history_value!r}"
