"""A handle of one workflow: send it messages, control it, wait for it and read it."""

from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from resurgam import client as verbs
from resurgam.client import chain, promises, query, signal_schemas
from resurgam.client.access import ANY, Access, check_reason, check_text, codec_of, deadline_after
from resurgam.client.update import (
    Accepted,
    Completed,
    SendOptions,
    Stage,
    Update,
    UpdateHandle,
    check_stage,
    encode_update,
)
from resurgam.core import event as events
from resurgam.core.codec import Codec
from resurgam.core.errors import (
    NotFound,
    ResultTimeout,
    StoreError,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowTerminated,
    WrongState,
)
from resurgam.core.failure import rebuild
from resurgam.core.flow_event import CATALOG, FLOW, FlowCompleted, FlowFailed
from resurgam.core.location import Location
from resurgam.core.retry import Duration, is_whole
from resurgam.core.schema import mismatch
from resurgam.core.state import InstanceState, Status
from resurgam.runtime.system import new_id
from resurgam.store.records import Delivered, Delivery, Ended, Instance, Missing, Outdated, Settled

if TYPE_CHECKING:
    # Known to every type checker, though the package itself need not be installed.
    from typing_extensions import TypeForm as Form

    from resurgam.client.describe import Description
    from resurgam.client.tree import Tree

R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D")


