"""What the decorators make of a function: a definition, which is still a callable."""

import inspect
from collections.abc import Callable, Coroutine
from copy import copy
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast

from resurgam.core.codec import Codec, TypeForm, codec_for
from resurgam.core.errors import DefinitionError
from resurgam.core.retry import Duration, RetryPolicy, milliseconds
from resurgam.runtime.signature import Signature, place

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Executor: TypeAlias = Literal["thread", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityOptions:
    """How an activity is run. Where *executor* is not said, it is a thread."""

    queue: str | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: Duration | None = None
    executor: Executor | None = None

    def __post_init__(self) -> None:
        if self.queue is not None and not (isinstance(self.queue, str) and self.queue):
            raise DefinitionError(f"queue is {self.queue!r}; it is a name")
        if not isinstance(self.retry, RetryPolicy):
            raise DefinitionError(f"retry is {self.retry!r}; it is a RetryPolicy")
        if self.timeout is not None and milliseconds(self.timeout) <= 0:
            raise ValueError(f"timeout is {self.timeout!r}; it must be more than 0")
        if self.executor not in (None, "thread", "process"):
            raise DefinitionError(f"executor is {self.executor!r}; it is 'thread' or 'process'")


Matching: TypeAlias = Literal["location", "sequence"]
OnDivergence: TypeAlias = Literal["block", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowOptions:
    """How a workflow's code is held against its history.

    *matching*: by the place of each step, or by the number of each type. *on_divergence*: park the run until code that
    fits takes it up, or fail it; None is "block" by location and "fail" by sequence. *late_new* (sequence): a new step
    while recorded ones are not matched yet. *orphans* (sequence): recorded steps that the code no longer asks for.
    *input_check*: arguments, durations, the names of listeners and branches that differ from the recorded ones.
    """

    matching: Matching = "location"
    on_divergence: OnDivergence | None = None
    late_new: Literal["allow", "warn", "error"] = "allow"
    orphans: Literal["allow", "warn", "error", "cancel"] = "allow"
    input_check: Literal["off", "warn", "strict"] = "off"

    def __post_init__(self) -> None:
        for option, known in _KNOWN.items():
            value = getattr(self, option)
            if value not in known:
                choices = " or ".join(map(repr, known))
                raise DefinitionError(f"{option} is {value!r}; it is {choices}")

    def fails(self, matching: str) -> bool:
        """Whether a run that diverges under this matching is failed, not parked."""
        return (self.on_divergence or ("fail" if matching == "sequence" else "block")) == "fail"


_KNOWN: dict[str, tuple[str | None, ...]] = {
    "matching": ("location", "sequence"),
    "on_divergence": (None, "block", "fail"),
    "late_new": ("allow", "warn", "error"),
    "orphans": ("allow", "warn", "error", "cancel"),
    "input_check": ("off", "warn", "strict"),
}


class Activity(Generic[P, R_co]):
    """Work outside the workflow, dispatched through a queue and retried on its own."""

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
        # Asked for at every call, so found out once.
        self.is_async = inspect.iscoroutinefunction(function)
        self.rule = options.retry.rule()
        self._stands_in = False
        self.signature = None if function is None else Signature(function, f"activity {name!r}")
        self._returns = returns

    @property
    def result(self) -> Codec[object]:
        """The codec of what the activity returns."""
        return codec_for(self._returns) if self.signature is None else self.signature.result

    def in_process(self, asked: Executor | None) -> bool:
        """Whether an attempt is run in a process of its own; *asked* is what the call said, if it did.

        What stands in for the function is known in this process only.
        """
        return (asked or self.settings.executor) == "process" and not (self._stands_in or self.is_async)

    def options(
        self,
        *,
        queue: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        executor: Executor | None = None,
    ) -> "Activity[P, R_co]":
        """Return a copy that differs in these options: ``ctx.activity(charge.options(timeout=5), order)``."""
        given: dict[str, Any] = {"queue": queue, "retry": retry, "timeout": timeout, "executor": executor}
        changed = replace(self.settings, **{key: value for key, value in given.items() if value is not None})
        return type(self)(self.name, self.function, changed, self._returns)

    def acting(self, function: Callable[..., object]) -> "Activity[P, R_co]":
        """Return a copy that calls *function*, with the arguments and the result of this one."""
        twin = copy(self)
        twin.function = function
        twin.is_async = inspect.iscoroutinefunction(function)
        twin._stands_in = True
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
    """An activity written as ``def``; a worker runs it in a thread, or in a process of its own."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function itself, without any durability."""
        assert self.function is not None
        return self.function(*args, **kwargs)  # type: ignore[return-value]  # the decorator saw a plain function


def _check_for_process(function: Callable[..., object]) -> None:
    if inspect.iscoroutinefunction(function):
        raise DefinitionError(
            f"{place(function)}: executor='process' is for plain functions, and an async one runs on the worker's loop; "
            "write def, or leave the executor out"
        )
    if "<locals>" in function.__qualname__:
        raise DefinitionError(
            f"{place(function)}: executor='process' is for functions that another process can import; "
            "define it at module level"
        )


class Workflow(Generic[P, R_co]):
    """A durable function: ``async def name(ctx, ...)``."""

    def __init__(
        self,
        name: str,
        function: Callable[P, Coroutine[Any, Any, R_co]] | None,
        queue: str,
        returns: TypeForm = Any,
        options: WorkflowOptions | None = None,
    ) -> None:
        if function is not None:
            # First, so that attributes which the function happens to have do not overwrite the definition's own.
            update_wrapper(cast("Callable[..., object]", self), function)
        self.name = name
        self.function = function
        self.queue = queue
        # None where the workflow is known by its name only, so that whoever runs it knows better.
        self.options = options
        self.signature = None if function is None else Signature(function, f"workflow {name!r}", skip=1)
        self._returns = returns

    @property
    def result(self) -> Codec[object]:
        """The codec of what the workflow returns."""
        return codec_for(self._returns) if self.signature is None else self.signature.result

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Call the function itself; useful with a context, as a plain coroutine inside another workflow."""
        if self.function is None:
            raise TypeError(f"{self!r} is known by name only and cannot be called here")
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<workflow {self.name!r}>"


class WorkflowRef(Workflow[..., R_co]):
    """A workflow that is known by its name and the type of its result only."""
