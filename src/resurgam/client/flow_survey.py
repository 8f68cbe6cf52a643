"""The state of a flow as `Handle.describe` shows it: what its steps wait for, and what they have provided."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from resurgam.client.access import ANY
from resurgam.client.pending import PendingWork, moment, with_progress
from resurgam.core import event as events
from resurgam.core.failure import rebuild
from resurgam.core.retry import RetryRule
from resurgam.flows.requests import item_id, place_of
from resurgam.flows.state import FlowState, WorkItem, WorkStatus
from resurgam.store.protocol import Store
from resurgam.store.records import Instance, OpenWork


def value_of(log: Sequence[events.Event], attribute: str) -> Raw | None:
    """Return the first value of an attribute; None if it has none."""
    provided = FlowState(log).attributes.get(attribute)
    return provided[0].value if provided else None


class FlowSurvey(msgspec.Struct, frozen=True):
    """One flow at the moment *now*."""

    instance: Instance
    state: FlowState
    work: OpenWork
    now: int

    @classmethod
    def of(cls, instance: Instance, log: Sequence[events.Event], work: OpenWork, now: int) -> "FlowSurvey":
        """Fold the log of a flow."""
        return cls(instance, FlowState(log), work, now)

    def given(self) -> dict[str, Any]:
        """Return the values that the flow was started with."""
        return {
            name: ANY.decode(one.value, name)
            for name, values in self.state.attributes.items()
            for one in values[:1]
            if not one.step
        }

    def attributes(self) -> dict[str, Any]:
        """Return the first value of each attribute."""
        return {name: ANY.decode(values[0].value, name) for name, values in self.state.attributes.items() if values}

    def result(self) -> Any:
        """Return the outputs of the goals, once they are decided."""
        return ANY.decode(self.state.result, "result")

    def error(self) -> BaseException | None:
        """Return the failure of the flow."""
        return None if self.state.failure is None else rebuild(self.state.failure)

    def uncompensated(self) -> tuple[str, ...]:
        """Return the work items whose compensation failed."""
        failed = WorkStatus.COMPENSATION_FAILED
        return tuple(
            f"work item {number} of step {item.step!r}"
            for number, item in self.state.items.items()
            if item.status is failed
        )

    async def pending(self, store: Store) -> tuple[PendingWork, ...]:
        """Return the work items without a result, and the next deadline of an input."""
        found = [await self._item(store, number) for number in self.state.outstanding]
        if self.instance.wake_at is not None and not self.instance.status.terminal:
            until = moment(self.instance.wake_at)
            text = f"the deadline of an input at {until.isoformat()}"
            found.append(
                PendingWork(kind="timer", text=text, name=None, location=None, since=moment(self.now), until=until)
            )
        return tuple(found)

    async def _item(self, store: Store, number: int) -> PendingWork:
        item = self.state.item_of(number)
        assert item is not None
        step = self.state.plan.steps[item.step]
        config = step.python or step.workflow
        entity_id = item_id(self.state, number)
        queue = (config.queue if config is not None else "") or self.instance.queue
        what = "the compensation of step" if item.status is WorkStatus.COMPENSATING else "step"
        child = step.type in ("flow", "workflow")
        work = PendingWork(
            kind="child" if child else "activity",
            text=f"{what} {item.step!r} (work item {number}) on queue {queue!r}",
            name=item.step,
            location=place_of(number),
            since=moment(self.state.steps[item.step].started_at or self.state.started.at),
            queue=queue,
            entity_id=entity_id,
            error=None if item.failure is None else rebuild(item.failure),
        )
        if step.http is not None:
            return _called(
                with_progress(work, self.work, number, self.now), item, self.state.wiring.steps[step.id].retry
            )
        if not child:
            return with_progress(work, self.work, number, self.now)
        found = await store.inspector.get(entity_id)
        return work if found is None else replace(work, status=str(found.status), attempt=found.attempt)


def _called(work: PendingWork, item: WorkItem, rule: RetryRule | None) -> PendingWork:
    """Return the work item of a service with its calls; the attempts of its activity are deliveries, waits included."""
    undoing = item.status is WorkStatus.COMPENSATING
    attempt = item.comp_retry_count + 1 if undoing else item.attempts + (item.status is WorkStatus.PENDING)
    work = replace(work, attempt=attempt, max_attempts=(rule or RetryRule()).max_attempts, details=None)
    if work.status != "retrying":
        return work
    if item.deadline is not None:
        text = f"{work.text}: its service has accepted it"
        return replace(work, text=text, status="acknowledged", until=moment(item.deadline), next_try=None)
    return replace(work, status="deferred", text=f"{work.text}: {item.deferred}") if item.deferred else work