class Handle(Generic[R]):
    """One workflow: the newest execution of the entity or, with a *run_id*, the newest of that run.

    With an *execution_id* it is one attempt, which can only be read: messages and control belong to the run. *workflow*
    is the name that the workflow must have. *started* is the execution that a start created: `result` follows its
    chain.
    """

    def __init__(
        self,
        access: Access,
        entity_id: str,
        run_id: str | None,
        *,
        execution_id: str | None = None,
        workflow: str | None = None,
        result: Codec[Any] = ANY,
        started: Instance | None = None,
    ) -> None:
        self.entity_id = entity_id
        self._access = access
        self._store = access.store
        self._clock = access.clock
        self._run_id = run_id
        self._execution_id = execution_id
        self._workflow = workflow
        self._result = result
        self._started = started
        self._known = started

    def __repr__(self) -> str:
        return f"<handle of workflow {self.entity_id!r}>"

    @property
    def run_id(self) -> str:
        """The run of this handle, or the last one it has seen."""
        return self._run_id or self._seen().run_id

    @property
    def execution_id(self) -> str:
        """The execution of this handle, or the last one it has seen."""
        return self._execution_id or self._seen().execution_id

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end of the workflow and return its result, or raise its failure.

        Retries and continuations are followed to the last one; a later start of the same id is not. A handle with an
        execution_id follows nothing: a failed attempt raises `WorkflowFailed`, even if a later attempt succeeded.
        Raise `ResultTimeout`, a `TimeoutError`, after *timeout*; the workflow itself goes on.
        """
        until = deadline_after(self._clock, timeout)
        # What was started may have been purged: that ends the wait for it, and the chain is followed from there.
        first = self._started or await self._instance()
        if self._execution_id is not None:
            end = await chain.wait_for_execution(self._store, first, until)
        else:
            end = await chain.wait_for_chain(self._store, first, until, pinned=self._run_id is not None)
        if end is None:
            raise ResultTimeout(await self._why_no_result(timeout))
        self._known = end[0]
        return self._result_of(*end)  # type: ignore[no-any-return]  # codec of R

    # Messages to the workflow's code.

    async def signal(self, name: str, value: object = None, *, id: str | None = None) -> None:
        """Send a signal; signals wait in order until the workflow listens. The same name and *id* count once.

        A value that does not fit the type with which the workflow listens for this name, or last did, raises
        `SerializationError` with the path to the field, and nothing is sent.
        """
        self._check_acts_on_run("signal")
        event = signal_received(self._access, name, value, id)
        if self._known is not None:
            check_has_code(self._known, "signals")
        if await self._send_as_known(event):
            return
        instance = await self._instance()
        check_has_code(instance, "signals")
        await signal_schemas.check(self._access, instance, event)
        await self._send(event)

    @overload
    async def query(self, name: str, *args: object, type: "Form[T]", timeout: Duration = 30) -> T: ...
    @overload
    async def query(self, name: str, *args: object, type: None = None, timeout: Duration = 30) -> Any: ...
    async def query(self, name: str, *args: object, type: Any = None, timeout: Duration = 30) -> Any:
        """Return the result of the handler of query *name*, in any state of the workflow, which does not change.

        The query runs in this process if the workflow's code is registered here, otherwise on a worker that serves its
        queue; raise `ResultTimeout`, a `TimeoutError`, if none answers within *timeout*. The result is decoded as
        *type*, else by the handler's annotation if the query runs here, else as plain JSON types; raise
        `SerializationError` if it does not fit.
        """
        check_text(name, "query name")
        codec = codec_of(type, f"query {name!r}")
        instance = await self._instance()
        check_has_code(instance, "queries")
        return await query.query(self._access, instance, name, args, timeout, codec)

    @overload
    async def update(
        self, name: str, *args: object, type: "Form[T]", wait: Accepted, **options: Unpack[SendOptions]
    ) -> UpdateHandle[T]: ...
    @overload
    async def update(
        self, name: str, *args: object, type: None = None, wait: Accepted, **options: Unpack[SendOptions]
    ) -> UpdateHandle[Any]: ...
    @overload
    async def update(
        self, name: str, *args: object, type: "Form[T]", wait: Completed = "completed", **options: Unpack[SendOptions]
    ) -> T: ...
    @overload
    async def update(
        self, name: str, *args: object, type: None = None, wait: Completed = "completed", **options: Unpack[SendOptions]
    ) -> Any: ...
    async def update(
        self,
        name: str,
        *args: object,
        type: Any = None,
        wait: Stage = "completed",
        id: str | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Call the handler of update *name* in the workflow, wait for it, and return its result.

        Raise `UpdateRejected` if the update is refused or the handler raises. An update with the same *id* does not run
        again and returns the recorded result. Raise `ResultTimeout`, a `TimeoutError`, after *timeout*; the update
        itself goes on. The result is decoded as *type*, else by the handler's annotation if the workflow's code is
        registered here, else as plain JSON types.

        With ``wait="accepted"`` return an `UpdateHandle` once the update is accepted; await its ``result()``.
        """
        self._check_acts_on_run("update")
        check_stage(wait)
        codec = codec_of(type, f"update {name!r}")
        encoded = encode_update(self._access, name, args, id)
        until = deadline_after(self._clock, timeout)
        instance = await self._instance()
        check_has_code(instance, "updates")
        sent = Update(
            access=self._access,
            entity_id=self.entity_id,
            workflow=self._access.workflow_of(instance),
            name=name,
            id=id or new_id(self._clock.now()),
            input=encoded,
            pinned=self._run_id is not None,
            codec=codec,
        )
        position = await (sent.send(instance) if id is None else sent.repeat(instance))
        if wait == "completed":
            return await sent.result(position, until)
        await sent.accepted(position, until)
        return UpdateHandle[Any](sent, position)

    async def resolve(self, name: str, value: object = None) -> bool:
        """Resolve the open promise *name*; return whether this settlement was the first. Only the first counts."""
        self._check_acts_on_run("resolve")
        promises.check_promise(name)
        return await self._settle(name, promises.resolution(self._access, name, value))

    async def reject(self, name: str, error: BaseException | str) -> bool:
        """Reject the open promise *name* with an error; return whether this settlement was the first."""
        self._check_acts_on_run("reject")
        promises.check_promise(name)
        return await self._settle(name, promises.rejection(self._access, name, error))

    # Control.

    async def cancel(self, reason: str = "") -> None:
        """Cancel the workflow: its code gets `asyncio.CancelledError` and may clean up first."""
        self._check_acts_on_run("cancel")
        await self._send(events.CancelRequested(at=self._clock.now(), reason=check_reason(reason)))

    async def terminate(self, reason: str = "") -> None:
        """End the workflow at once, without running its code; nothing is cleaned up."""
        self._check_acts_on_run("terminate")
        await self._send(events.WorkflowTerminated(at=self._clock.now(), reason=check_reason(reason)))

    async def pause(self, *, tree: bool = False, reason: str = "") -> None:
        """Pause the workflow until `resume`; activities that run are finished.

        With *tree* its open descendants are paused too, and the children that it starts meanwhile.
        """
        self._check_acts_on_run("pause")
        await verbs.pause.pause(self._access, await self._instance(), check_reason(reason), tree=bool(tree))

    async def resume(self) -> None:
        """Resume a paused workflow, and what ``pause(tree=True)`` paused with it; raise `WrongState` if it is not paused."""
        self._check_acts_on_run("resume")
        await verbs.pause.resume(self._access, await self._instance())

    async def begin(self) -> None:
        """Start a ``scheduled`` workflow (deferred or delayed) now."""
        self._check_acts_on_run("begin")
        instance = await self._instance()
        if instance.status is not Status.SCHEDULED:
            raise WrongState(
                f"workflow {self.entity_id!r} is {instance.status}; only a scheduled workflow can be begun"
            )
        self._check_delivered(await self._deliver(events.WorkflowBegun(at=self._clock.now()), instance))

    async def retry(self) -> int:
        """Retry the workflow: start the next attempt of a failed run, or revive dead letters and parked runs.

        Completed steps of a failed run are not run again. Return how many items were revived; an attempt counts as one.
        """
        self._check_acts_on_run("retry")
        instance = await self._instance()
        if instance.status is Status.FAILED:
            self._known = await verbs.retry.retry_failed(self._access, instance)
            return 1
        [answer] = await self._store.revive([instance])
        count = 0 if isinstance(answer, Missing) else answer.count
        if not count:
            raise WrongState(
                f"workflow {self.entity_id!r} ({instance.status}) has nothing to retry: it has not failed, is not parked "
                "and has no dead letters"
            )
        return count

    # Reading.

    @overload
    async def state(self, key: str, default: None = None, *, type: "Form[T]") -> T | None: ...
    @overload
    async def state(self, key: str, default: D, *, type: "Form[T]") -> T | D: ...
    @overload
    async def state(self, key: str, default: Any = None, *, type: None = None) -> Any: ...
    async def state(self, key: str, default: Any = None, *, type: Any = None) -> Any:
        """Return the value of *key* in the workflow's durable state, without running its code; *default* if unset.

        Of a flow, return the first value of the attribute *key*.

        The value is decoded as *type*, else as plain JSON types; raise `SerializationError` if it does not fit.
        """
        check_text(key, "state key")
        codec = codec_of(type, f"state {key!r}") or ANY
        instance = await self._instance()
        log = await self._store.inspector.history(instance)
        if instance.kind == FLOW:
            encoded = verbs.flow_survey.value_of(log, key)
        else:
            encoded = InstanceState(log).variables.get(key)
        return default if encoded is None else codec.decode(encoded, f"state {key!r}")

    async def tree(self) -> "Tree":
        """Return the workflow's runs, executions, steps and children, with their ids."""
        return await verbs.tree.read_tree(self._store, await self._instance())

    async def history(self, *, forgotten: bool = False, after: int = 0, limit: int | None = None) -> list[events.Event]:
        """Return the recorded entries; with *forgotten* also those that were forgotten and are still kept.

        To read a long history in pages, pass a *limit*, and as *after* the ``seq`` of the last entry of the page before.
        """
        if not is_whole(after, 0) or not (limit is None or is_whole(limit, 1)):
            raise ValueError(f"after must be at least 0 and limit at least 1, got {after!r} and {limit!r}")
        instance = await self._instance()
        return [*await self._store.inspector.history(instance, forgotten=forgotten, after=after, limit=limit)]

    async def compensate(self, location: Location | str) -> "Handle[None]":
        """Compensate the saga step at this location manually, and return the handle of the workflow that does it.

        Use it for a step whose own compensation failed, or whose saga was cut off. Its undo is called with the result
        of the step and with the idempotency key of the saga's own compensation.
        """
        self._check_acts_on_run("compensate")
        if not isinstance(location, Location | str):
            raise TypeError(f"location must be a Location or a string such as '{{2}}', got {location!r}")
        parsed = location if isinstance(location, Location) else Location.parse(location)
        started = await verbs.compensation.compensate(self._access, await self._instance(), parsed)
        return Handle(self._access, started.entity_id, None, started=started)

    async def describe(self) -> "Description":
        """Return the status of the workflow, its open work and what it waits for."""
        return await verbs.describe.describe(self._store, await self._instance(), self._clock.now())

    # The rest finds the execution and delivers to it.

    def _seen(self) -> Instance:
        if self._known is None:
            raise StoreError(f"the run of workflow {self.entity_id!r} is not known yet; await handle.describe() first")
        return self._known

    async def _instance(self) -> Instance:
        found = await self._store.inspector.get(self.entity_id, self._run_id, execution_id=self._execution_id)
        if found is None:
            raise self._missing()
        if self._workflow not in (None, found.name):
            raise NotFound(
                f"there is no workflow {self._workflow!r} with id {self.entity_id!r}: the id belongs to a {found.name!r}; "
                f"pass workflow={found.name!r} to engine.handle(), or omit it"
            )
        self._known = found
        return found

    def _check_acts_on_run(self, verb: str) -> None:
        """Refuse a verb that acts on a run if this handle is of one attempt: messages pass on to the next attempt."""
        if self._execution_id is not None:
            raise WrongState(
                f"handle.{verb}: this handle is of execution {self._execution_id!r} and can only be read; to act on the "
                f"workflow use engine.handle({self.entity_id!r}), without execution_id"
            )

    def _missing(self) -> NotFound:
        of_run = f" and run {self._run_id!r}" if self._run_id else ""
        of_execution = f" and execution {self._execution_id!r}" if self._execution_id is not None else ""
        return NotFound(f"there is no workflow with id {self.entity_id!r}{of_run}{of_execution}")

    async def _send(self, event: events.Event) -> None:
        if self._run_id is None:
            if self._workflow is not None:
                await self._instance()  # refuses the id of another workflow
            self._check_delivered(await self._deliver(event, None))
            return
        instance = await self._instance()
        answer = await self._deliver(event, instance)
        while isinstance(answer, Ended) and (await self._instance()).execution_id != instance.execution_id:
            instance = self._seen()  # the next attempt has started meanwhile
            answer = await self._deliver(event, instance)
        self._check_delivered(answer)

    async def _send_as_known(self, event: events.SignalReceived) -> bool:
        """Send a signal that fits the schemas which this handle has seen, if the store still has those.

        Return whether it was sent: most signals need no read before.
        """
        known = self._known
        if known is None or self._run_id is not None or self._workflow is not None:
            return False
        schema = known.signal_schemas.get(event.name)
        if schema is not None and mismatch(schema, event.value) is not None:
            return False
        to = Delivery(event=event, entity_id=self.entity_id, schemas=known.signal_schemas)
        [answer] = await self._store.deliver([to])
        self._check_delivered(answer)
        return not isinstance(answer, Outdated)

    async def _deliver(
        self, event: events.Event, instance: Instance | None
    ) -> Delivered | Missing | Ended | Settled | Outdated:
        execution_id = None if instance is None else instance.execution_id
        to = Delivery(event=event, entity_id=self.entity_id, execution_id=execution_id)
        [answer] = await self._store.deliver([to])
        return answer

    def _check_delivered(self, answer: Delivered | Missing | Ended | Settled | Outdated) -> None:
        if isinstance(answer, Missing):
            raise self._missing()
        if isinstance(answer, Ended):
            raise NotFound(f"workflow {self.entity_id!r} is closed ({answer.status}) and accepts no more messages")

    async def _settle(self, name: str, settlement: promises.Settlement) -> bool:
        pinned = None if self._run_id is None else await self._instance()
        execution_id = None if pinned is None else pinned.execution_id
        to = Delivery(event=settlement, entity_id=self.entity_id, execution_id=execution_id, promise=name)
        answer = await promises.deliver(self._access, to)
        log = await self.history(forgotten=True) if isinstance(answer, Missing | Ended) else []
        return promises.was_first(answer, log, self.entity_id, name)

    def _result_of(self, instance: Instance, closing: events.Event | None) -> Any:
        match closing:
            case events.WorkflowCompleted():
                codec = self._result
                if codec is ANY and (workflow := self._access.workflow_of(instance)) is not None:
                    codec = workflow.result
                return codec.decode(closing.result, f"result of workflow {instance.name!r}")
            case FlowCompleted():
                return ANY.decode(closing.result, f"result of flow {self.entity_id!r}")
            case events.WorkflowFailed() | events.WorkflowRetried() | FlowFailed():
                raise WorkflowFailed(instance.name, self.entity_id, instance.kind) from rebuild(closing.failure)
            case events.WorkflowTerminated():
                raise WorkflowTerminated(instance.name, self.entity_id, closing.reason, instance.kind)
            case events.WorkflowContinued():
                raise NotFound(
                    f"workflow {self.entity_id!r} was continued as new, in run {closing.run_id!r}, "
                    "which is no longer in the store"
                )
            case _:
                raise WorkflowCancelled(instance.name, self.entity_id, instance.kind)

    async def _why_no_result(self, timeout: Duration | None) -> str:
        found = await self.describe()
        kind = (await self._instance()).kind
        after = f"no result of {kind} {self.entity_id!r} within {timeout}"
        if found.status is Status.DIVERGED or isinstance(found.error, str):
            return f"{after}: it is {found.status}: {found.error}"
        return f"{after}: it is {found.status} and waits for {', '.join(found.waiting_for)}"


def check_has_code(instance: Instance, messages: str) -> None:
    """Refuse messages to code for an instance that has none."""
    if instance.kind in (FLOW, CATALOG):
        raise WrongState(
            f"{instance.entity_id!r} is a {instance.kind}, which takes no {messages}: only the code of a workflow does; "
            "make the step that needs them a workflow (WorkflowStep)"
        )


def signal_received(access: Access, name: str, value: object, id: str | None) -> events.SignalReceived:
    """Return a signal as an inbox entry."""
    check_text(name, "signal name")
    if id is not None:
        check_text(id, "signal id")
    encoded = access.encode(value, f"signal {name!r}")
    now = access.clock.now()
    return events.SignalReceived(at=now, name=name, id=id or new_id(now), value=encoded)
