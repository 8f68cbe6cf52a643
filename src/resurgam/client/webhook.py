"""Take the answers of async steps, which their services send to the address that they were given."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Raw

from resurgam.client.access import Access, check_text
from resurgam.core import event as events
from resurgam.core.entry import Failure
from resurgam.core.errors import NotFound, SerializationError, StepRejected, StoreError
from resurgam.core.failure import capture
from resurgam.core.flow_event import FLOW, HTTP_ACTIVITY
from resurgam.flows.http.message import HttpCall
from resurgam.flows.http.token import is_token, number_of
from resurgam.flows.state import FlowState
from resurgam.store.records import Accepted, ActivityResult, Instance, OpenActivity
from resurgam.store.secret import secret_of

_TRIES: Final = 20
"""How often an answer is given again because the item has moved to another attempt meanwhile."""

_calls: Final = msgspec.json.Decoder(tuple[HttpCall]).decode


class Webhooks:
    """The work items of async steps that wait for their answer, on one store.

    The first answer counts, also while the item is being called, waits for another call, or its flow has ended.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._store = access.store
        self._secret = b""

    async def complete(self, flow_id: str, step_id: str, token: str, outputs: Mapping[str, object]) -> bool:
        """Complete a work item with its outputs; return whether this answer was the first."""
        if not isinstance(outputs, Mapping):
            raise SerializationError("outputs", f"must be an object of outputs by name, got {type(outputs).__name__}")
        return await self._answer(flow_id, step_id, token, self._access.encode(outputs, "outputs"))

    async def fail(self, flow_id: str, step_id: str, token: str, reason: str) -> bool:
        """Fail a work item for good; return whether this answer was the first."""
        check_text(reason, "reason")
        failure = capture(StepRejected(reason), limit=self._access.max_payload)
        return await self._answer(flow_id, step_id, token, failure)

    async def _answer(self, flow_id: str, step_id: str, token: str, answer: Raw | Failure) -> bool:
        instance, number = await self._find(flow_id, token)
        for _ in range(_TRIES):
            activity = await self._open(instance, number)
            if activity is None:
                await self._check_step(instance, number, step_id)
                return False
            call = _call_of(activity)
            if call is None or call.step_id != step_id:
                raise _unknown(flow_id)
            part = ActivityResult(
                entity_id=instance.entity_id,
                execution_id=instance.execution_id,
                epoch=0,
                event=self._event(activity, answer),
            )
            [done] = await self._store.complete_activities([part])
            if isinstance(done, Accepted):
                await self._keep(activity, answer)
                return True
            # Another answer was faster, or the item is at its next attempt by now.
        raise StoreError(f"the work item of flow {flow_id!r} is attempted all the time; send its answer again")

    def _event(self, activity: OpenActivity, answer: Raw | Failure) -> events.ActivityCompleted | events.ActivityFailed:
        now, ref, attempt = self._access.clock.now(), activity.request.ref, activity.attempt
        if isinstance(answer, Failure):
            return events.ActivityFailed(ref=ref, at=now, attempt=attempt, failure=answer)
        return events.ActivityCompleted(ref=ref, at=now, attempt=attempt, result=answer)

    async def _find(self, flow_id: str, token: str) -> tuple[Instance, int]:
        """Return the flow and the number of the work item that a token is for; one error says that there is none."""
        number = number_of(token)
        found = None if number is None or not flow_id else await self._store.inspector.get(flow_id)
        if found is None or number is None or found.kind != FLOW:
            raise _unknown(flow_id)
        if not self._secret:
            self._secret = await secret_of(self._store.values)
        if not is_token(self._secret, f"{found.run_id}/{number}", token):
            raise _unknown(flow_id)
        return found, number

    async def _open(self, instance: Instance, number: int) -> OpenActivity | None:
        work = await self._store.inspector.open_work(instance)
        return None if work is None else next((one for one in work.activities if one.request.ref == number), None)

    async def _check_step(self, instance: Instance, number: int, step_id: str) -> None:
        """Raise if a work item that has its answer is not one of this step."""
        item = FlowState(await self._store.inspector.history(instance)).items.get(number)
        if item is None or item.step != step_id:
            raise _unknown(instance.entity_id)

    async def _keep(self, activity: OpenActivity, answer: Raw | Failure) -> None:
        """Keep a memoized result for others. It only saves work, so that nothing depends on it."""
        memo = activity.request.memo
        if memo is not None and not isinstance(answer, Failure):
            expires_at = self._access.clock.now() + memo.ttl if memo.ttl else None
            with suppress(StoreError):
                await self._store.values.put_if_absent(memo.key, bytes(answer), expires_at=expires_at)


def _call_of(activity: OpenActivity) -> HttpCall | None:
    """Return the call of an async step; None if the activity is another one, which nobody answers from outside."""
    if activity.request.name != HTTP_ACTIVITY:
        return None
    [call] = _calls(activity.request.input)
    return call if call.mode == "async" else None


def _unknown(flow_id: str) -> NotFound:
    # Not which part of the address is wrong, and not the token.
    return NotFound(
        f"no work item of flow {flow_id!r} is answered at this address; use the address that came with the call"
    )
