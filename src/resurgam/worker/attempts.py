"""Run one attempt of an activity, and decide whether a failed one is retried."""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.clock import Clock, iso_time
from resurgam.core.codec import MAX_PAYLOAD, check_size
from resurgam.core.errors import (
    DefinitionError,
    NotFound,
    NotWanted,
    Postponed,
    ProcessDied,
    ResurgamError,
    SerializationError,
    StepNotCompleted,
    StepRejected,
)
from resurgam.core.event import NULL
from resurgam.core.failure import capture, in_user_code, rebuild, retry_delay
from resurgam.core.flow_event import HTTP_ACTIVITY
from resurgam.core.outcome import ActivityRequest
from resurgam.core.retry import RetryRule
from resurgam.runtime.definitions.definition import Activity
from resurgam.runtime.definitions.info import enter_activity
from resurgam.runtime.definitions.signature import Arguments, Signature
from resurgam.runtime.log_limit import TracebackLimit
from resurgam.runtime.loop.interrupts import reraise_ctrl_c
from resurgam.runtime.registry import Registry
from resurgam.store.records import ActivityTask
from resurgam.worker.brains import ServiceActivity
from resurgam.worker.heartbeat import AttemptTimeouts, Result, RunningAttempt, identity_of
from resurgam.worker.memo import Memos
from resurgam.worker.process_main import Answer, Call
from resurgam.worker.processes import Process, Processes, import_path_of, processors
from resurgam.worker.threads import Ended, ThreadCall

logger = logging.getLogger("resurgam.activity")
logger.addFilter(TracebackLimit())


_MISFITS: Final = (DefinitionError, SerializationError)
"""What arguments raise that were meant for another version of an activity."""

_OF_SERVICES: Final = (NotWanted, StepNotCompleted, StepRejected)
"""Failures of calls of services, which say everything in their text."""


class LeaseLost(ResurgamError):
    """The worker that ran this attempt died or lost its lease, and the activity must not be redelivered."""


class Unfit(Exception):
    """The code of this worker cannot run an attempt, and that of another build may; the cause says why."""


class _Failed(Exception):
    """Carries any exception of an attempt, as its cause, past the handlers of the worker's own errors.

    *recorded* is the failure to record if the exception was raised in another process.
    """

    def __init__(self, recorded: events.Failure | None = None) -> None:
        super().__init__(recorded)
        self.recorded = recorded


