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
from typing import Any, Generic, TypeVar, get_args, get_origin

from resurgam.core import event as events
from resurgam.core.codec import Codec, codec_for
from resurgam.core.errors import DefinitionError, SerializationError
from resurgam.core.retry import is_whole
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.loop.scope import Scope, current
from resurgam.runtime.matching.divergence import source, unfit
from resurgam.runtime.matching.pending import LoopProgress
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
    """One running loop. *context* is passed to its body."""

    def __init__(self, recorder: Recorder, context: object, future: Durable[Any], body: Body) -> None:
        assert isinstance(future.command, events.LoopStarted)
        self._command = command = future.command
        self._progress = LoopProgress(command, command.state)
        recorder.pending.add_loop(self._progress)
        # The entry that holds the state, unless the body has just returned it.
        self._from: events.Event | None = command
        self._recorder = recorder
        self._context = context
        self._source = source()
        self._body = body
        self._state_codec, self._value_codec = codecs(body)
        self._future = future
        early = recorder.early.take_checkpoint(command)
        if early is not None:
            self._progress.early[early.iteration] = early
        self._recorded = recorder.recorded.last_iteration(command.location)

    async def run(self) -> Any:
        """Run the body until it breaks."""
        try:
            return await self._run(current.get())
        finally:
            self._recorder.pending.remove_loop(self._command.seq)

    async def _run(self, scope: Scope) -> Any:
        completed = self._recorder.recorded.completion_of(self._command)
        if completed is not None and completed.whole:
            return await self._end(None)
        newest = self._recorder.recorded.newest_checkpoint(self._command)
        if newest is not None:
            self._resume(await self._checkpoint(newest.iteration))
        while True:
            answer = await self._iterate()
            current.set(scope)
            self._progress.done += 1
            if isinstance(answer, Break):
                return await self._end(answer)
            if not isinstance(answer, Continue):
                raise TypeError(
                    f"the body of a loop returned {answer!r}; return Continue(state) to go on, or Break(value) to end it"
                )
            self._progress.state = self._recorder.write(self._state_codec, answer.state, "the state of a loop")
            self._from = None
            if self._is_long_enough() and await self._is_due():
                self._resume(await self._checkpoint(self._progress.done))

    async def _iterate(self) -> object:
        place = self._command.location.child((self._progress.done + 1,))
        scope = self._recorder.scope_at(place, self._command.version)
        current.set(scope)
        state = self._read(self._state_codec, self._progress.state, "the state of a loop", self._from)
        begun = self._body(self._context, state)
        if not inspect.isawaitable(begun):
            raise DefinitionError(f"the body of a loop, {self._body!r}, is not async; write async def")
        answer = await begun
        self._recorder.close_scope(scope)
        return answer

    def _is_long_enough(self) -> bool:
        every = self._command.forget_every
        return every is not None and self._progress.done - self._progress.forgotten >= every

    async def _is_due(self) -> bool:
        """Whether a checkpoint is to be made now, as far as nothing is still under way once nothing else is ready.

        What the body called off last has not ended before that, and what it left to a callback has not begun.
        """
        await self._recorder.loop.add_condition(lambda: True)
        if self._progress.done in self._progress.early:
            return True
        # A history that goes on without a checkpoint was written by code that had to put the checkpoint off here.
        return self._recorded <= self._progress.done and self._recorder.is_quiet_below(self._command.location)

    async def _checkpoint(self, iteration: int) -> events.LoopCheckpointed:
        early = self._progress.early.pop(iteration, None)
        if early is not None:
            return early
        waiting: asyncio.Future[events.LoopCheckpointed] = self._recorder.loop.create_future()
        self._progress.waiting, self._progress.wants = waiting, events.LoopCheckpointed
        return await waiting

    def _resume(self, entry: events.LoopCheckpointed) -> None:
        self._progress.done = self._progress.forgotten = entry.iteration
        self._progress.state, self._from = entry.state, entry
        self._recorder.state.restore(entry)

    async def _end(self, answer: "Break[Any] | None") -> Any:
        if answer is not None:
            self._progress.value = self._recorder.write(self._value_codec, answer.value, "the value of a loop")
            self._progress.wants = events.LoopCompleted
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
            misfit = unfit(self._command, entry, "type", reason, error.path)
            misfit.source = self._source
            raise self._recorder.verdict.decide(misfit) from error


def state_codec(body: Body) -> Codec[Any]:
    """Return how the state of a loop is written."""
    return codecs(body)[0]


def check_bounds(forget_every: object, keep_forgotten: object) -> None:
    """Refuse numbers that mean nothing."""
    if forget_every is not None and not is_whole(forget_every, 1):
        raise ValueError(f"forget_every must be None or a whole number, at least 1, got {forget_every!r}")
    if not is_whole(keep_forgotten, 0):
        raise ValueError(f"keep_forgotten must be a whole number, at least 0, got {keep_forgotten!r}")


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
