"""Register workflow and activity functions by name, and check them."""

import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from resurgam.core.codec import TypeForm
from resurgam.core.errors import DefinitionError, NotFound
from resurgam.core.retry import Duration, RetryPolicy
from resurgam.runtime.context.compensation import COMPENSATION
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.definition import (
    Activity,
    ActivityOptions,
    ActivityRef,
    AsyncActivity,
    Executor,
    Matching,
    OnDivergence,
    SyncActivity,
    Workflow,
    WorkflowOptions,
    WorkflowRef,
)
from resurgam.runtime.definitions.info import ActivityInfo, activity_cancelled, activity_info, heartbeat
from resurgam.runtime.definitions.signature import defined_at

if TYPE_CHECKING:
    from typing_extensions import TypeForm as Form

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D", Activity[..., Any], Workflow[..., Any])
_WorkflowFunction = Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]


class _Definitions(Generic[D]):
    """The definitions of one kind, by name."""

    def __init__(self, kind: str, *built_in: D) -> None:
        self._kind = kind
        self._known: dict[str, D] = {}
        # Definitions that the engine needs itself; they are not listed among those of the user.
        self._built_in: dict[str, D] = {definition.name: definition for definition in built_in}
        self._provided: dict[str, Callable[[], D]] = {}

    def add(self, definition: D) -> None:
        if not (isinstance(definition.name, str) and definition.name):
            raise DefinitionError(
                f"{defined_at(definition.function)}: name must be a non-empty string, got {definition.name!r}"
            )
        known = self._known.get(definition.name)
        if known is not None and _origin(known.function) != _origin(definition.function):
            raise DefinitionError(
                f"{defined_at(definition.function)}: {self._kind} {definition.name!r} is already registered by "
                f"{defined_at(known.function)}; give one of them another name, or use a Registry of its own"
            )
        self._known[definition.name] = definition

    def put(self, definition: D) -> None:
        """Store a definition, replacing one of the same name."""
        self._known[definition.name] = definition

    def provide(self, name: str, make: Callable[[], D]) -> None:
        """Add a definition that the engine needs itself, which *make* returns when it is first looked up."""
        self._provided[name] = make

    def update(self, others: "_Definitions[D]") -> None:
        """Add all definitions of another registry."""
        self._known.update(others._known)

    def find(self, name: str) -> D:
        found = self._known.get(name) or self._built_in.get(name)
        if found is None and name in self._provided:
            found = self._built_in[name] = self._provided[name]()
        if found is None:
            known = ", ".join(sorted(self._known)) or "none"
            raise NotFound(
                f"{self._kind} {name!r} is not registered here (registered: {known}); "
                "import the module that defines it before the engine starts"
            )
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def has(self, name: str) -> bool:
        """Whether `find` returns a definition of this name, one of the engine's own included."""
        return name in self._known or name in self._built_in or name in self._provided

    def __iter__(self) -> Iterator[D]:
        return iter(self._known.values())


class WorkflowDecorator:
    """The decorator ``@workflow``, bare or with options; ``workflow.ref`` names a workflow defined elsewhere."""

    def __init__(self, names: _Definitions[Workflow[..., Any]]) -> None:
        self._names = names

    @overload
    def __call__(self, function: _WorkflowFunction[P, R], /) -> Workflow[Concatenate[Context, P], R]: ...
    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        matching: Matching = "location",
        on_divergence: OnDivergence | None = None,
        late_new: Literal["allow", "warn", "error"] = "allow",
        orphans: Literal["allow", "warn", "error", "cancel"] = "allow",
        input_check: Literal["off", "warn", "strict"] = "off",
        retry: RetryPolicy = ...,
        timeout: Duration | None = None,
    ) -> Callable[[_WorkflowFunction[P, R]], Workflow[Concatenate[Context, P], R]]: ...
    def __call__(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        **options: Any,
    ) -> Any:
        """Register an ``async def`` whose first parameter is the context. For the options see `WorkflowOptions`.

        Without a *queue*, a child runs on its parent's queue and any other workflow on ``"default"``.
        """
        settings = WorkflowOptions(**options)

        def register(function: Callable[..., Any]) -> Workflow[..., Any]:
            _check_workflow(function)
            given = function.__name__ if name is None else name
            definition: Workflow[..., Any] = Workflow(given, function, queue, settings=settings)
            if queue is not None and not (isinstance(queue, str) and queue):
                raise DefinitionError(f"{defined_at(function)}: queue must be a non-empty string, got {queue!r}")
            assert definition.signature is not None
            _check_annotations(function, definition.signature.check)
            self._names.add(definition)
            return definition

        return register if function is None else register(function)

    @overload
    def ref(self, name: str, *, returns: "Form[R]", queue: str | None = None) -> WorkflowRef[R]: ...
    @overload
    def ref(self, name: str, *, queue: str | None = None) -> WorkflowRef[Any]: ...
    def ref(self, name: str, *, returns: TypeForm = Any, queue: str | None = None) -> WorkflowRef[Any]:
        """Return a reference to a workflow by name, with the type of its result."""
        return WorkflowRef(name, None, queue, returns)


