"""The activity that calls the service of a step: all attempts of a work item, the wait for an answer included.

How far it is travels in the details of the attempt. The store's own number of the attempt counts postponements too.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from resurgam.core import flow_event as fe
from resurgam.core.clock import Clock
from resurgam.core.entry import Failure
from resurgam.core.errors import NotWanted, Postponed, ResurgamError, StepNotCompleted, StepRejected
from resurgam.flows.http.addresses import AddressRefused
from resurgam.flows.http.answer import Answer, Incomplete, Outputs, Rejection, Response, read_answer
from resurgam.flows.http.call import host_of, outgoing, webhook_url
from resurgam.flows.http.message import HttpCall
from resurgam.flows.http.sending import Sends, Unreachable
from resurgam.flows.http.token import webhook_token
from resurgam.runtime.definitions.definition import ActivityOptions, AsyncActivity
from resurgam.runtime.definitions.info import ActivityInfo, activity_info

_DEFERRALS: Final = (1, 2, 4, 8, 10, 10, 10, 10, 5)
"""Seconds that a call waits while its service is unhealthy, one after the other: a minute for each work item."""


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the calls of a work item are.

    *deadline* is the moment until which an accepted call may be answered, *early* how often it was looked at before.
    """

    calls: int = 0
    deferrals: int = 0
    deadline: int | None = None
    early: int = 0


class Surroundings(Protocol):
    """What the store knows about a call."""

    async def unhealthy(self, step_id: str) -> str | None:
        """Return why the service of a step must not be called now; None if it may be."""
        ...

    async def is_wanted(self, call: HttpCall) -> bool:
        """Whether the flow still needs the result of a work item."""
        ...

    async def public_url(self) -> str | None:
        """Return the address under which the server of this store is reached; None if there is none."""
        ...

    async def secret(self) -> bytes:
        """Return the secret of the store."""
        ...


class CallActivity:
    """Calls services."""

    def __init__(self, client: Sends, known: Surroundings, clock: Clock, chance: Callable[[], float]) -> None:
        self._client = client
        self._known = known
        self._clock = clock
        self._chance = chance

    def definition(self) -> AsyncActivity[..., Any]:
        """Return it as an activity."""
        return AsyncActivity(fe.HTTP_ACTIVITY, self.run, ActivityOptions())

    async def run(self, call: HttpCall) -> dict[str, Any]:
        """Make the next call of a work item and return its outputs; raise `Postponed` if there is more to do later."""
        info = activity_info()
        progress = msgspec.convert(info.details or {}, Progress)
        if progress.deadline is not None:
            raise await self._after_acceptance(call, progress, progress.deadline)
        await self._check_wanted(call, progress, info)
        await self._check_health(call, progress)
        progress = msgspec.structs.replace(progress, calls=progress.calls + 1)
        answer = await self._answer(call)
        if isinstance(answer, Outputs):
            return answer.values
        if isinstance(answer, Rejection):
            raise StepRejected(_about(call, answer.reason))
        if isinstance(answer, Incomplete):
            raise self._try_again(call, progress, answer.reason, answer.pause)
        until = self._clock.now() + call.deadline_ms
        raise _accepted(call, msgspec.structs.replace(progress, deadline=until), until)

    async def _after_acceptance(self, call: HttpCall, progress: Progress, deadline: int) -> ResurgamError:
        """Return how to go on after the deadline of an accepted call: with another one, later, or not at all."""
        left = deadline - self._clock.now()
        if left > 0:
            # The clock of the store is ahead. Nobody knows how far, so that each look waits longer than the one before.
            later = deadline + left * (2**progress.early - 1)
            return _accepted(call, msgspec.structs.replace(progress, early=progress.early + 1), later)
        reason = f"accepted the call, but sent no answer to the webhook within {call.deadline_ms / 1000:g} s"
        if not await self._known.is_wanted(call):
            return StepNotCompleted(_about(call, reason))
        return self._try_again(call, msgspec.structs.replace(progress, deadline=None, early=0), reason)

    async def _check_wanted(self, call: HttpCall, progress: Progress, info: ActivityInfo) -> None:
        """Do not call an async step that is not needed any more: an item is not withdrawn once an attempt has begun."""
        began_before = progress != Progress() or info.attempt > 1 or info.redelivered
        if call.mode == "async" and began_before and not await self._known.is_wanted(call):
            raise NotWanted(f"step {call.step_id!r} is not called: its flow does not need it any more")

    async def _check_health(self, call: HttpCall, progress: Progress) -> None:
        """Wait while the service is unhealthy; not for ever, because only a call shows that it is well again."""
        if progress.deferrals >= len(_DEFERRALS):
            return
        why = await self._known.unhealthy(call.step_id)
        if why is None:
            return
        later = self._clock.now() + _DEFERRALS[progress.deferrals] * 1000
        reason = _about(call, f"is unhealthy{f' ({why})' if why else ''}; the call waits")
        details = msgspec.structs.replace(progress, deferrals=progress.deferrals + 1)
        raise Postponed(later, Failure(type=fe.DEFERRED, message=reason), _encoded(details), failed=False)

    async def _answer(self, call: HttpCall) -> Answer:
        try:
            address = token = ""
            if call.mode == "async":
                public_url = await self._known.public_url()
                if public_url is None:
                    return Incomplete(
                        "was not called: nothing could receive its answer; start `resurgam serve` on this store"
                    )
                token = webhook_token(await self._known.secret(), call.receipt)
                address = webhook_url(public_url, call, token)
            response = await self._client.send(
                outgoing(call, address), timeout=call.timeout_ms / 1000, body_wanted=call.mode == "sync"
            )
        except Unreachable as error:
            return Incomplete(f"gave no answer: {error}")
        except AddressRefused as error:
            return Rejection(f"was not called: {error}")
        except ValueError as error:
            return Rejection(f"cannot be called: {error}")
        return read_answer(call.mode, _without(response, token), self._clock.now())

    def _try_again(self, call: HttpCall, progress: Progress, reason: str, pause: int = 0) -> ResurgamError:
        """Return how to go on after a call that was not completed; the pause is longer if the service asks for that."""
        usual = call.retry.delay_after(progress.calls, self._chance())
        about = _about(call, reason)
        if usual is None:
            calls = "1 call" if progress.calls == 1 else f"{progress.calls} calls"
            return StepNotCompleted(f"{about} ({calls}, no further attempt)")
        later = self._clock.now() + max(usual, pause)
        return Postponed(later, Failure(type=fe.NOT_COMPLETED, message=about), _encoded(progress))


def _accepted(call: HttpCall, progress: Progress, until: int) -> Postponed:
    reason = _about(call, "has accepted the call; its answer is expected at the webhook")
    return Postponed(until, Failure(type=fe.ACKNOWLEDGED, message=reason), _encoded(progress), failed=False)


def _about(call: HttpCall, what: str) -> str:
    return f"step {call.step_id!r} ({host_of(call.url)}) {what}"


def _without(response: Response, token: str) -> Response:
    """Return an answer without the token: a service in trouble may say what it was sent, and what it says is recorded."""
    if not token or token.encode() not in response.body:
        return response
    return msgspec.structs.replace(response, body=response.body.replace(token.encode(), b"(token)"))


def _encoded(progress: Progress) -> Raw:
    return Raw(msgspec.json.encode(progress))
