"""Definitions of workflows and activities: the callable objects that the decorators return."""

import inspect
from collections.abc import Callable, Coroutine, Iterable
from copy import copy
from functools import cached_property, update_wrapper
from typing import Any, Final, Generic, Literal, Never, ParamSpec, Self, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.codec import Codec, TypeForm, codec_for
from resurgam.core.errors import DefinitionError
from resurgam.core.retry import Duration, RetryPolicy, RetryRule, milliseconds
from resurgam.runtime.definitions.signature import Signature, defined_at

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Executor: TypeAlias = Literal["thread", "process"]


class ActivityOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an activity. The default *executor* of a plain function is a thread.

    *timeout* limits the duration of an attempt, *start_timeout* the time until a worker starts the activity,
    *heartbeat_timeout* the time between two calls of ``activity.heartbeat()``.
    """

    queue: str | None = None
    retry: RetryPolicy = msgspec.field(default_factory=RetryPolicy)
    timeout: Duration | None = None
    start_timeout: Duration | None = None
    heartbeat_timeout: Duration | None = None
    executor: Executor | None = None

    def __post_init__(self) -> None:
        if self.queue is not None and not (isinstance(self.queue, str) and self.queue):
            raise DefinitionError(f"queue must be a non-empty string, got {self.queue!r}")
        if not isinstance(self.retry, RetryPolicy):
            raise DefinitionError(f"retry must be a RetryPolicy, got {self.retry!r}")
        for option in ("timeout", "start_timeout", "heartbeat_timeout"):
            length = getattr(self, option)
            if length is not None and milliseconds(length) <= 0:
                raise ValueError(f"{option} must be more than 0, got {length!r}")
        if self.executor not in (None, "thread", "process"):
            raise DefinitionError(f"executor must be 'thread' or 'process', got {self.executor!r}")


_ONCE = RetryPolicy(max_attempts=1)
STEP_MARK: Final = "__resurgam_step__"
"""The attribute of a function, and of its activity, that says which step of goal flows it is."""

DEFAULT_QUEUE: Final = "default"
"""The queue of a workflow that is started without a queue and has no parent."""
Matching: TypeAlias = Literal["location", "sequence"]
OnDivergence: TypeAlias = Literal["block", "fail"]


class WorkflowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a workflow.

    *matching*: match steps with the history by location, or by type and number. *on_divergence*: park a diverged run
    until a worker has code that fits, or fail it; None means "block" by location and "fail" by sequence. *late_new*
    (sequence): how to treat a new step while recorded ones are not matched yet. *orphans* (sequence): how to treat
    recorded steps that the code no longer makes. *input_check*: how to treat arguments, durations, and names of
    listeners and branches that differ from the recorded ones.

    *retry*: the policy by which a failed run is retried, as a new execution. *timeout*: the limit for a run over all
    its attempts, counted from the start of its code.
    """

    matching: Matching = "location"
    on_divergence: OnDivergence | None = None
    late_new: Literal["allow", "warn", "error"] = "allow"
    orphans: Literal["allow", "warn", "error", "cancel"] = "allow"
    input_check: Literal["off", "warn", "strict"] = "off"
    retry: RetryPolicy = _ONCE
    timeout: Duration | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.retry, RetryPolicy):
            raise DefinitionError(f"retry must be a RetryPolicy, got {self.retry!r}")
        if self.timeout is not None and milliseconds(self.timeout) <= 0:
            raise ValueError(f"timeout must be more than 0, got {self.timeout!r}")
        for option, known in _KNOWN.items():
            value = getattr(self, option)
            if value not in known:
                choices = " or ".join(map(repr, known))
                raise DefinitionError(f"{option} must be {choices}, got {value!r}")

    def fails(self, matching: str) -> bool:
        """Whether a run that diverges under *matching* fails instead of being parked."""
        return (self.on_divergence or ("fail" if matching == "sequence" else "block")) == "fail"


_KNOWN: dict[str, tuple[str | None, ...]] = {
    "matching": ("location", "sequence"),
    "on_divergence": (None, "block", "fail"),
    "late_new": ("allow", "warn", "error"),
    "orphans": ("allow", "warn", "error", "cancel"),
    "input_check": ("off", "warn", "strict"),
}
_DEFAULT = WorkflowOptions()


