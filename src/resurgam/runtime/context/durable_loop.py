"""`ctx.loop`: run a body repeatedly, and forget the entries of completed iterations.

The steps of iteration *i* of a loop at ``{2}`` are located below ``{2, i}``. Every `forget_every` iterations the loop
requests a checkpoint, an entry that the engine appends as soon as nothing else is ready: it holds the states of the
loop and of the workflow, and all entries of the iterations are forgotten with it. When the run is loaded again, the
loop resumes from its latest checkpoint; earlier iterations never run again. That is why a body must not share mutable
data with the code around it.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec

from resurgam.core import event as events
from resurgam.core.codec import Codec, codec_for
from resurgam.core.errors import DefinitionError, SerializationError
from resurgam.core.retry import is_whole
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.loop.scope import Scope, current
from resurgam.runtime.matching.divergence import source, unfit
from resurgam.runtime.matching.open_locations import is_quiet_below
from resurgam.runtime.matching.pending import LoopProgress
from resurgam.runtime.matching.recorder import Recorder

S = TypeVar("S")
V = TypeVar("V")


class Continue(msgspec.Struct, Generic[S], frozen=True):
    """Returned by the body of a loop to start the next iteration, with this state."""

    state: S = None  # type: ignore[assignment]  # a loop without a state has None


class Break(msgspec.Struct, Generic[V], frozen=True):
    """Returned by the body of a loop to end it; ``await ctx.loop(...)`` returns the value."""

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
        self._state_entry: events.Event | None = command
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
                    f"the body of a loop returned {answer!r}; return Continue(state) to continue, or Break(value) to end it"
                )
            self._progress.state = self._recorder.payloads.write(self._state_codec, answer.state, "the state of a loop")
            self._state_entry = None
            if self._interval_reached() and await self._is_due():
                self._resume(await self._checkpoint(self._progress.done))

    async def _iterate(self) -> object:
        location = self._command.location.child((self._progress.done + 1,))
        scope = self._recorder.scope_at(location, self._command.version)
        current.set(scope)
        state = self._read(self._state_codec, self._progress.state, "the state of a loop", self._state_entry)
        running = self._body(self._context, state)
        if not inspect.isawaitable(running):
            raise DefinitionError(f"the body of a loop, {self._body!r}, is not async; write async def")
        answer = await running
        self._recorder.close_scope(scope)
        return answer

    def _interval_reached(self) -> bool:
        every = self._command.forget_every
        return every is not None and self._progress.done - self._progress.forgotten >= every

    async def _is_due(self) -> bool:
        """Whether a checkpoint is due now: once nothing is ready, no command of the iterations may be open.

        Before that, calls that the body cancelled last have not ended, and calls left to a callback have not started.
        """
        await self._recorder.loop.add_condition(lambda: True)
        if self._progress.done in self._progress.early:
            return True
        # A history that continues without a checkpoint was written by code that had to postpone it here.
        return self._recorded <= self._progress.done and is_quiet_below(self._recorder, self._command.location)

    async def _checkpoint(self, iteration: int) -> events.LoopCheckpointed:
        early = self._progress.early.pop(iteration, None)
        if early is not None:
            return early
        waiting: asyncio.Future[events.LoopCheckpointed] = self._recorder.loop.create_future()
        self._progress.waiting, self._progress.wants = waiting, events.LoopCheckpointed
        return await waiting

    def _resume(self, entry: events.LoopCheckpointed) -> None:
        self._progress.done = self._progress.forgotten = entry.iteration
        self._progress.state, self._state_entry = entry.state, entry
        self._recorder.state.restore(entry)

    async def _end(self, answer: "Break[Any] | None") -> Any:
        if answer is not None:
            self._progress.value = self._recorder.payloads.write(self._value_codec, answer.value, "the value of a loop")
            self._progress.wants = events.LoopCompleted
        completed = await self._future
        if completed.whole:
            self._recorder.state.restore(completed)
        return self._read(self._value_codec, completed.result, "the value of a loop", completed)

    def _read(self, codec: Codec[Any], written: Any, what: str, entry: events.Event | None) -> Any:
        """Decode a value; a recorded one that no longer fits its type is a divergence, not a failure."""
        try:
            return self._recorder.payloads.read(codec, written, what)
        except SerializationError as error:
            if entry is None or not 0 < entry.seq <= self._recorder.log.recorded_seq:
                raise
            reason = f"a type that does not fit ({error.reason})"
            misfit = unfit(self._command, entry, "type", reason, error.path)
            misfit.source = self._source
            raise self._recorder.verdict.decide(misfit) from error


def state_codec(body: Body) -> Codec[Any]:
    """Return the codec of a loop's state."""
    return codecs(body)[0]


def check_bounds(forget_every: object, keep_forgotten: object) -> None:
    """Raise ``ValueError`` for invalid numbers of iterations."""
    if forget_every is not None and not is_whole(forget_every, 1):
        raise ValueError(f"forget_every must be None or a whole number, at least 1, got {forget_every!r}")
    if not is_whole(keep_forgotten, 0):
        raise ValueError(f"keep_forgotten must be a whole number, at least 0, got {keep_forgotten!r}")


def codecs(body: Body) -> tuple[Codec[Any], Codec[Any]]:
    """Return the codecs of a loop's state and value, by the annotations of its body."""
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
