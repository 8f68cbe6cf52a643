"""`ctx.loop`: runs a body over and over, and lets what is done be forgotten.

Iteration *i* of a loop at ``{2}`` has its steps below ``{2, i}``. Every `forget_every` iterations the loop asks for a
checkpoint, an entry that the engine makes as soon as nothing else is ready: it holds the loop's state and the
workflow's, and with it all that the iterations did is forgotten. When the run is loaded again, the loop waits for its
newest checkpoint and goes on from there; the bodies before it are never run again. That is why a body may share nothing
that changes with the code around it.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_origin

from resurgam.core import event as events
from resurgam.core.codec import Codec, codec_for
from resurgam.core.errors import DefinitionError, SerializationError
from resurgam.core.location import Location
from resurgam.core.retry import is_whole
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
