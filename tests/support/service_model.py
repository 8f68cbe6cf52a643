"""A model of the activity that calls services, for simulations: it keeps what an attempt tells the next one."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from resurgam.core import flow_event as fe
from resurgam.core.entry import Failure
from resurgam.core.errors import NonRetryable, NotWanted, Postponed, StepRejected
from resurgam.flows.http.message import HttpCall
from support.flow_simulation import FlowSimulation

Answer = Callable[[HttpCall], object]


class Kept(msgspec.Struct):
    """What the attempts of one call tell each other."""

    calls: int = 0
    deadline: int | None = None


class ServiceModel:
    """A model of the activity. *respond* says what a call leads to: outputs, an exception, or ``"accepted"``."""

    def __init__(self, respond: Answer, answer: Answer = lambda _: {}) -> None:
        self.run: FlowSimulation | None = None
        self.calls: list[tuple[str, int]] = []
        """The receipt of each call, and its moment."""
        self.deadlines: dict[str, list[int]] = {}
        self._respond, self._answer = respond, answer
        self._kept: dict[tuple[str, str], Kept] = {}

    def __call__(self, given: Any) -> object:
        call, run = msgspec.json.decode(msgspec.json.encode(given), type=HttpCall), self.run
        assert run is not None
        kept = self._kept.setdefault((call.receipt, call.mode), Kept())
        number = int(call.receipt.rpartition("/")[2])
        wanted = call.mode == "compensate" or run.state.is_wanted(number)
        if kept.deadline is not None:
            return self._give_up(call, kept, wanted=wanted)
        if (kept.calls or run._deliveries[number] > 1) and not wanted:
            raise NotWanted("the flow does not need it")
        kept.calls += 1
        self.calls.append((call.receipt, run.now))
        result = self._respond(call)
        if isinstance(result, NonRetryable):
            raise result
        if isinstance(result, Exception):
            self._again(call, kept, str(result))
        if result == "accepted":
            kept.deadline = run.now + call.deadline_ms
            self.deadlines.setdefault(call.receipt, []).append(kept.deadline)
            run.accept(number, self._answer(call))
            accepted = Failure(type=fe.ACKNOWLEDGED, message="accepted")
            raise Postponed(kept.deadline, accepted, Raw(b"{}"), failed=False)
        return result

    def _give_up(self, call: HttpCall, kept: Kept, *, wanted: bool) -> object:
        run, deadline = self.run, kept.deadline
        assert run is not None
        assert deadline is not None
        assert run.now >= deadline, "handed out before the deadline"
        kept.deadline = None
        if not wanted:
            raise StepRejected("no answer in time")
        return self._again(call, kept, "no answer in time")

    def _again(self, call: HttpCall, kept: Kept, reason: str) -> object:
        pause = call.retry.delay_after(kept.calls, 0.5)
        if pause is None:
            raise StepRejected(reason)
        assert self.run is not None
        raise Postponed(self.run.now + pause, Failure(type=fe.NOT_COMPLETED, message=reason), Raw(b"{}"))