class ActivityDecorator:
    """The decorator ``@activity``, bare or with options; ``activity.ref`` names an activity defined elsewhere."""

    def __init__(self, names: _Definitions[Activity[..., Any]]) -> None:
        self._names = names

    @overload
    def __call__(  # type: ignore[overload-overlap]  # every async function is a function too; this fits first
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncActivity[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncActivity[P, R]: ...
    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: RetryPolicy = ...,
        timeout: Duration | None = None,
        start_timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        executor: Executor | None = None,
    ) -> "_ActivityRegistrar": ...
    def __call__(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        **options: Any,
    ) -> Any:
        """Register a function, ``async def`` or plain. For the options see `ActivityOptions`.

        A plain function runs in a thread; with ``executor="process"`` in a process, which is killed on cancellation.
        """
        settings = ActivityOptions(**options)

        def register(function: Callable[..., Any]) -> Activity[..., Any]:
            _check_function(function, "an activity")
            kind: Any = AsyncActivity if inspect.iscoroutinefunction(function) else SyncActivity
            definition: Activity[..., Any] = kind(function.__name__ if name is None else name, function, settings)
            assert definition.signature is not None
            _check_annotations(function, definition.signature.check)
            self._names.add(definition)
            return definition

        return register if function is None else register(function)

    @overload
    def ref(self, name: str, *, returns: "Form[R]") -> ActivityRef[R]: ...
    @overload
    def ref(self, name: str) -> ActivityRef[Any]: ...
    def ref(self, name: str, *, returns: TypeForm = Any) -> ActivityRef[Any]:
        """Return a reference to an activity by name, with the type of its result."""
        return ActivityRef(name, None, ActivityOptions(), returns)

    def info(self) -> ActivityInfo:
        """Return the ids and the attempt of the running activity, and the details of an earlier attempt."""
        return activity_info()

    def heartbeat(self, details: object = None) -> None:
        """Report that the running attempt is alive, and its progress.

        The *details* are stored with the next renewal of the attempt's lease, or with its failure; the next attempt
        finds the latest in ``activity.info().details``. Without details, earlier ones stay. An attempt that was
        cancelled or timed out gets `asyncio.CancelledError` here. A thread started by the activity may call this too,
        if it runs in the activity's context (``asyncio.to_thread``, ``contextvars.copy_context().run``).
        """
        heartbeat(details)

    def cancelled(self) -> bool:
        """Whether the result of the running attempt is no longer needed: it was cancelled, timed out, or lost its lease.

        An async function and a thread also get `asyncio.CancelledError`, a thread as soon as it executes Python code. A
        process is killed at once with SIGTERM, so that only a handler of that signal can see this as true.
        """
        return activity_cancelled()


class _ActivityRegistrar(Protocol):
    """The type of ``@activity(...)`` with options, for static checkers."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # every async function is a function too; this fits first
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncActivity[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncActivity[P, R]: ...


class Registry:
    """Workflows and activities by name. Use separate registries for libraries, tests, or versions of one name."""

    def __init__(self) -> None:
        self.workflows: _Definitions[Workflow[..., Any]] = _Definitions("workflow", COMPENSATION)
        self.activities: _Definitions[Activity[..., Any]] = _Definitions("activity")
        self.workflow = WorkflowDecorator(self.workflows)
        self.activity = ActivityDecorator(self.activities)

    def copy(self) -> "Registry":
        """Return an independent registry with the same definitions."""
        duplicate = Registry()
        duplicate.workflows.update(self.workflows)
        duplicate.activities.update(self.activities)
        return duplicate

    def replace(self, activity: Activity[..., Any] | str, function: Callable[..., object]) -> None:
        """Call *function* instead of the activity's own; argument and result types stay those of the activity."""
        name = activity if isinstance(activity, str) else activity.name
        known = activity if name not in self.activities else self.activities.find(name)
        definition = Activity(name, function, ActivityOptions()) if isinstance(known, str) else known
        self.activities.put(definition.with_function(function))


default_registry = Registry()
activity = default_registry.activity
workflow = default_registry.workflow


def _check_function(function: object, what: str) -> None:
    if not inspect.isfunction(function):
        raise DefinitionError(f"{what} must be a function defined with def or async def, got {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{defined_at(function)}: {what} cannot be a generator; return a list")
    first = next(iter(inspect.signature(function).parameters), "")
    if first == "self" or ("." in function.__qualname__ and first == "cls"):
        raise DefinitionError(f"{defined_at(function)}: {what} cannot be a method; define it as a function")


def _check_workflow(function: Callable[..., Any]) -> None:
    _check_function(function, "a workflow")
    if not inspect.iscoroutinefunction(function):
        raise DefinitionError(f"{defined_at(function)}: a workflow must be an async function; write async def")
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.POSITIONAL_ONLY,
    ):
        raise DefinitionError(
            f"{defined_at(function)}: a workflow must take the context as its first parameter: (ctx, ...)"
        )
    annotation = parameters[0].annotation
    if isinstance(annotation, str) and annotation.rpartition(".")[2] == "Context":
        annotation = Context
    if annotation not in (inspect.Parameter.empty, Context):
        raise DefinitionError(
            f"{defined_at(function)}: the first parameter must be annotated Context, got {annotation!r}"
        )
    for parameter in parameters:
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            raise DefinitionError(
                f"{defined_at(function)}: parameter {parameter.name!r} is keyword-only; "
                "a workflow's arguments are passed by position"
            )


def _check_annotations(function: Callable[..., Any], check: Callable[[], None]) -> None:
    try:
        check()
    except DefinitionError:
        return  # a type defined later or in a local scope is resolved, or refused, at first use
    except Exception as error:
        error.add_note(f"defined at {defined_at(function)}")
        raise


def _origin(function: Any) -> tuple[str, str]:
    return function.__module__, function.__qualname__
