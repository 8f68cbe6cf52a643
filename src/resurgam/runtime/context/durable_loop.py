"""`ctx.loop`: runs a body over and over, and lets what is done be forgotten.

Iteration *i* of a loop at ``{2}`` has its steps below ``{2, i}``. Every `forget_every` iterations the loop asks for a
checkpoint, an entry that the engine makes as soon as nothing else is ready: it holds the loop's state and the
workflow's, and with it all that the iterations did is forgotten. When the run is loaded again, the loop waits for its
newest checkpoint and goes on from there; the bodies before it are never run again. That is why a body may share nothing
that changes with the code around it.
"""

import asyncio
import dis
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_args, get_origin

import msgspec

from resurgam.core import event as events
from resurgam.core.codec import Codec, codec_for
from resurgam.core.errors import DefinitionError, NotDeterministic, SerializationError
from resurgam.core.location import Location
from resurgam.core.retry import is_whole
from resurgam.runtime.definitions.definition import Activity, Workflow
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.loop.scope import Scope, current
from resurgam.runtime.matching.divergence import source, unfit

if TYPE_CHECKING:
    from resurgam.runtime.context.context import Context
    from resurgam.runtime.matching.recorder import Recorder

S = TypeVar("S")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Continue(Generic[S]):
    """What the body of a loop returns to be run again, with this state."""

    state: S = None  # type: ignore[assignment]  # a loop without a state has None


@dataclass(frozen=True, slots=True)
class Break(Generic[V]):
    """What the body of a loop returns to end it; ``await ctx.loop(...)`` gives the value."""

    value: V = None  # type: ignore[assignment]  # a loop without a result gives None


Body = Callable[..., Coroutine[Any, Any, "Continue[Any] | Break[Any]"]]


