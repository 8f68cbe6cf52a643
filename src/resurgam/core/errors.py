"""The error tree. Each error carries its data in fields and says what to do.

::

    ResurgamError
    ├── WorkflowFailed          the workflow ended with an exception (`cause` is that exception)
    ├── WorkflowCancelled       the workflow was asked to stop, and stopped
    ├── WorkflowTerminated      the workflow was ended at once, from outside
    ├── WorkflowTimeout         the workflow did not end within its own timeout (also a `TimeoutError`)
    ├── ActivityFailed          an activity failed for good (`cause` is its last exception)
    ├── ActivityCancelled       somebody other than the workflow's own code called the activity off
    ├── ProcessDied             the process of an activity ended before it answered
    ├── OperationFailed         a side effect run by ``ctx.run`` raised (`cause` is what it raised)
    ├── ChildWorkflowFailed     a child failed, was terminated, or could not be begun (`cause` says how)
    ├── ChildWorkflowCancelled  a child was asked to stop by somebody else, and stopped
    ├── PromiseRejected         somebody said that there will be no value (`cause` is what was given as the reason)
    ├── PromiseTimeout          nobody settled the promise in time (also a `TimeoutError`)
    ├── SignalTimeout           no signal came in time (also a `TimeoutError`)
    ├── SignalFailed            what was sent to another workflow did not reach it (`cause` says why)
    ├── UpdateRejected          the workflow refused an update, or its handler raised (`cause` is that exception)
    ├── ResultTimeout           the result, or an answer, did not come in time (also a `TimeoutError`)
    ├── RemoteError             stands for an exception whose type is not known in this process
    ├── AlreadyExists           the id is in use
    ├── NotFound                no workflow, activity or execution of that name or id
    ├── DefinitionError         a workflow or activity that cannot be registered (also a `TypeError`)
    ├── SerializationError      a value that cannot be written or read, with the path to the field
    │   └── PayloadTooLarge     a value that is larger than ``max_payload`` allows
    ├── NotDeterministic        workflow code did what cannot be replayed
    ├── NonRetryable            raise it in an activity: do not try again
    ├── RetryAfter              raise it in an activity: try again after this long
    ├── CorruptHistory          the entries of a history do not fit together
    └── StoreError              the store refused or cannot do it
        └── WriteRejected       the store can never take this write, however often it is tried

    BaseException               control flow: not to be caught by workflow code
    ├── Evicted                 this coroutine is being put away; nothing it does counts any more
    ├── ContinueAsNew           this execution ends here, and the next begins with these arguments
    └── HistoryDiverged         the code does not fit the history
        ├── LatentHistory       the code ended while the history goes on
        └── DeterminismViolation  the same under matching="sequence"
"""

from collections.abc import Sequence

from resurgam.core.edit import Edit
from resurgam.core.event import Command
from resurgam.core.location import Location
from resurgam.core.retry import Duration, milliseconds


class ResurgamError(Exception):
    """Something went wrong in or around a durable workflow."""


def describe(error: BaseException) -> str:
    """Return type and message of an error in one line."""
    text = str(error)
    kind = error.type_name if isinstance(error, RemoteError) else type(error).__name__
    return f"{kind}: {text}" if text else kind