class Activity(Generic[P, R_co]):
    """A function that workers run outside the workflow, dispatched through a queue and retried by its own policy."""

    # Every call reads several of these. Python finds a slot faster than a name in the dict, which `update_wrapper` fills.
    __slots__ = (
        *("__dict__", "__weakref__", "_is_substitute", "_returns", "function", "is_async", "name", "request", "rule"),
        *("result_name", "settings", "signature", "start_limit"),
    )

    def __init__(
        self, name: str, function: Callable[P, object] | None, options: ActivityOptions, returns: TypeForm = Any
    ) -> None:
        if function is not None:
            # First, so that attributes which the function happens to have do not overwrite the definition's own.
            update_wrapper(cast("Callable[..., object]", self), function)
            if options.executor == "process":
                _check_for_process(function)
        self.name = name
        self.function = function
        self.settings = options
        # Needed at every call, so computed once.
        self.is_async = inspect.iscoroutinefunction(function)
        self.rule = options.retry.rule()
        self.result_name = f"result of activity {name!r}"
        # Known by name only and without a retry policy: the definition on the worker that runs it decides.
        is_by_name = function is None and options.retry == RetryPolicy()
        self.start_limit = _in_milliseconds(options.start_timeout)
        # What the request of every call has in common.
        self.request: dict[str, Any] = {
            "name": name,
            "retry": None if is_by_name else self.rule,
            "timeout": _in_milliseconds(options.timeout),
            "heartbeat": _in_milliseconds(options.heartbeat_timeout),
            "executor": options.executor,
        }
        self._is_substitute = False
        self.signature = None if function is None else Signature(function, f"activity {name!r}")
        self._returns = returns

    @cached_property
    def result(self) -> Codec[object]:
        """The codec of the activity's result."""
        return codec_for(self._returns) if self.signature is None else self.signature.result

    def runs_in_process(self, requested: Executor | None) -> bool:
        """Whether an attempt runs in a process of its own; *requested* is the executor given by the call, if any.

        A substitute for the function exists in this process only.
        """
        return (requested or self.settings.executor) == "process" and not (self._is_substitute or self.is_async)

    def options(
        self,
        *,
        queue: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        start_timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        executor: Executor | None = None,
    ) -> Self:
        """Return a copy with other options: ``ctx.activity(charge.options(timeout=5), order)``."""
        given: dict[str, Any] = {
            "queue": queue,
            "retry": retry,
            "timeout": timeout,
            "start_timeout": start_timeout,
            "heartbeat_timeout": heartbeat_timeout,
            "executor": executor,
        }
        changed = replace(self.settings, **{key: value for key, value in given.items() if value is not None})
        return type(self)(self.name, self.function, changed, self._returns)

    def with_function(self, function: Callable[..., object]) -> "Activity[P, R_co]":
        """Return a copy that calls *function*, with the argument and result types of this activity."""
        twin = copy(self)
        twin.function = function
        twin.is_async = inspect.iscoroutinefunction(function)
        twin._is_substitute = True
        return twin

    def __repr__(self) -> str:
        return f"<activity {self.name!r}>"


class AsyncActivity(Activity[P, R_co]):
    """An activity written as ``async def``."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Call the function itself, without any durability."""
        assert self.function is not None
        return self.function(*args, **kwargs)  # type: ignore[return-value]  # the decorator saw an async function


class SyncActivity(Activity[P, R_co]):
    """An activity written as ``def``; a worker runs it in a thread or in a process of its own."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function itself, without any durability."""
        assert self.function is not None
        return self.function(*args, **kwargs)  # type: ignore[return-value]  # the decorator saw a plain function


def _in_milliseconds(length: Duration | None) -> int | None:
    return None if length is None else milliseconds(length)


class ActivityRef(Activity[..., R_co]):
    """An activity known by its name and the type of its result only."""


def _check_for_process(function: Callable[..., object]) -> None:
    if inspect.iscoroutinefunction(function):
        raise DefinitionError(
            f"{defined_at(function)}: executor='process' requires a plain function; write def, or omit executor"
        )
    if "<locals>" in function.__qualname__:
        raise DefinitionError(
            f"{defined_at(function)}: executor='process' requires a function that another process can import; "
            "define it at module level"
        )


class Overrides(msgspec.Struct, frozen=True, kw_only=True):
    """Options given to `Workflow.options`, in the form in which a run records them."""

    retry: RetryRule | None = None
    timeout: int | None = None


