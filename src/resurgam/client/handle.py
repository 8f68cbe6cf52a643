"""What a program holds of a workflow: its ids, and the ways to talk to it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.codec import Codec, codec_for
from resurgam.core.errors import (
    NotFound,
    ResultTimeout,
    StoreError,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowTerminated,
)
from resurgam.core.failure import rebuild
from resurgam.core.retry import Duration, milliseconds
from resurgam.core.state import ENDS, InstanceState, Status
from resurgam.runtime.registry import Registry
from resurgam.runtime.system import new_id
from resurgam.store.protocol import Store
from resurgam.store.records import Closing, Delivery, Ended, Instance, Missing

R = TypeVar("R")
_ANY = codec_for(Any)

_TAIL: Final = 8
"""Entries at the end of a history among which its outcome is looked for first; late results may follow it."""

_LAST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Where a workflow stands."""

    entity_id: str
    execution_id: str
    run_id: str
    tree_id: str
    generation: int
    attempt: int
    name: str
    queue: str
    status: Status
    created_at: datetime
    closed_at: datetime | None
    deactivated: bool
    history_length: int
    tags: dict[str, str]
    waiting_for: tuple[str, ...]
    error: BaseException | str | None


class Handle(Generic[R]):
    """One workflow. Without a *run_id* it means the newest execution of the entity."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        registry: Registry,
        entity_id: str,
        run_id: str | None,
        *,
        result: Codec[Any] = _ANY,
        known: Instance | None = None,
    ) -> None:
        self.entity_id = entity_id
        self._store = store
        self._clock = clock
        self._registry = registry
        self._run_id = run_id
        self._result = result
        self._known = known

    def __repr__(self) -> str:
        return f"<handle of workflow {self.entity_id!r}>"

    @property
    def run_id(self) -> str:
        """The run that this handle was made for, or has last seen."""
        return self._run_id or self._seen().run_id

    @property
    def execution_id(self) -> str:
        """The execution that this handle was made for, or has last seen."""
        return self._seen().execution_id

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end and return what the workflow returned, or raise what became of it.

        After *timeout* it is `ResultTimeout`, a `TimeoutError`; the workflow itself goes on.
        """
        instance = await self._instance()
        until = None if timeout is None else self._clock.now() + milliseconds(timeout)
        if not await self._store.wait(Closing(execution_id=instance.execution_id), until):
            raise ResultTimeout(await self._why_no_result(timeout))
        return self._read_result(instance, await self._ended(instance))  # type: ignore[no-any-return]  # codec of R

    async def _ended(self, instance: Instance) -> events.Event | None:
        """Return the entry that ended an execution; it is looked for at the end first, for a history may be long."""
        for last in (_TAIL, None):
            for entry in await self._store.history(instance.execution_id, last):
                if type(entry) in ENDS:
                    return entry
        return None

    async def signal(self, name: str, value: object = None, *, id: str | None = None) -> None:
        """Send a signal; it waits in order until the workflow listens. The same *id* twice counts once."""
        if not isinstance(name, str) or not name:
            raise ValueError(f"the name of a signal is a string that is not empty; got {name!r}")
        if id is not None and not (isinstance(id, str) and id):
            raise ValueError(f"the id of a signal is a string that is not empty; got {id!r}")
        written = _ANY.encode(value, f"signal {name!r}")
        now = self._clock.now()
        await self._tell(events.SignalReceived(at=now, name=name, id=id or new_id(now), value=written))

    async def cancel(self, reason: str = "") -> None:
        """Ask the workflow to stop: its code gets `asyncio.CancelledError` and may clean up first."""
        await self._tell(events.CancelRequested(at=self._clock.now(), reason=str(reason)))

    async def terminate(self, reason: str = "") -> None:
        """End the workflow at once, without asking its code; nothing is cleaned up."""
        await self._tell(events.WorkflowTerminated(at=self._clock.now(), reason=str(reason)))

    async def retry(self) -> int:
        """Hand out again what was put aside after too many tries, or parked; return how much there was."""
        instance = await self._instance()
        [answer] = await self._store.revive([instance.execution_id])
        count = 0 if isinstance(answer, Missing) else answer.count
        if not count:
            raise StoreError(f"nothing of workflow {self.entity_id!r} ({instance.status}) was put aside or is parked")
        return count

    async def state(self, key: str, default: Any = None) -> Any:
        """Return what the workflow keeps under *key*, without asking its code."""
        state = InstanceState(await self.history())
        written = state.variables.get(key)
        return default if written is None else _ANY.decode(written, f"state {key!r}")

    async def history(self, *, forgotten: bool = False) -> list[events.Event]:
        """Return everything that was recorded; what is forgotten, as far as it is kept, only with *forgotten*."""
        return list(await self._store.history((await self._instance()).execution_id, forgotten=forgotten))

    async def describe(self) -> Description:
        """Return where the workflow stands, and what it waits for."""
        instance = await self._instance()
        state = InstanceState(await self._store.history(instance.execution_id))
        return Description(
            entity_id=instance.entity_id,
            execution_id=instance.execution_id,
            run_id=instance.run_id,
            tree_id=instance.tree_id,
            generation=instance.generation,
            attempt=instance.attempt,
            name=instance.name,
            queue=instance.queue,
            status=instance.status,
            created_at=_moment(instance.created_at),
            closed_at=None if instance.closed_at is None else _moment(instance.closed_at),
            deactivated=instance.deactivated,
            history_length=instance.last_seq,
            tags=instance.tags,
            waiting_for=_waiting_for(instance, state),
            error=_error(state, instance),
        )

    def _seen(self) -> Instance:
        if self._known is None:
            raise StoreError(f"nothing is known of workflow {self.entity_id!r} yet; await describe() first")
        return self._known

    async def _instance(self) -> Instance:
        found = await self._store.get(self.entity_id, self._run_id)
        if found is None:
            raise NotFound(f"there is no workflow with id {self.entity_id!r}" + self._of_run())
        self._known = found
        return found

    def _of_run(self) -> str:
        return f" and run {self._run_id!r}" if self._run_id else ""

    async def _tell(self, event: events.Event) -> None:
        execution_id = None if self._run_id is None else (await self._instance()).execution_id
        [answer] = await self._store.deliver(
            [Delivery(event=event, entity_id=self.entity_id, execution_id=execution_id)]
        )
        if isinstance(answer, Missing):
            raise NotFound(f"there is no workflow with id {self.entity_id!r}" + self._of_run())
        if isinstance(answer, Ended):
            raise NotFound(f"workflow {self.entity_id!r} has ended ({answer.status}) and takes nothing more")

    def _read_result(self, instance: Instance, ended: events.Event | None) -> Any:
        if isinstance(ended, events.WorkflowCompleted):
            codec = self._result
            if codec is _ANY and instance.name in self._registry.workflows:
                codec = self._registry.workflows.find(instance.name).result
            return codec.decode(ended.result, f"result of workflow {instance.name!r}")
        if isinstance(ended, events.WorkflowFailed):
            raise WorkflowFailed(instance.name, self.entity_id) from rebuild(ended.failure)
        if isinstance(ended, events.WorkflowTerminated):
            raise WorkflowTerminated(instance.name, self.entity_id, ended.reason)
        raise WorkflowCancelled(instance.name, self.entity_id)

    async def _why_no_result(self, timeout: Duration | None) -> str:
        found = await self.describe()
        after = f"no result of workflow {self.entity_id!r} within {timeout}"
        if found.status is Status.DIVERGED or isinstance(found.error, str):
            return f"{after}: it is {found.status}: {found.error}"
        return f"{after}: it is {found.status} and waits for {', '.join(found.waiting_for)}"


def _moment(milliseconds_since: int) -> datetime:
    return datetime.fromtimestamp(min(milliseconds_since / 1000, _LAST), UTC)


def _waiting_for(instance: Instance, state: InstanceState) -> tuple[str, ...]:
    if instance.status.terminal:
        return ()
    # A loop waits for nothing of its own, only for what its body does.
    waited = [command for command in state.open.values() if not isinstance(command, events.LoopStarted)]
    return tuple(map(_wants, waited)) or (f"a worker that serves queue {instance.queue!r}",)


def _wants(command: events.Command) -> str:
    match command:
        case events.ActivityScheduled():
            return f"activity {command.name!r} on queue {command.queue!r} at {command.location}"
        case events.TimerStarted():
            return f"timer until {_moment(command.deadline).isoformat()} at {command.location}"
        case events.ListenStarted():
            return f"signal {' or '.join(map(repr, command.names))} at {command.location}"
        case _:
            return f"{command.command} at {command.location}"


def _error(state: InstanceState, instance: Instance) -> BaseException | str | None:
    if isinstance(state.ended, events.WorkflowFailed):
        return rebuild(state.ended.failure)
    return instance.dead or instance.parked or "; ".join(instance.troubles) or None