class _Caused(ResurgamError):
    """A failure that somebody else's exception led to; its text names every link of the chain."""

    @property
    def cause(self) -> BaseException | None:
        """The exception that led here, rebuilt from what was recorded of it."""
        return self.__cause__

    def _summary(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return self._summary() + (f": {describe(self.__cause__)}" if self.__cause__ else "")


class WorkflowFailed(_Caused):
    """The workflow ended with an exception."""

    def __init__(self, name: str, entity_id: str) -> None:
        super().__init__(name, entity_id)
        self.name, self.entity_id = name, entity_id

    def _summary(self) -> str:
        return f"workflow {self.name!r} ({self.entity_id}) failed"


class WorkflowCancelled(ResurgamError):
    """The workflow was asked to stop, and stopped."""

    def __init__(self, name: str, entity_id: str) -> None:
        super().__init__(name, entity_id)
        self.name, self.entity_id = name, entity_id

    def __str__(self) -> str:
        return f"workflow {self.name!r} ({self.entity_id}) was cancelled"


class WorkflowTerminated(ResurgamError):
    """The workflow was ended at once, from outside."""

    def __init__(self, name: str, entity_id: str, reason: str = "") -> None:
        super().__init__(name, entity_id, reason)
        self.name, self.entity_id, self.reason = name, entity_id, reason

    def __str__(self) -> str:
        return f"workflow {self.name!r} ({self.entity_id}) was terminated" + (f": {self.reason}" if self.reason else "")


class WorkflowTimeout(ResurgamError, TimeoutError):
    """The workflow did not end within its own ``timeout``, retries included."""

    def __init__(self, name: str, entity_id: str, seconds: float) -> None:
        super().__init__(name, entity_id, seconds)
        self.name, self.entity_id, self.seconds = name, entity_id, seconds

    def __str__(self) -> str:
        return f"workflow {self.name!r} ({self.entity_id}) did not end within its timeout of {self.seconds:g} s"


class ActivityFailed(_Caused):
    """An activity failed for good."""

    def __init__(self, name: str, attempts: int) -> None:
        super().__init__(name, attempts)
        self.name, self.attempts = name, attempts

    def _summary(self) -> str:
        tries = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return f"activity {self.name!r} failed after {tries}"


class ActivityCancelled(ResurgamError):
    """Somebody other than the workflow's own code called the activity off."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"activity {self.name!r} was cancelled"


class ProcessDied(ResurgamError):
    """The process that ran an attempt of an activity ended before it answered."""

    def __init__(self, name: str, how: str) -> None:
        super().__init__(name, how)
        self.name, self.how = name, how

    def __str__(self) -> str:
        return f"the process that ran activity {self.name!r} {self.how}"


class OperationFailed(_Caused):
    """A side effect run by ``ctx.run`` raised; such operations are not retried."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def _summary(self) -> str:
        return f"operation {self.name!r} failed"


class ChildWorkflowFailed(_Caused):
    """A child failed, was terminated, or could not be begun."""

    def __init__(self, name: str, entity_id: str) -> None:
        super().__init__(name, entity_id)
        self.name, self.entity_id = name, entity_id

    def _summary(self) -> str:
        return f"child workflow {self.name!r} ({self.entity_id}) failed"


class ChildWorkflowCancelled(ResurgamError):
    """A child was asked to stop by somebody other than its parent's own code, and stopped."""

    def __init__(self, name: str, entity_id: str) -> None:
        super().__init__(name, entity_id)
        self.name, self.entity_id = name, entity_id

    def __str__(self) -> str:
        return f"child workflow {self.name!r} ({self.entity_id}) was cancelled"


class PromiseRejected(_Caused):
    """Somebody said that there will be no value."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def _summary(self) -> str:
        return f"promise {self.name!r} was rejected"


class PromiseTimeout(ResurgamError, TimeoutError):
    """Nobody settled the promise before its deadline."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"nobody settled promise {self.name!r} in time"


class SignalTimeout(ResurgamError, TimeoutError):
    """No signal came before the listener's deadline."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self.names = tuple(names)

    def __str__(self) -> str:
        return f"no signal {' or '.join(map(repr, self.names))} came in time"


class SignalFailed(_Caused):
    """What was sent to another workflow did not reach it: there is none of that id, or it has ended."""

    def __init__(self, entity_id: str, name: str) -> None:
        super().__init__(entity_id, name)
        self.entity_id, self.name = entity_id, name

    def _summary(self) -> str:
        return f"signal {self.name!r} did not reach workflow {self.entity_id!r}"


class UpdateRejected(_Caused):
    """The workflow refused an update, or the handler that had begun with it raised."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def _summary(self) -> str:
        return f"update {self.name!r} was rejected"


class ResultTimeout(ResurgamError, TimeoutError):
    """The result, or the answer to a query or an update, did not come in time; the workflow goes on."""


class RemoteError(ResurgamError):
    """Stands for an exception whose type is not known, or cannot be rebuilt, in this process.

    *fields* are the attributes of that exception as far as they were recorded.
    """

    def __init__(self, type_name: str, message: str, traceback: str = "") -> None:
        super().__init__(type_name, message, traceback)
        self.type_name, self.message, self.traceback = type_name, message, traceback
        self.fields: dict[str, object] = {}

    def __str__(self) -> str:
        return self.message


class AlreadyExists(ResurgamError):
    """The id is in use by an open execution."""


class NotFound(ResurgamError):
    """There is no workflow, activity or execution of that name or id."""


class DefinitionError(ResurgamError, TypeError):
    """A workflow or activity that cannot be registered, or is called with arguments it does not take."""


class SerializationError(ResurgamError):
    """A value that cannot be written to a history, or read from one."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class PayloadTooLarge(SerializationError):
    """A value that is larger, as it would be recorded, than the engine's ``max_payload`` allows."""

    def __init__(self, path: str, size: int, limit: int) -> None:
        super().__init__(
            path,
            f"{size:,} bytes, and at most {limit:,} are recorded; keep the value elsewhere and pass where it is, "
            "or raise max_payload",
        )
        self.size, self.limit = size, limit


class NotDeterministic(ResurgamError):
    """Workflow code did what cannot be replayed."""


class NonRetryable(ResurgamError):
    """Raise it in an activity to say: trying again is of no use."""


class RetryAfter(ResurgamError):
    """Raise it in an activity to say when the next attempt begins."""

    def __init__(self, pause: Duration, message: str = "") -> None:
        super().__init__(pause, message)
        self.pause_ms = min(max(0, milliseconds(pause)), 10 * 365 * 86400 * 1000)
        self.message = message

    def __str__(self) -> str:
        return self.message or f"try again after {self.pause_ms / 1000:g} s"


class CorruptHistory(ResurgamError):
    """The entries of a history do not fit together."""


class StoreError(ResurgamError):
    """The store refused, or cannot do it."""


class WriteRejected(StoreError):
    """The store can never take this write: a row would be too large, or break a rule of the database.

    Trying again does not help. A workflow whose commit is rejected is put aside, and ``handle.retry()`` hands it out
    again.
    """


class Evicted(BaseException):
    """A coroutine is being put away: what it does from now on does not count. Never catch it."""


class ContinueAsNew(BaseException):
    """The execution ends here, and the next begins with *args*. Never catch it.

    *signals* says what becomes of those that were not taken: ``"carry"`` or ``"drop"``.
    """

    def __init__(self, args: tuple[object, ...] = (), signals: str = "carry") -> None:
        super().__init__(*args)
        self.signals = signals

    def __str__(self) -> str:
        return f"the workflow continues as new with {len(self.args)} arguments; let this pass"


class HistoryDiverged(BaseException):
    """The code does not fit the recorded history. The run is parked until code that fits takes it up.

    *remedy* are the edits of the code with which it would fit; empty if no local edit does, None if none was looked for.
    *ran* are the steps that were begun before this was found.
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
        # For finding a remedy: the strand and the number of the call in it, what was asked for, what the history holds.
        self.place: tuple[Location, int] | None = None
        self.scope_version = 1
        self.intent: type[Command] | None = None
        self.asked: str | None = None
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
        ran = f"; begun before this was found: {', '.join(self.ran)}" if self.ran else ""
        if self.remedy is None:
            return ran
        if not self.remedy:
            return f"{ran}; no local edit fits: bring back the code that wrote this history, or terminate the run"
        return f"{ran}; the remedy: " + "; ".join(map(str, self.remedy))


class LatentHistory(HistoryDiverged):
    """The code of a scope ended while its history goes on."""

    def _summary(self) -> str:
        return (
            f"the code of scope {self.location.scope} ended, but its history goes on with {self.command} "
            f"{self.history_value!r} at {self.location} (entry {self.event_seq})"
        )


_MISMATCHES = {
    ("Task", "name"): "Task type",
    ("Operation", "name"): "Operation name",
    ("State", "name"): "State key",
    ("Promise", "name"): "Promise name",
    ("ChildWorkflow", "name"): "Child workflow name",
    ("ChildWorkflow", "kind"): "Child workflow kind",
    ("Settlement", "name"): "Promise ID",
}


class DeterminismViolation(HistoryDiverged):
    """The code does not fit the recorded history, told by type and number: ``matching="sequence"``."""

    def _summary(self) -> str:
        if self.field == "orphan":
            held = f"{self.command} {self.history_value!r} at {self.location} (entry {self.event_seq})"
            return f"{held} is recorded, and the code does not ask for it"
        kind = self.command.partition("(")[0]
        what = _MISMATCHES.get((kind, self.field), "Type" if self.field == "type" else f"{kind} {self.field}")
        return f"{what} mismatch at {self.command}: expected {self.code_value!r}, got {self.history_value!r}"
