"""Run one attempt of an activity, and decide whether a failed one is retried."""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from resurgam.core import event as events
from resurgam.core.clock import Clock, iso_time
from resurgam.core.codec import MAX_PAYLOAD, check_size
from resurgam.core.errors import ProcessDied, ResurgamError
from resurgam.core.event import NULL
from resurgam.core.failure import capture, in_user_code, rebuild, retry_delay
from resurgam.core.identity import execution_of
from resurgam.core.outcome import ActivityRequest
from resurgam.core.retry import RetryRule
from resurgam.runtime.definitions.definition import Activity
from resurgam.runtime.definitions.info import ActivityInfo, enter_activity, read_details
from resurgam.runtime.log_limit import TracebackLimit
from resurgam.runtime.loop.interrupts import reraise_ctrl_c
from resurgam.runtime.registry import Registry
from resurgam.store.records import ActivityTask
from resurgam.worker.heartbeat import AttemptTimeouts, Heartbeat
from resurgam.worker.process_main import Answer, Call
from resurgam.worker.processes import Process, Processes, import_path_of, processors
from resurgam.worker.threads import Ended, ThreadCall

logger = logging.getLogger("resurgam.activity")
logger.addFilter(TracebackLimit())

Result = events.ActivityCompleted | events.ActivityFailed | events.ActivityRetryScheduled


class LeaseLost(ResurgamError):
    """The worker that ran this attempt died or lost its lease, and the activity must not be redelivered."""


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
        self, registry: Registry, clock: Clock, *, chance: Callable[[], float], max_payload: int = MAX_PAYLOAD
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._chance = chance
        self._max_payload = max_payload
        self._processes = Processes(processors())

    async def close(self) -> None:
        """End the processes of attempts."""
        await self._processes.close()

    async def attempt(self, task: ActivityTask, heartbeat: Heartbeat) -> Result:
        """Run one attempt and return the event that records its result."""
        request = task.request
        try:
            result = check_size(
                self._max_payload, await self._run(task, heartbeat), f"result of activity {request.name!r}"
            )
        except _Failed as failed:
            return self._failed(task, failed.__cause__ or failed, failed.recorded)
        except Exception as error:  # noqa: BLE001 -- an error that prevents an attempt is its failure too
            return self._failed(task, error)
        return events.ActivityCompleted(ref=request.ref, at=self._clock.now(), attempt=task.attempt, result=result)

    def cancelled_from_within(self, task: ActivityTask) -> Result:
        """Return the event for an attempt that was cancelled, but not by the worker."""
        return self._failed(task, RuntimeError(f"activity {task.request.name!r} was cancelled from within"))

    async def _run(self, task: ActivityTask, heartbeat: Heartbeat) -> Raw:
        request = task.request
        if task.deliveries and not self._rule(request).redeliver:
            raise LeaseLost(f"the worker that ran attempt {task.attempt} of activity {request.name!r} was lost")
        activity = self._registry.activities.find(request.name)
        if activity.runs_in_process(request.executor):
            return await self._in_process(task, activity, heartbeat)
        assert activity.signature is not None
        assert activity.function is not None
        args, kwargs = activity.signature.decode(request.input)
        heartbeat.info = _info(task)
        heartbeat.max_payload = self._max_payload
        enter_activity(heartbeat)
        call: Callable[[], Any] = partial(activity.function, *args, **kwargs)
        if not activity.is_async:
            thread = ThreadCall(partial(contextvars.copy_context().run, call), f"activity {activity.name}")
            value = await self._within(request, heartbeat, thread.ended, thread.stop)
        elif request.timeout is None and request.heartbeat is None:
            value, error = await _contained(call())
            if error is not None:
                raise _Failed from error
        else:
            beside = asyncio.get_running_loop().create_task(_contained(call()), name=f"activity {activity.name}")
            value = await self._within(request, heartbeat, beside, beside.cancel)
        return activity.result.check(value, f"result of activity {activity.name!r}")

    async def _in_process(self, task: ActivityTask, activity: Activity[..., Any], heartbeat: Heartbeat) -> Raw:
        """Run an attempt in another process. Its timeouts start once a process is free.

        A timeout, a cancellation or a lost lease ends that process.
        """
        call = Call(
            **import_path_of(activity),
            info=_identity(task),
            details=task.details or NULL,
            input=task.request.input,
            max_payload=self._max_payload,
        )
        async with self._processes.borrow(activity.name) as process:
            calling = asyncio.ensure_future(_call(process, call, heartbeat))
            answer: Answer = await self._within(task.request, heartbeat, calling, calling.cancel)
        if answer.failure is not None:
            raise _Failed(answer.failure) from rebuild(answer.failure)
        return answer.result

    async def _within(
        self, request: ActivityRequest, heartbeat: Heartbeat, running: asyncio.Future[Any], stop: Callable[[], object]
    ) -> Any:
        """Wait for an attempt until one of its timeouts passes.

        One that does not end when *stop* is called is abandoned: its lease ends with the answer, so its result is
        refused.
        """
        timeouts = AttemptTimeouts(self._clock, request, heartbeat)
        try:
            await asyncio.wait({running, timeouts.passed}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            stop()
            raise
        finally:
            timeouts.close()
        if not running.done():
            heartbeat.abandoned = True
            stop()
            raise TimeoutError(timeouts.passed.result())
        if running.cancelled():
            raise RuntimeError(f"activity {request.name!r} was cancelled from within")
        value, error = running.result()
        if error is not None:
            raise _Failed from error
        return value

    def _rule(self, request: ActivityRequest) -> RetryRule:
        """Return the retry policy of an activity: that of the call, else that of its definition."""
        if request.retry is not None:
            return request.retry
        known = request.name in self._registry.activities
        return self._registry.activities.find(request.name).rule if known else RetryRule()

    def _failed(self, task: ActivityTask, error: BaseException, recorded: events.Failure | None = None) -> Result:
        request, now = task.request, self._clock.now()
        failure = recorded or capture(in_user_code(error), limit=self._max_payload)
        pause = retry_delay(self._rule(request), task.attempt, error, failure, self._chance())
        when = "no further attempt" if pause is None else f"next at {iso_time(now + pause)}"
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


def _identity(task: ActivityTask) -> ActivityInfo:
    request = task.request
    return ActivityInfo(
        name=request.name,
        entity_id=request.entity_id,
        execution_id=execution_of(request.entity_id, task.attempt, request.workflow_attempt),
        workflow_id=task.entity_id,
        attempt=task.attempt,
        queue=request.queue,
    )


def _info(task: ActivityTask) -> ActivityInfo:
    identity = _identity(task)
    return identity if task.details is None else replace(identity, details=read_details(task.details))


async def _call(process: Process, call: Call, heartbeat: Heartbeat) -> Ended:
    try:
        return await process.call(call, heartbeat.beat), None
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