class DurableLoop:
    """One running loop."""

    def __init__(self, recorder: "Recorder", context: "Context", future: Durable[Any], body: Body) -> None:
        assert isinstance(future.command, events.LoopStarted)
        self.command = future.command
        self.done = 0
        self.forgotten = 0
        self.state: Any = self.command.state
        # The entry that holds this state, unless the body has just given it.
        self._from: events.Event | None = self.command
        self.value: Any = None
        # What the loop waits for the engine to write: a checkpoint, or its end.
        self.wants: type[events.Checkpoint] | None = None
        self._recorder = recorder
        self._context = context
        self._source = source()
        self._body = body
        self._state_codec, self._value_codec = codecs(body)
        self._future = future
        self._waiting: asyncio.Future[events.LoopCheckpointed] | None = None
        early = recorder.early.checkpoints.pop(self.command.seq, None)
        self._early = {} if early is None else {early.iteration: early}
        self._recorded = recorder.past.last_iteration(self.command.location)

    async def run(self) -> Any:
        """Run the body until it breaks."""
        try:
            return await self._run(current.get())
        finally:
            self._recorder.loops.pop(self.command.seq, None)
            self._recorder.pending.pop(self.command.seq, None)

    async def _run(self, scope: Scope) -> Any:
        completed = self._recorder.past.completions.get(self.command.seq)
        if completed is not None and completed.whole:
            return await self._end(None)
        newest = self._recorder.past.checkpoints.get(self.command.seq)
        if newest is not None:
            self._resume(await self._checkpoint(newest.iteration))
        while True:
            answer = await self._iterate()
            current.set(scope)
            self.done += 1
            if isinstance(answer, Break):
                return await self._end(answer)
            if not isinstance(answer, Continue):
                raise TypeError(
                    f"the body of a loop returned {answer!r}; return Continue(state) to go on, or Break(value) to end it"
                )
            self.state = self._recorder.write(self._state_codec, answer.state, "the state of a loop")
            self._from = None
            if self._is_long_enough() and await self._is_due():
                self._resume(await self._checkpoint(self.done))

    async def _iterate(self) -> object:
        place = self.command.location.child((self.done + 1,))
        scope = self._recorder.scope_at(place, self.command.version)
        current.set(scope)
        state = self._read(self._state_codec, self.state, "the state of a loop", self._from)
        begun = self._body(self._context, state)
        if not inspect.isawaitable(begun):
            raise DefinitionError(f"the body of a loop, {self._body!r}, is not async; write async def")
        answer = await begun
        self._recorder.close_scope(scope)
        return answer

    def _is_long_enough(self) -> bool:
        every = self.command.forget_every
        return every is not None and self.done - self.forgotten >= every

    async def _is_due(self) -> bool:
        """Whether a checkpoint is to be made now, as far as nothing is still under way once nothing else is ready.

        What the body called off last has not ended before that, and what it left to a callback has not begun.
        """
        await self._recorder.loop.add_condition(lambda: True)
        if self.done in self._early:
            return True
        # A history that goes on without a checkpoint was written by code for which it had to be put off here.
        return self._recorded <= self.done and self.is_quiet()

    def is_quiet(self) -> bool:
        """Whether nothing that was begun in the iterations since the last checkpoint is still under way."""
        return not any(map(self._is_mine, self._recorder.places_at_work()))

    def _is_mine(self, place: Location) -> bool:
        depth = len(self.command.location.coordinates)
        return self.command.location.contains(place) and len(place.coordinates) > depth

    async def _checkpoint(self, iteration: int) -> events.LoopCheckpointed:
        early = self._early.pop(iteration, None)
        if early is not None:
            return early
        self._waiting = self._recorder.loop.create_future()
        self.wants = events.LoopCheckpointed
        return await self._waiting

    def checkpointed(self, entry: events.LoopCheckpointed) -> None:
        """The checkpoint has been written, or is being told again."""
        if self._waiting is None or self._waiting.done():
            self._early[entry.iteration] = entry
            return
        self.wants = None
        self._waiting.set_result(entry)

    def _resume(self, entry: events.LoopCheckpointed) -> None:
        self.done = self.forgotten = entry.iteration
        self.state, self._from = entry.state, entry
        self._recorder.state.restore(entry)

    async def _end(self, answer: "Break[Any] | None") -> Any:
        if answer is not None:
            self.value = self._recorder.write(self._value_codec, answer.value, "the value of a loop")
            self.wants = events.LoopCompleted
        completed = await self._future
        if completed.whole:
            self._recorder.state.restore(completed)
        return self._read(self._value_codec, completed.result, "the value of a loop", completed)

    def _read(self, codec: Codec[Any], written: Any, what: str, entry: events.Event | None) -> Any:
        """Return a value; one of an older history that does not fit any more is a change of the code, not a failure."""
        try:
            return self._recorder.read(codec, written, what)
        except SerializationError as error:
            if entry is None or not 0 < entry.seq <= self._recorder.log.recorded_seq:
                raise
            reason = f"a type that does not fit ({error.reason})"
            verdict = self._recorder.verdict = unfit(self.command, entry, "type", reason, error.path)
            verdict.source = self._source
            raise verdict from error


def state_codec(body: Body) -> Codec[Any]:
    """Return how the state of a loop is written."""
    return codecs(body)[0]


def check_bounds(forget_every: object, keep_forgotten: object) -> None:
    """Refuse numbers that mean nothing."""
    if forget_every is not None and not is_whole(forget_every, 1):
        raise ValueError(f"forget_every is {forget_every!r}; it is a whole number from 1, or None for never")
    if not is_whole(keep_forgotten, 0):
        raise ValueError(f"keep_forgotten is {keep_forgotten!r}; it is a whole number from 0")


