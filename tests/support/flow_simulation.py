"""Run a flow by its brain alone, in an order that a seed decides: claims, results, batches, lost workers and crashes.

The store and the worker are reduced to what the brain can notice of them. An activity is queued, claimed (which puts
``work_started`` into the inbox), and ends; an attempt that is lost is delivered again. After a crash the flow goes on from
its log. Each prefix of the log, as it is written, is folded and compared with the live state at that point.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.entry import Event, encode_event
from resurgam.core.errors import NonRetryable, Postponed
from resurgam.core.event import decode_event
from resurgam.core.outcome import ActivityRequest, Entry, Outcome
from resurgam.core.retry import RetryRule
from resurgam.core.state import Status
from resurgam.flows import model as m
from resurgam.flows.brain import LiveFlow
from resurgam.flows.decide import is_at_rest
from resurgam.flows.judge import Judge
from resurgam.flows.state import FlowState
from support.flow_runs import Equality, described, failure, started, watch

_MOST: Final = 3000
"""What may happen in a flow of a test before it comes to rest."""

Function = Callable[..., Any]
"""What an activity does with its arguments."""


class FlowSimulation:
    """One flow and its surroundings. *functions* are the activities by name.

    With *losses* workers die. With *eager* commits claim activities that they schedule, as far as the store lets them.
    """

    def __init__(
        self,
        steps: Sequence[m.Step],
        goals: Sequence[str],
        init: Mapping[str, Sequence[object]] = {},
        functions: Mapping[str, Function] = {},
        *,
        seed: int = 0,
        judge: Judge | None = None,
        metadata: Mapping[str, object] = {},
        losses: bool = True,
        eager: bool = False,
    ) -> None:
        self.judge: Judge = judge or Equality()
        self.now = 1000
        self.calls: list[tuple[str, Any]] = []
        self.requests: dict[int, ActivityRequest] = {}
        self.log: list[Event] = [started(steps, goals, init, self.judge, at=self.now, metadata=metadata)]
        self.outcome = Outcome()
        self.begun: Counter[int] = Counter()
        """How many attempts of each activity a worker has begun."""
        self._functions = functions
        self._chance = random.Random(seed)
        self._losses = losses
        self._eager = eager
        self._queued: dict[int, int] = {}
        self._running: dict[int, int] = {}
        self._deliveries: dict[int, int] = {}
        self._visible_at: dict[int, int] = {}
        """The moments before which activities are not handed out, of those that chose one themselves."""
        self._accepted: dict[int, object] = {}
        """The answers that services will give to activities that they have accepted."""
        self._inbox: list[Entry] = []
        self._entries = 0
        self._folded = FlowState(self.log)
        self._load()
        self.advance()

    # What can happen.

    def run(self) -> "FlowSimulation":
        """Let things happen until there is nothing left but the time; then let that pass too."""
        for _ in range(_MOST):
            if actions := self._possible():
                self._chance.choice(actions)()
            elif not self._wakes():
                return self
        raise AssertionError(f"the flow does not come to rest: {self.types}")

    def deliver(self, event: Event) -> None:
        """Put something into the inbox."""
        self._entries += 1
        self._inbox.append(Entry(self._entries, event))

    def advance(self) -> None:
        """Let the flow take its inbox, and do what it wants."""
        inbox, self._inbox = self._inbox, []
        outcome = self._live.advance(inbox, self.now)
        eager = self._claimed(outcome)
        entries = [*outcome.events, *self._live.begin(eager)]
        assert [entry.seq for entry in entries] == [*range(len(self.log) + 1, len(self.log) + len(entries) + 1)]
        for entry, seen in zip(entries, self._seen, strict=True):
            self._record(entry)
            assert described(self._folded) == seen
        self._seen.clear()
        # What the live flow has not looked at, a look at every step must not find either.
        if not self.state.deactivated:
            assert is_at_rest(FlowState(self.log), self.judge, self.now), "the flow has not come to rest"
        for request in outcome.activities:
            assert request.ref not in self.requests, "an activity is requested once"
            self.requests[request.ref], self._deliveries[request.ref] = request, 0
            self._queued[request.ref] = 1
            if request.ref in eager and self._chance.random() < 0.9:
                self._running[request.ref] = self._queued.pop(request.ref)
                self._deliveries[request.ref] = 1
                self.begun[request.ref] += 1
        for withdrawal in outcome.withdrawals:
            if withdrawal.ref in self._queued and not (withdrawal.never_started and self.begun[withdrawal.ref]):
                del self._queued[withdrawal.ref]
                assert withdrawal.entry is not None
                self.deliver(withdrawal.entry)
        self.outcome = outcome

    def _claimed(self, outcome: Outcome) -> list[int]:
        if not self._eager or outcome.status.terminal or self.state.paused:
            return []
        return [request.ref for request in outcome.activities if self._chance.random() < 0.5]

    def crash(self) -> None:
        """Lose the flow in memory; it goes on from its log."""
        self._load()

    def lose_commit(self) -> None:
        """Let the flow take its inbox, and lose it before the commit is durable."""
        self._live.advance(self._inbox, self.now)
        self._load()

    def claim(self, ref: int) -> None:
        """Let a worker begin an attempt; one of a flow that has ended is cancelled instead."""
        attempt = self._queued.pop(ref)
        if self.outcome.status.terminal and not self.requests[ref].outlives:
            self.deliver(events.ActivityCancelled(ref=ref))
            return
        self._running[ref] = attempt
        self._deliveries[ref] += 1
        self.begun[ref] += 1
        starts = self.requests[ref].starts
        if starts is not None:
            assert isinstance(starts, fe.WorkStarted)
            self.deliver(msgspec.structs.replace(starts, attempt=self._deliveries[ref]))

    def finish(self, ref: int) -> None:
        """Let an attempt come to its end."""
        attempt, request = self._running.pop(ref), self.requests[ref]
        arguments = msgspec.json.decode(request.input)
        args, kwargs = (arguments, {}) if isinstance(arguments, list) else ([], arguments["kwargs"])
        self.calls.append((request.name, kwargs or (args[0] if len(args) == 1 else args)))
        try:
            result = self._functions.get(request.name, lambda *_, **__: {})(*args, **kwargs)
        except Postponed as error:
            self._postpone(ref, attempt, error)
        except Exception as error:
            rule = request.retry or RetryRule()
            pause = None if isinstance(error, NonRetryable) else rule.delay_after(attempt, 0.5)
            if pause is None:
                self.deliver(events.ActivityFailed(ref=ref, attempt=attempt, failure=failure(error)))
            else:
                again = {"attempt": attempt, "next_at": self.now + pause, "failure": failure(error)}
                self.deliver(events.ActivityRetryScheduled(ref=ref, **again))
                self._queued[ref], self._deliveries[ref] = attempt + 1, 0
        else:
            self.deliver(events.ActivityCompleted(ref=ref, attempt=attempt, result=Raw(msgspec.json.encode(result))))

    def _postpone(self, ref: int, attempt: int, error: Postponed) -> None:
        again = {"attempt": attempt, "next_at": error.next_at, "failure": error.failure}
        self.deliver(events.ActivityRetryScheduled(ref=ref, **again))
        self._queued[ref], self._deliveries[ref], self._visible_at[ref] = attempt + 1, 0, error.next_at

    def accept(self, ref: int, answer: object) -> None:
        """Let a service have accepted an activity: it will answer it, at any time, unless it is answered before."""
        self._accepted[ref] = answer

    def answer(self, ref: int) -> None:
        """Let a service answer. The store takes the first answer, whatever becomes of an attempt that runs."""
        answer = self._accepted.pop(ref)
        attempt = self._queued.pop(ref, None) or self._running.pop(ref, None)
        if attempt is None:
            return  # it is answered, or was given up
        if isinstance(answer, Exception):
            self.deliver(events.ActivityFailed(ref=ref, attempt=attempt, failure=failure(answer)))
        else:
            self.deliver(events.ActivityCompleted(ref=ref, attempt=attempt, result=Raw(msgspec.json.encode(answer))))

    def lose(self, ref: int) -> None:
        """Lose the worker of an attempt. It is delivered again, or cancelled if its flow has ended."""
        attempt = self._running.pop(ref)
        if self.outcome.status is Status.RUNNING or self.requests[ref].outlives:
            self._queued[ref] = attempt
        else:
            self.deliver(events.ActivityCancelled(ref=ref))

    def terminate(self) -> None:
        """Let the store end the flow, whatever it does."""
        assert self.outcome.status is Status.RUNNING
        self._record(events.WorkflowTerminated(seq=len(self.log) + 1, at=self.now, reason="enough"))
        for ref in [ref for ref in self._queued if not self.requests[ref].outlives]:
            del self._queued[ref]
            self.deliver(events.ActivityCancelled(ref=ref))
        self.outcome = Outcome(status=Status.TERMINATED)
        self._load()

    @property
    def queued(self) -> Sequence[int]:
        """The activities that wait for a worker."""
        return list(self._queued)

    @property
    def running(self) -> Sequence[int]:
        """The activities that run."""
        return list(self._running)

    def _possible(self) -> list[Callable[[], None]]:
        def of(action: Callable[[int], None], ref: int) -> Callable[[], None]:
            return lambda: action(ref)

        due = [ref for ref in self._queued if self._visible_at.get(ref, 0) <= self.now]
        actions = [*(of(self.claim, ref) for ref in due), *(of(self.finish, ref) for ref in self._running)]
        actions += [of(self.answer, ref) for ref in self._accepted]
        ending = self.outcome.status.terminal and not self.state.deactivated and not actions and not self._queued
        if self._inbox or ending:
            actions += [self.advance, self.advance, self.crash, self.lose_commit]
        if self._losses:
            actions += [of(self.lose, ref) for ref in self._running if self._deliveries[ref] < 3]
        return actions

    def _wakes(self) -> bool:
        """Let time pass until something is due; return whether there is anything."""
        due = [self._visible_at[ref] for ref in self._queued if ref in self._visible_at]
        due += [] if self.outcome.wake_at is None else [self.outcome.wake_at]
        if not due:
            return False
        self.now = max(self.now, min(due))
        if self.outcome.wake_at is not None:
            self.advance()
        return True

    def _record(self, entry: Event) -> None:
        written = decode_event(encode_event(entry))
        self.log.append(written)
        self._folded.apply(written)

    def _load(self) -> None:
        self._live = LiveFlow(self.log, self.judge)
        self._seen = watch(self._live._state)

    # What has become of it.

    @property
    def state(self) -> FlowState:
        return self._live._state

    @property
    def result(self) -> Any:
        return msgspec.json.decode(self.state.result)

    @property
    def statuses(self) -> dict[str, str]:
        return {step_id: str(step.status) for step_id, step in self.state.steps.items()}

    @property
    def types(self) -> list[str]:
        return [entry.type for entry in self.log]

    @property
    def called(self) -> list[str]:
        return [name for name, _ in self.calls]
