"""`ctx.saga`: steps that are compensated in reverse order if the block fails.

A step is three things in the history: its registration, which names the compensation before anything runs; the activity
of its action, below ``1`` of that location; and, if necessary, the activity of its compensation, below ``2``. Each is
recorded and retried by itself, so that a saga continues after any crash exactly where it was.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, overload

import msgspec

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


class Step(msgspec.Struct):
    """A step of a saga and its progress."""

    command: events.SagaStepRegistered
    undo: "Activity[..., Any] | None"
    action: "asyncio.Future[Any] | None" = None

    @property
    def is_done(self) -> bool:
        """Whether the action certainly succeeded."""
        action = self.action
        return action is not None and action.done() and not action.cancelled() and action.exception() is None

    @property
    def is_unknown(self) -> bool:
        """Whether the action may have had an effect: it was started, but did not succeed."""
        return self.action is not None and not self.is_done


class Saga:
    """The steps run inside a block, kept as long as they may have to be compensated."""

    def __init__(self, recorder: Recorder, step: int | None) -> None:
        self._recorder = recorder
        self._step = step
        self._steps: list[Step] = []
        self._outer: Saga | None = None
        self._location = ROOT
        self._open = False
        self._cancelled = False

    async def __aenter__(self) -> Self:
        self._outer, self._location = _enclosing.get(None), self._recorder.scope().location
        if self._outer is not None and self._outer._open:
            self._check_kept(self._outer._location)
        _enclosing.set(self)
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open = False
        _enclosing.set(self._outer)
        if error is None:
            if self._outer is not None and self._outer._open:
                # A completed saga becomes a part of the saga around it.
                self._outer._steps += self._steps
            else:
                for step in self._steps:
                    self._close(step, "completed" if step.is_done else "skipped")
        elif isinstance(error, Exception | asyncio.CancelledError) and self._recorder.verdict.reason is None:
            await self._compensate(error)
            if self._cancelled:
                raise asyncio.CancelledError from error  # delayed until all steps were compensated

    def _check_kept(self, outer: Location) -> None:
        """Refuse to nest in a saga around a forgetting loop: this saga's steps would be missing from it later."""
        for loop in self._recorder.pending.forgetting_loops():
            if loop.location.contains(self._location) > loop.location.contains(outer):
                raise NotDeterministic(
                    "a saga in the body of a loop, inside a saga around the loop: finished iterations are forgotten, so "
                    "the outer saga could not compensate them; give the loop forget_every=None"
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
        """Run an activity; if the saga fails, run *undo* with its result.

        With *undo_on_unknown*, also if the activity failed or was cancelled, so that its effect is unknown: then *undo*
        is called with None.
        """
        if not self._open:
            raise NotDeterministic("a saga step outside its block; write it inside `async with ctx.saga()`")
        action = activity_of(do)
        compensation = None if undo is None else activity_of(undo)
        if undo_on_unknown and compensation is None:
            raise DefinitionError(f"step {action.name!r} has undo_on_unknown, but no undo; pass undo=...")
        if undo_on_unknown and compensation is not None:
            _check_accepts_none(action, compensation)
        queue = (compensation.settings.queue if compensation else None) or self._recorder.started.queue
        command = self._recorder.issue(
            events.SagaStepRegistered,
            action.name,
            step=self._step,
            undo=None if compensation is None else compensation.name,
            queue=queue,
            unknown=undo_on_unknown,
        )
        assert isinstance(command, events.SagaStepRegistered)
        step = Step(command, compensation)
        self._steps.append(step)
        step.action = self._below(command, 1, action, args)
        return step.action

    def _below(
        self, command: events.SagaStepRegistered, part: int, activity: Activity[..., Any], args: tuple[Any, ...]
    ) -> Durable[Any]:
        """Run an activity below the registration of a step: the action below 1, the compensation below 2."""
        location = Location(*command.location.coordinates, (part,))
        scope = self._recorder.scope_at(location, command.version)
        before: Scope = current.get()
        current.set(scope)
        try:
            # The argument of a compensation is an action's result, already recorded: no size limit may prevent it.
            return schedule(self._recorder, activity, args, {}, limited=part == 1)
        finally:
            current.set(before)
            self._recorder.close_scope(scope)

    async def _compensate(self, error: BaseException) -> None:
        """Compensate the steps in reverse order; record a failed compensation and continue with the rest."""
        for step in reversed(self._steps):
            if step.action is not None:
                await _wait_for(step.action)
            wanted = step.is_done or (step.is_unknown and step.command.unknown)
            if step.undo is None or not wanted:
                self._close(step, "skipped" if not step.is_done else "completed")
                continue
            self._record(step, events.SagaCompensationStarted)
            failed = await self._undo(step, step.undo)
            self._close(step, "compensated" if failed is None else "failed")
            if failed is not None:
                self._recorder.warn(
                    f"step {step.command.name!r} at {step.command.location} could not be compensated by "
                    f"{step.undo.name!r}: {failed}; fix the cause, then call handle.compensate({str(step.command.location)!r})"
                )
                error.add_note(f"step {step.command.name!r} at {step.command.location} was not compensated: {failed}")

    async def _undo(self, step: Step, undo: Activity[..., Any]) -> Exception | None:
        """Compensate a step; return the error if that failed."""
        result = step.action.result() if step.is_done and step.action is not None else None
        try:
            compensation = self._below(step.command, 2, undo, (result,))
        except (SerializationError, DefinitionError) as unfit:
            # The activity does not accept the action's result; the other steps must still be compensated.
            return unfit
        return await self._await_undo(compensation)

    async def _await_undo(self, compensation: "asyncio.Future[Any]") -> ActivityFailed | None:
        """Wait for a compensation, delaying a cancellation of the workflow; return the error if it failed."""
        while True:
            try:
                await asyncio.shield(compensation)
            except asyncio.CancelledError:
                if compensation.cancelled():
                    raise
                self._cancelled = True
            except ActivityFailed as failed:
                return failed
            else:
                return None

    def _record(self, step: Step, kind: type[events.Answer], **fields: Any) -> None:
        """Append an event about a step, unless it is already recorded; it settles no future."""
        state, seq = self._recorder.log.state, step.command.seq
        known = seq not in state.open or (kind is events.SagaCompensationStarted and seq in state.compensating)
        if not known and self._recorder.verdict.reason is None:
            self._recorder.log.add(kind, ref=seq, **fields)

    def _close(self, step: Step, outcome: str) -> None:
        self._record(step, events.SagaClosed, outcome=outcome)


def _check_accepts_none(action: Activity[..., Any], compensation: Activity[..., Any]) -> None:
    """Refuse a compensation that does not accept None, the argument for an unknown result."""
    if compensation.signature is None:
        return
    try:
        compensation.signature.encode((None,))
    except (SerializationError, DefinitionError) as unfit:
        raise DefinitionError(
            f"step {action.name!r} has undo_on_unknown, so {compensation.name!r} may be called with None, which it does not take "
            f"({unfit}); annotate its parameter as `... | None`"
        ) from unfit


async def _wait_for(action: "asyncio.Future[Any]") -> None:
    """Wait for an action that another task has started and that is still running: it may have to be compensated.

    A cancellation of the workflow meanwhile cancels the action, as in its own task.
    """
    if not action.done():
        with suppress(Exception, asyncio.CancelledError):  # the step reads the outcome from the future
            await action


_enclosing: ContextVar[Saga | None] = ContextVar("resurgam.saga", default=None)
"""The saga whose block encloses the running code."""