def codecs(body: Body) -> tuple[Codec[Any], Codec[Any]]:
    """Return how the state and the value of a loop are written, by the annotations of its body."""
    try:
        signature = inspect.signature(body, eval_str=True)
    except (NameError, TypeError, ValueError):
        return codec_for(Any), codec_for(Any)
    parameters = list(signature.parameters.values())
    state = parameters[1].annotation if len(parameters) > 1 else inspect.Parameter.empty
    returned = signature.return_annotation
    given = [form for form in (returned, *get_args(returned)) if get_origin(form) is Break]
    value = get_args(given[0])[0] if given else Any
    return codec_for(Any if state is inspect.Parameter.empty else state), codec_for(value)


# What a body may share with the code around it.

_REBINDING: Final = {"STORE_DEREF", "DELETE_DEREF", "STORE_GLOBAL", "DELETE_GLOBAL"}
_VALUES: Final = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, Activity, Workflow)


def check_body(body: object) -> None:
    """Refuse a body that shares what can change with code outside it: once forgotten, it is not run again."""
    if not callable(body):
        raise DefinitionError(f"{body!r} is not the body of a loop; give an async function of (ctx, state)")
    shared = _shared(body, set())
    if shared:
        raise NotDeterministic(
            f"the body of this loop {shared}; finished iterations are forgotten and never run again, so pass it in the "
            "loop's state or keep it with ctx.set and ctx.get, or give forget_every=None"
        )


def check_handler(handler: object, what: str) -> None:
    """Refuse a handler beside a loop that forgets, if it changes anything but the durable state."""
    shared = _shared(handler, set())
    if shared:
        raise NotDeterministic(
            f"the handler of {what} {shared}; beside a loop that forgets, what a handler did is forgotten too and never "
            "done again, so keep it with ctx.set and ctx.get, or give the loop forget_every=None"
        )


def _shared(value: object, seen: set[int]) -> str:
    """Say what is shared and can change, in words that follow "the body"; nothing if all is well."""
    if id(value) in seen:
        return ""
    seen.add(id(value))
    if isinstance(value, MethodType):
        return f"is a method of {_name(value.__self__)}, which can change"
    if isinstance(value, partial):
        parts = (value.func, *value.args, *value.keywords.values())
        return next(filter(None, (_shared_value("an argument of its partial", part, seen) for part in parts)), "")
    if not isinstance(value, FunctionType):
        return ""
    rebound = _rebound(value.__code__)
    if rebound:
        return f"rebinds the outer variable {rebound!r}"
    return next(filter(None, (_shared_value(repr(name), held, seen) for name, held in _held(value))), "")


def _held(function: FunctionType) -> list[tuple[str, object]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    held = [(name, cell.cell_contents) for name, cell in cells if _is_set(cell)]
    return [*held, *(("a default argument", value) for value in function.__defaults__ or ())]


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 -- asking is the only way to know
    except ValueError:
        return False
    return True


def _shared_value(name: str, value: object, seen: set[int]) -> str:
    if isinstance(value, FunctionType | MethodType | partial):
        return _shared(value, seen)
    if _is_constant(value):
        return ""
    return f"closes over {name}, {_name(value)}, which can change"


def _is_constant(value: object) -> bool:
    if isinstance(value, _VALUES) or type(value).__module__ in ("datetime", "decimal", "uuid", "enum", "re"):
        return True
    if isinstance(value, tuple | frozenset):
        return all(map(_is_constant, value))
    if isinstance(value, msgspec.Struct):
        return value.__struct_config__.frozen
    parameters = getattr(type(value), "__dataclass_params__", None)
    if parameters is not None and parameters.frozen:
        return True
    # The context itself, which is durable; and members of enumerations.
    return callable(getattr(type(value), "check_version", None)) or hasattr(type(value), "__members__")


def _rebound(code: CodeType) -> str:
    """Return the first variable from outside that code, or a function inside it, gives another value."""
    own = set(code.co_cellvars)
    for step in dis.get_instructions(code):
        if step.opname in _REBINDING and step.argval not in own:
            return str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            rebound = _rebound(constant)
            if rebound and rebound not in own:
                return rebound
    return ""


def _name(value: object) -> str:
    return f"a {type(value).__name__}"