class Workflow(Generic[P, R_co]):
    """A durable function: ``async def name(ctx, ...)``. Without a *queue*, a run uses its parent's, or ``"default"``."""

    def __init__(
        self,
        name: str,
        function: Callable[P, Coroutine[Any, Any, R_co]] | None,
        queue: str | None,
        returns: TypeForm = Any,
        settings: WorkflowOptions | None = None,
    ) -> None:
        if function is not None:
            # First, so that attributes which the function happens to have do not overwrite the definition's own.
            update_wrapper(cast("Callable[..., object]", self), function)
        self.name = name
        self.function = function
        self.queue = queue
        # None if the workflow is known by name only: the worker that runs it has the definition.
        self.settings = settings
        self.overrides = Overrides()
        self.signature = None if function is None else Signature(function, f"workflow {name!r}", skip=1)
        self._returns = returns
        # Result codecs of update handlers, by name, as far as runs in this process have registered them; None where
        # handlers of one name differ.
        self.update_results: dict[str, Codec[Any] | None] = {}

    @property
    def matching(self) -> Matching | None:
        """The matching that a start records; None if only the worker that runs the workflow knows it."""
        return None if self.settings is None else self.settings.matching

    def options(
        self,
        *,
        queue: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        **unknown: Never,
    ) -> Self:
        """Return a copy with other options: ``engine.start(checkout.options(timeout=60), order)``.

        A run started with the copy records them. They apply to all its attempts and generations, and override the
        definition of the worker.
        """
        for option in unknown:
            where = "@workflow(...)" if option in WorkflowOptions.__struct_fields__ else "the call that starts it"
            raise DefinitionError(
                f"workflow {self.name!r}: options() takes queue, retry and timeout, got {option!r}; give that to {where}"
            )
        if queue is not None and not (isinstance(queue, str) and queue):
            raise DefinitionError(f"workflow {self.name!r}: queue must be a non-empty string, got {queue!r}")
        checked = WorkflowOptions(retry=_ONCE if retry is None else retry, timeout=timeout)
        before = self.overrides
        twin = copy(self)
        twin.queue = self.queue if queue is None else queue
        twin.overrides = Overrides(
            retry=before.retry if retry is None else checked.retry.rule(),
            timeout=before.timeout if timeout is None else milliseconds(timeout),
        )
        return twin

    def settings_of(self, started: events.WorkflowStarted) -> WorkflowOptions:
        """Return the options of a run: those of the definition, overridden by those that its start recorded."""
        settings = _DEFAULT if self.settings is None else self.settings
        if started.retry is not None:
            settings = replace(settings, retry=started.retry.policy())
        if started.timeout is not None:
            settings = replace(settings, timeout=started.timeout / 1000)
        return settings

    def encode(self, args: tuple[object, ...]) -> Raw:
        """Encode arguments as JSON, checked against the signature if the function is known here."""
        if self.signature is not None:
            return self.signature.encode(args)
        return codec_for(Any).encode(args, f"workflow {self.name!r}, arguments")

    @property
    def result(self) -> Codec[object]:
        """The codec of the workflow's result."""
        return codec_for(self._returns) if self.signature is None else self.signature.result

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Call the function itself, as a plain coroutine inside another workflow."""
        if self.function is None:
            raise TypeError(f"{self!r} is known by name only and cannot be called; use ctx.workflow(...)")
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<workflow {self.name!r}>"


class WorkflowRef(Workflow[..., R_co]):
    """A workflow known by its name and the type of its result only."""


def activity_of(given: object) -> Activity[..., Any]:
    """Return the activity for a definition or a name."""
    if isinstance(given, str) and given:
        return Activity(given, None, ActivityOptions())
    if not isinstance(given, Activity):
        raise DefinitionError(f"{given!r} is not an activity; decorate it with @activity, or pass its name")
    return given


def refuse_options(verb: str, workflow: object, unknown: Iterable[str]) -> None:
    """Raise `DefinitionError` for an unknown option of *verb*; say where options of the workflow itself go."""
    for option in sorted(unknown):
        if option in ("retry", "timeout"):
            meant = f"workflow.ref({workflow!r})" if isinstance(workflow, str) else getattr(workflow, "name", "it")
            remedy = f"write {verb}({meant}.options({option}=...), ...)"
        else:
            remedy = "pass a workflow's own arguments by position"
        raise DefinitionError(f"{verb} has no option {option!r}; {remedy}")


def workflow_of(given: object) -> Workflow[..., Any]:
    """Return the workflow for a definition or a name."""
    if isinstance(given, str) and given:
        return Workflow(given, None, None)
    if not isinstance(given, Workflow):
        raise DefinitionError(f"{given!r} is not a workflow; decorate it with @workflow, or pass its name")
    return given
