"""`ctx.saga`: steps that are taken back, the last first, if not all of them can be done.

A step is three things in the history: its registration, which says what takes it back before anything is done; the
activity that does it, below ``1`` of that place; and if it must be, the activity that takes it back, below ``2``. Each is
recorded and retried by itself, so a saga goes on after any crash exactly where it was.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, overload

from resurgam.core import event as events
from resurgam.core.errors import ActivityFailed, DefinitionError, NotDeterministic, SerializationError
from resurgam.core.location import ROOT, Location
from resurgam.runtime.context.activities import schedule
from resurgam.runtime.definitions.definition import Activity, ActivityRef, activity_of
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.loop.scope import Scope, current
from resurgam.runtime.matching.recorder import Recorder

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


@dataclass(slots=True)
class Step:
    """A step of a saga, as far as it has come."""

    command: events.SagaStepRegistered
    undo: "Activity[..., Any] | None"
    doing: "asyncio.Future[Any] | None" = None

    @property
    def is_done(self) -> bool:
        """Whether it was done for certain."""
        doing = self.doing
        return doing is not None and doing.done() and not doing.cancelled() and doing.exception() is None

    @property
    def is_unknown(self) -> bool:
        """Whether it may have been done: it was begun, and did not come to a good end."""
        return self.doing is not None and not self.is_done


class Saga:
    """The steps that were done within a block, for as long as they may have to be taken back."""

    def __init__(self, recorder: Recorder, step: int | None) -> None:
        self._recorder = recorder
        self._step = step
        self._steps: list[Step] = []
        self._around: Saga | None = None
        self._place = ROOT
        self._open = False
        self._asked_to_stop = False

    async def __aenter__(self) -> Self:
        self._around, self._place = _within.get(None), self._recorder.scope().location
        if self._around is not None and self._around._open:
            self._check_kept(self._around._place)
        _within.set(self)
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open = False
        _within.set(self._around)
        if error is None:
            if self._around is not None and self._around._open:
                # Done as a whole, and now a part of what is around it.
                self._around._steps += self._steps
            else:
                for step in self._steps:
                    self._close(step, "completed" if step.is_done else "skipped")
        elif isinstance(error, Exception | asyncio.CancelledError) and self._recorder.verdict.reason is None:
            await self._compensate(error)
            if self._asked_to_stop:
                raise asyncio.CancelledError from error  # heard, and put off until all was taken back

    def _check_kept(self, around: Location) -> None:
        """Refuse to be part of a saga around a loop that forgets: this one's steps would be missing from it later."""
        for loop in self._recorder.pending.forgetting_loops():
            if loop.location.contains(self._place) > loop.location.contains(around):
                raise NotDeterministic(
                    "a saga in the body of a loop, inside a saga around the loop: finished iterations are forgotten, so "
                    "the saga around them could not take them back; give the loop forget_every=None"
                )

    @overload
    def step(
        self,
        do: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        undo: Callable[[R], object] | ActivityRef[Any] | str | None = None,
        undo_on_unknown: bool = False,
    ) -> Durable[R]: ...
    @overload
    def step(
        self,
        do: Callable[[*Ts], R],
        /,
        *args: *Ts,
        undo: Callable[[R], object] | ActivityRef[Any] | str | None = None,
        undo_on_unknown: bool = False,
    ) -> Durable[R]: ...
    @overload
    def step(
        self,
        do: ActivityRef[R],
        /,
        *args: Any,
        undo: Callable[[R], object] | ActivityRef[Any] | str | None = None,
        undo_on_unknown: bool = False,
    ) -> Durable[R]: ...
    @overload
    def step(
        self,
        do: str,
        /,
        *args: Any,
        undo: Callable[..., object] | ActivityRef[Any] | str | None = None,
        undo_on_unknown: bool = False,
    ) -> Durable[Any]: ...
    def step(  # type: ignore[misc]  # mypy does not see that *args: Any takes any *Ts
        self, do: Any, /, *args: Any, undo: Any = None, undo_on_unknown: bool = False
    ) -> Durable[Any]:
        """Run an activity; should the saga fail, run *undo* with what it returned.

        With *undo_on_unknown* also if it failed or was cancelled, when nobody can say whether it was done: then *undo* is
        called with None.
        """
        if not self._open:
            raise NotDeterministic("a step of a saga outside of its block; write it inside `async with ctx.saga()`")
        doing = activity_of(do)
        undoing = None if undo is None else activity_of(undo)
        if undo_on_unknown and undoing is None:
            raise DefinitionError(f"step {doing.name!r} has undo_on_unknown, and no undo; give one")
        if undo_on_unknown and undoing is not None:
            _check_takes_none(doing, undoing)
        queue = (undoing.settings.queue if undoing else None) or self._recorder.started.queue
        command = self._recorder.issue(
            events.SagaStepRegistered,
            doing.name,
            step=self._step,
            undo=None if undoing is None else undoing.name,
            queue=queue,
            unknown=undo_on_unknown,
        )
        assert isinstance(command, events.SagaStepRegistered)
        step = Step(command, undoing)
        self._steps.append(step)
        step.doing = self._below(command, 1, doing, args)
        return step.doing

    def _below(
        self, command: events.SagaStepRegistered, part: int, activity: Activity[..., Any], args: tuple[Any, ...]
    ) -> Durable[Any]:
        """Run an activity below the registration of a step: 1 does it, 2 takes it back."""
        place = Location(*command.location.coordinates, (part,))
        scope = self._recorder.scope_at(place, command.version)
        before: Scope = current.get()
        current.set(scope)
        try:
            # What is taken back was recorded when it was done; a little more around it must not prevent that.
            return schedule(self._recorder, activity, args, {}, limited=part == 1)
        finally:
            current.set(before)
            self._recorder.close_scope(scope)

    async def _compensate(self, error: BaseException) -> None:
        """Take back what was done, the last first; what cannot be is left, visibly, and the rest goes on."""
        for step in reversed(self._steps):
            if step.doing is not None:
                await _ended(step.doing)
            wanted = step.is_done or (step.is_unknown and step.command.unknown)
            if step.undo is None or not wanted:
                self._close(step, "skipped" if not step.is_done else "completed")
                continue
            self._note(step, events.SagaCompensationStarted)
            failed = await self._take_back(step, step.undo)
            self._close(step, "compensated" if failed is None else "failed")
            if failed is not None:
                self._recorder.warn(
                    f"step {step.command.name!r} at {step.command.location} could not be taken back by "
                    f"{step.undo.name!r}: {failed}; see to it, and then call handle.compensate({str(step.command.location)!r})"
                )
                error.add_note(f"step {step.command.name!r} at {step.command.location} was not taken back: {failed}")

    async def _take_back(self, step: Step, undo: Activity[..., Any]) -> Exception | None:
        """Take a step back; return why it could not be."""
        result = step.doing.result() if step.is_done and step.doing is not None else None
        try:
            undoing = self._below(step.command, 2, undo, (result,))
        except (SerializationError, DefinitionError) as unfit:
            # It does not take what the step gave; that must not keep the others from being taken back.
            return unfit
        return await self._surely(undoing)

    async def _surely(self, undoing: "asyncio.Future[Any]") -> ActivityFailed | None:
        """Wait until something is taken back, whoever asks the workflow to stop meanwhile; return why it could not be."""
        while True:
            try:
                await asyncio.shield(undoing)
            except asyncio.CancelledError:
                if undoing.cancelled():
                    raise
                self._asked_to_stop = True
            except ActivityFailed as failed:
                return failed
            else:
                return None

    def _note(self, step: Step, kind: type[events.Answer], **fields: Any) -> None:
        """Write down what becomes of a step, unless it is on record; it is told to nobody."""
        state, seq = self._recorder.log.state, step.command.seq
        known = seq not in state.open or (kind is events.SagaCompensationStarted and seq in state.compensating)
        if not known and self._recorder.verdict.reason is None:
            self._recorder.log.append(lambda number, at: kind(seq=number, at=at, ref=seq, **fields))

    def _close(self, step: Step, outcome: str) -> None:
        self._note(step, events.SagaClosed, outcome=outcome)


def _check_takes_none(doing: Activity[..., Any], undoing: Activity[..., Any]) -> None:
    """Refuse an undo that cannot be called when nobody knows what the step gave."""
    if undoing.signature is None:
        return
    try:
        undoing.signature.encode((None,))
    except (SerializationError, DefinitionError) as unfit:
        raise DefinitionError(
            f"step {doing.name!r} has undo_on_unknown, so {undoing.name!r} may be called with None, which it does not take "
            f"({unfit}); annotate its parameter as `... | None`"
        ) from unfit


async def _ended(doing: "asyncio.Future[Any]") -> None:
    """Wait for a step that another strand has begun and that is still at work: what it does may have to be taken back.

    Whoever asks the workflow to stop meanwhile calls it off, as in its own strand.
    """
    if not doing.done():
        with suppress(Exception, asyncio.CancelledError):  # what became of it, the step itself says
            await doing


_within: ContextVar[Saga | None] = ContextVar("resurgam.saga", default=None)
"""The saga in whose block the running strand is."""