class ActivityRunner:
    """Runs attempts: async functions on this loop, others in threads or in processes."""

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        *,
        chance: Callable[[], float],
        max_payload: int = MAX_PAYLOAD,
        memos: Memos | None = None,
        services: ServiceActivity | None = None,
    ) -> None:
        self._registry = registry
        self._memos = memos
        self._services = services
        self._clock = clock
        self._chance = chance
        self.max_payload = max_payload
        self._processes = Processes(processors())
        # Whether to leave an attempt that does not fit this build to workers of another one.
        self.leaves: Callable[[RunningAttempt], Awaitable[bool]] | None = None

    async def close(self) -> None:
        """End the processes of attempts, and close the connections of calls."""
        await self._processes.close()
        if self._services is not None:
            await self._services.close()

    async def run(self, attempt: RunningAttempt, completed: Callable[[RunningAttempt, Result], None]) -> Result:
        """Run one attempt and return the event that records its result; call *completed* first if it has not failed.

        A cancellation is raised: only the caller knows whether the worker or the activity itself caused it. `Unfit` is raised
        if the attempt is left to others.
        """
        task = attempt.task
        request = task.request
        try:
            activity = self._begin(attempt)
            if activity.is_async and request.timeout is None and request.heartbeat is None and request.memo is None:
                # The fast path, for most attempts: the function is awaited here, with nothing to watch beside it.
                assert activity.signature is not None
                assert activity.function is not None
                args, kwargs = _arguments(activity.signature, request)
                try:
                    value = await activity.function(*args, **kwargs)  # type: ignore[misc]  # it is async
                except asyncio.CancelledError:
                    raise
                except BaseException as error:
                    # Any exception in it, even SystemExit, is its failure.
                    reraise_ctrl_c(error)
                    raise _Failed from error
                result = self._encode(activity, value)
            else:
                result = await self._run(attempt, activity)
        except _Failed as failed:
            if isinstance(failed.__cause__, Postponed):
                return self._postponed(attempt, failed.__cause__)
            return self._failed(task, failed.__cause__ or failed, failed.recorded)
        except Unfit as unfit:
            if self.leaves is not None and await self.leaves(attempt):
                raise
            return self._failed(task, unfit.__cause__ or unfit)
        except Exception as error:  # noqa: BLE001 -- an error that prevents an attempt is its failure too
            return self._failed(task, error)
        finally:
            attempt.over = True
        event = events.ActivityCompleted(ref=request.ref, at=self._clock.now(), attempt=task.attempt, result=result)
        completed(attempt, event)
        return event

    def cancelled_from_within(self, task: ActivityTask) -> Result:
        """Return the event for an attempt that was cancelled, but not by the worker."""
        return self._failed(task, RuntimeError(f"activity {task.request.name!r} was cancelled from within"))

    async def _run(self, attempt: RunningAttempt, activity: Activity[..., Any]) -> Raw:
        """Run an attempt that is memoized, has timeouts, or runs in a thread or a process."""
        memo = attempt.task.request.memo
        if memo is None or self._memos is None:
            return await self._execute(attempt, activity)
        found = await self._memos.find(memo)
        if found is not None:
            return found
        result = await self._execute(attempt, activity)
        await self._memos.keep(memo, result)
        return result

    async def _execute(self, attempt: RunningAttempt, activity: Activity[..., Any]) -> Raw:
        request = attempt.task.request
        if activity.runs_in_process(request.executor):
            result = await self._in_process(attempt, activity)
            return check_size(self.max_payload, result, activity.result_name)
        assert activity.signature is not None
        assert activity.function is not None
        args, kwargs = _arguments(activity.signature, request)
        call: Callable[[], Any] = partial(activity.function, *args, **kwargs)
        if not activity.is_async:
            thread = ThreadCall(partial(contextvars.copy_context().run, call), f"activity {activity.name}")
            value = await self._within(attempt, thread.ended, thread.stop)
        else:
            beside = asyncio.get_running_loop().create_task(_contained(call()), name=f"activity {activity.name}")
            value = await self._within(attempt, beside, beside.cancel)
        return self._encode(activity, value)

    def _encode(self, activity: Activity[..., Any], value: object) -> Raw:
        return check_size(self.max_payload, activity.result.check(value, activity.result_name), activity.result_name)

    async def _in_process(self, attempt: RunningAttempt, activity: Activity[..., Any]) -> Raw:
        """Run an attempt in another process. Its timeouts start once a process is free.

        A timeout, a cancellation or a lost lease ends that process.
        """
        task = attempt.task
        call = Call(
            **import_path_of(activity),
            info=identity_of(task),
            details=task.details or NULL,
            input=task.request.input,
            max_payload=self.max_payload,
        )
        async with self._processes.borrow(activity.name) as process:
            calling = asyncio.ensure_future(_call(process, call, attempt))
            answer: Answer = await self._within(attempt, calling, calling.cancel)
        if answer.failure is not None:
            raise _Failed(answer.failure) from rebuild(answer.failure)
        return answer.result

    async def _within(self, attempt: RunningAttempt, running: asyncio.Future[Any], stop: Callable[[], object]) -> Any:
        """Wait for an attempt until one of its timeouts passes.

        One that does not end when *stop* is called is abandoned: its lease ends with the answer, so its result is
        refused.
        """
        request = attempt.task.request
        timeouts = AttemptTimeouts(self._clock, request, attempt)
        try:
            await asyncio.wait({running, timeouts.passed}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            stop()
            raise
        finally:
            timeouts.close()
        if not running.done():
            attempt.abandoned = True
            stop()
            raise TimeoutError(timeouts.passed.result())
        if running.cancelled():
            raise RuntimeError(f"activity {request.name!r} was cancelled from within")
        value, error = running.result()
        if error is not None:
            raise _Failed from error
        return value

    def _begin(self, attempt: RunningAttempt) -> Activity[..., Any]:
        """Return the activity of an attempt that may begin, and let its code know of the attempt.

        The activity that calls services belongs to a store; a registry may serve several.
        """
        task, name = attempt.task, attempt.task.request.name
        if task.deliveries and not self.redelivers(task):
            raise LeaseLost(f"the worker that ran attempt {task.attempt} of activity {name!r} was lost")
        enter_activity(attempt)
        if name == HTTP_ACTIVITY and self._services is not None:
            return self._services.find()
        try:
            return self._registry.activities.find(name)
        except NotFound as error:
            raise Unfit from error

    def knows(self, request: ActivityRequest) -> bool:
        """Whether this worker has the code of an activity."""
        return request.name == HTTP_ACTIVITY or self._registry.activities.has(request.name)

    def redelivers(self, task: ActivityTask) -> bool:
        """Whether an attempt may begin again if its worker is lost or stops."""
        return self._rule(task.request).redeliver

    def _rule(self, request: ActivityRequest) -> RetryRule:
        """Return the retry policy of an activity: that of the call, else that of its definition."""
        if request.retry is not None:
            return request.retry
        known = request.name in self._registry.activities
        return self._registry.activities.find(request.name).rule if known else RetryRule()

    def _postponed(self, attempt: RunningAttempt, error: Postponed) -> Result:
        """Return the event for an attempt that decides itself when it is run again, and with which details."""
        task, attempt.details = attempt.task, error.details
        level = logging.WARNING if error.failed else logging.INFO
        _log_text(level, task, error, f"next at {iso_time(error.next_at)}")
        return events.ActivityRetryScheduled(
            ref=task.request.ref,
            at=self._clock.now(),
            attempt=task.attempt,
            next_at=error.next_at,
            failure=error.failure,
        )

    def _failed(self, task: ActivityTask, error: BaseException, recorded: events.Failure | None = None) -> Result:
        request, now = task.request, self._clock.now()
        failure = recorded or capture(in_user_code(error), limit=self.max_payload)
        pause = retry_delay(self._rule(request), task.attempt, error, failure, self._chance())
        when = "no further attempt" if pause is None else f"next at {iso_time(now + pause)}"
        if isinstance(error, _OF_SERVICES):
            _log_text(logging.INFO if isinstance(error, NotWanted) else logging.WARNING, task, error, when)
        else:
            logger.warning(
                "activity %r of workflow %s, attempt %d failed; %s",
                request.name,
                task.entity_id,
                task.attempt,
                when,
                exc_info=error,
            )
        if pause is None:
            return events.ActivityFailed(ref=request.ref, at=now, attempt=task.attempt, failure=failure)
        return events.ActivityRetryScheduled(
            ref=request.ref, at=now, attempt=task.attempt, next_at=now + pause, failure=failure
        )


def _arguments(signature: Signature, request: ActivityRequest) -> Arguments:
    """Return the arguments of an attempt; raise `Unfit` if the function does not accept them."""
    try:
        return signature.decode(request.input)
    except _MISFITS as error:
        raise Unfit from error


def _log_text(level: int, task: ActivityTask, error: BaseException, when: str) -> None:
    """Log what became of a call of a service: no code has raised it, so that it has no traceback."""
    logger.log(level, "flow %s, work item %s: %s; %s", task.entity_id, task.request.entity_id, error, when)


async def _call(process: Process, call: Call, attempt: RunningAttempt) -> Ended:
    try:
        return await process.call(call, attempt.beat), None
    except ProcessDied as died:
        return None, died


async def _contained(coroutine: Coroutine[Any, Any, Any]) -> Ended:
    """Await an attempt; any exception in it, even SystemExit, is its failure."""
    try:
        return await coroutine, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 -- see above
        reraise_ctrl_c(error)
        return None, error
