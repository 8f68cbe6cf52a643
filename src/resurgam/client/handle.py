"""What a program holds of a workflow: its ids, and the ways to talk to it."""

from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from resurgam.client import chain, describe, promises, signal_schemas
from resurgam.client.access import ANY, Access, check_reason, check_text, moment_after
from resurgam.client.answers import codec_of
from resurgam.client.children import ends_of_children
from resurgam.client.compensation import compensate, taken_back_by_hand
from resurgam.client.describe import Description
from resurgam.client.pause import Halting
from resurgam.client.query import query as ask
from resurgam.client.tree import Tree, structure
from resurgam.client.update import (
    Accepted,
    Completed,
    SendOptions,
    Stage,
    Update,
    UpdateHandle,
    check_stage,
    written_update,
)
from resurgam.core import event as events
from resurgam.core.codec import Codec
from resurgam.core.errors import (
    AlreadyExists,
    NotFound,
    ResultTimeout,
    StoreError,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowTerminated,
)
from resurgam.core.failure import rebuild
from resurgam.core.location import Location
from resurgam.core.retry import Duration
from resurgam.core.state import InstanceState, Status
from resurgam.core.succession import next_attempt, with_child_answers
from resurgam.runtime.system import new_id, python
from resurgam.store.records import Creation, Delivered, Delivery, Ended, Exists, Instance, Missing, Settled
from resurgam.store.retention import same_line

if TYPE_CHECKING:
    # Known to every type checker, though the package itself need not be installed.
    from typing_extensions import TypeForm as Form

R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D")


class Handle(Generic[R]):
    """One workflow. Without a *run_id* it means the newest execution of the entity, with one the newest of that run.

    With an *execution_id* it means that one attempt, to be read: messages and orders concern the run, and are refused.
    *workflow* is the name that the workflow must have. *began* is the execution that the handle was made for by a start:
    `result` is that of what becomes of this one.
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
        began: Instance | None = None,
    ) -> None:
        self.entity_id = entity_id
        self._access = access
        self._store = access.store
        self._clock = access.clock
        self._run_id = run_id
        self._execution_id = execution_id
        self._workflow = workflow
        self._result = result
        self._began = began
        self._known = began

    def __repr__(self) -> str:
        return f"<handle of workflow {self.entity_id!r}>"

    @property
    def run_id(self) -> str:
        """The run that this handle was made for, or has last seen."""
        return self._run_id or self._seen().run_id

    @property
    def execution_id(self) -> str:
        """The execution that this handle was made for, or has last seen."""
        return self._execution_id or self._seen().execution_id

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end and return what the workflow returned, or raise what became of it.

        Retries and continuations are followed to the last, a later start of the same id is not. A handle with an
        execution_id follows nothing: an attempt that failed is `WorkflowFailed`, though a later one may have succeeded.
        After *timeout* it is `ResultTimeout`, a `TimeoutError`; the workflow itself goes on.
        """
        until = moment_after(self._clock, timeout)
        begun = await self._instance() if self._began is None else await self._still_there(self._began)
        if self._execution_id is not None:
            end = await chain.end_of(self._store, begun, until)
        else:
            end = await chain.follow(self._store, begun, until, pinned=self._run_id is not None)
        if end is None:
            raise ResultTimeout(await self._why_no_result(timeout))
        self._known = end[0]
        return self._read_result(*end)  # type: ignore[no-any-return]  # codec of R

    # What is said to its code.

    async def signal(self, name: str, value: object = None, *, id: str | None = None) -> None:
        """Send a signal; it waits in order until the workflow listens. The same name and *id* twice count once.

        A value that does not fit the type by which the workflow listens for this name, or last did, is a
        `SerializationError` that names the field; nothing is sent then.
        """
        self._check_follows("signal")
        sent = signal_received(self._access, name, value, id)
        await signal_schemas.check(self._access, await self._instance(), sent)
        await self._tell(sent)

    @overload
    async def query(self, name: str, *args: object, type: "Form[T]", timeout: Duration = 30) -> T: ...
    @overload
    async def query(self, name: str, *args: object, type: None = None, timeout: Duration = 30) -> Any: ...
    async def query(self, name: str, *args: object, type: Any = None, timeout: Duration = 30) -> Any:
        """Return what the handler of query *name* answers, whatever state the workflow is in; nothing of it changes.

        It is answered here if the workflow's code is registered here, otherwise by a worker that serves its queue; if
        none answers within *timeout*, it is a `TimeoutError`. The answer is read as *type* says, else as the handler's
        annotation says if it is answered here, else as plain JSON types; if it does not fit, `SerializationError`.
        """
        check_text(name, "the name of a query")
        codec = codec_of(type, f"query {name!r}")
        return await ask(self._access, await self._instance(), name, args, timeout, codec)

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
        """Have the handler of update *name* called, wait for it, and return what it returns.

        If it is refused, or the handler raises, `UpdateRejected`. The same *id* again is not run again: it returns what
        was recorded. After *timeout* it is a `TimeoutError`; the update itself goes on. The value is read as *type* says,
        else as the handler's annotation says if the workflow's code is registered here, else as plain JSON types.

        With ``wait="accepted"`` return once the update is accepted, with an `UpdateHandle`: await its ``result()``.
        """
        self._check_follows("update")
        check_stage(wait)
        codec = codec_of(type, f"update {name!r}")
        written = written_update(self._access, name, args, id)
        until = moment_after(self._clock, timeout)
        instance = await self._instance()
        sent = Update(
            access=self._access,
            entity_id=self.entity_id,
            workflow=instance.name,
            name=name,
            id=id or new_id(self._clock.now()),
            written=written,
            pinned=self._run_id is not None,
            codec=codec,
        )
        position = await (sent.send(instance) if id is None else sent.repeat(instance))
        if wait == "completed":
            return await sent.result(position, until)
        await sent.accepted(position, until)
        return UpdateHandle[Any](sent, position)

    async def resolve(self, name: str, value: object = None) -> bool:
        """Give the value of the open promise *name*; whether it was not settled before. The first settlement counts."""
        self._check_follows("resolve")
        promises.check_promise(name)
        return await self._settle(name, promises.resolved(self._access, name, value))

    async def reject(self, name: str, error: BaseException | str) -> bool:
        """Say that the open promise *name* gets no value, and why; whether it was not settled before."""
        self._check_follows("reject")
        promises.check_promise(name)
        return await self._settle(name, promises.rejected(self._access, name, error))

    # What is done with it, whatever its code says.

    async def cancel(self, reason: str = "") -> None:
        """Ask the workflow to stop: its code gets `asyncio.CancelledError` and may clean up first."""
        self._check_follows("cancel")
        await self._tell(events.CancelRequested(at=self._clock.now(), reason=check_reason(reason)))

    async def terminate(self, reason: str = "") -> None:
        """End the workflow at once, without asking its code; nothing is cleaned up."""
        self._check_follows("terminate")
        await self._tell(events.WorkflowTerminated(at=self._clock.now(), reason=check_reason(reason)))

    async def pause(self, *, tree: bool = False, reason: str = "") -> None:
        """Halt the workflow where it is until `resume`; activities that run come to their end.

        With *tree* its open descendants are halted too, and whatever it begins meanwhile.
        """
        self._check_follows("pause")
        await Halting(self._store, self._clock).pause(await self._instance(), check_reason(reason), tree=bool(tree))

    async def resume(self) -> None:
        """Let a paused workflow go on, and with it what ``pause(tree=True)`` has halted; `StoreError` if it is not."""
        self._check_follows("resume")
        await Halting(self._store, self._clock).resume(await self._instance())

    async def begin(self) -> None:
        """Begin a workflow that is ``scheduled``, deferred or delayed, now."""
        self._check_follows("begin")
        instance = await self._instance()
        if instance.status is not Status.SCHEDULED:
            raise StoreError(
                f"workflow {self.entity_id!r} is {instance.status}; only one that is scheduled can be begun"
            )
        await self._told(await self._deliver(events.WorkflowBegun(at=self._clock.now()), instance))

    async def retry(self) -> int:
        """Try it again: a failed workflow by its next attempt, others by what was put aside or is parked.

        What a failed run has got already is not got again. Return how much is handed out: an attempt counts as one.
        """
        self._check_follows("retry")
        instance = await self._instance()
        if instance.status is Status.FAILED:
            await self._next_attempt(instance)
            return 1
        [answer] = await self._store.revive([instance.execution_id])
        count = 0 if isinstance(answer, Missing) else answer.count
        if not count:
            raise StoreError(
                f"nothing of workflow {self.entity_id!r} ({instance.status}) was put aside or is parked, and only a "
                "failed one is tried again"
            )
        return count

    # What is known of it.

    @overload
    async def state(self, key: str, default: None = None, *, type: "Form[T]") -> T | None: ...
    @overload
    async def state(self, key: str, default: D, *, type: "Form[T]") -> T | D: ...
    @overload
    async def state(self, key: str, default: Any = None, *, type: None = None) -> Any: ...
    async def state(self, key: str, default: Any = None, *, type: Any = None) -> Any:
        """Return what the workflow keeps under *key*, without asking its code; *default* if there is nothing.

        The value is read as *type* says, else as plain JSON types; if it does not fit, `SerializationError`.
        """
        check_text(key, "the key of a state")
        codec = codec_of(type, f"state {key!r}") or ANY
        state = InstanceState(await self.history())
        written = state.variables.get(key)
        return default if written is None else codec.decode(written, f"state {key!r}")

    async def tree(self) -> Tree:
        """Return all that became of the workflow: its runs, executions, steps and children, with their ids."""
        return await structure(self._store, await self._instance())

    async def history(self, *, forgotten: bool = False) -> list[events.Event]:
        """Return everything that was recorded; what is forgotten, as far as it is kept, only with *forgotten*."""
        return list(await self._store.history((await self._instance()).execution_id, forgotten=forgotten))

    async def compensate(self, location: Location | str) -> "Handle[None]":
        """Take back the step of a saga at this place by hand, and return the handle of the workflow that does it.

        For a step whose own compensation failed, or of a saga that is long over. Its undo is called with what the step
        returned, and has the idempotency key that the saga's own compensation has.
        """
        self._check_follows("compensate")
        if not isinstance(location, Location | str):
            raise TypeError(f"location is {location!r}; it is a place such as '{{2}}'")
        place = location if isinstance(location, Location) else Location.parse(location)
        begun = await compensate(self._access, await self._instance(), place)
        return Handle(self._access, begun.entity_id, None, began=begun)

    async def describe(self) -> Description:
        """Return where the workflow stands, and what it waits for."""
        return await describe.describe(self._store, await self._instance(), self._clock.now())

    # How it is reached.

    def _seen(self) -> Instance:
        if self._known is None:
            raise StoreError(f"nothing is known of workflow {self.entity_id!r} yet; await describe() first")
        return self._known

    async def _instance(self) -> Instance:
        found = await self._store.get(self.entity_id, self._run_id, execution_id=self._execution_id)
        if found is None:
            raise self._missing()
        if self._workflow not in (None, found.name):
            raise NotFound(
                f"there is no workflow {self._workflow!r} with id {self.entity_id!r}: the id is that of a {found.name!r}; "
                "give engine.handle() that workflow, or none"
            )
        self._known = found
        return found

    def _check_follows(self, verb: str) -> None:
        """Refuse a verb that concerns the run: a retry takes over what was sent to the attempt before it."""
        if self._execution_id is not None:
            raise StoreError(
                f"handle.{verb}: this handle is for execution {self._execution_id!r} only, and can be read; to act on the "
                f"workflow use engine.handle({self.entity_id!r}), without execution_id"
            )

    async def _still_there(self, began: Instance) -> Instance:
        """Return the execution that this handle was made for; if it was purged, the newest that continues it."""
        if await self._store.get(began.entity_id, began.run_id) is not None:
            return began
        newest = await self._store.get(began.entity_id)
        if newest is None or not same_line(newest, began):
            raise NotFound(
                f"run {began.run_id!r} of workflow {began.entity_id!r} has been removed from the store, with its result"
            )
        return newest

    def _missing(self) -> NotFound:
        of_run = f" and run {self._run_id!r}" if self._run_id else ""
        of_execution = f" and execution {self._execution_id!r}" if self._execution_id is not None else ""
        return NotFound(f"there is no workflow with id {self.entity_id!r}{of_run}{of_execution}")

    async def _tell(self, event: events.Event) -> None:
        if self._run_id is None:
            if self._workflow is not None:
                await self._instance()  # refuses the id of another workflow
            await self._told(await self._deliver(event, None))
            return
        instance = await self._instance()
        answer = await self._deliver(event, instance)
        while isinstance(answer, Ended) and (await self._instance()).execution_id != instance.execution_id:
            instance = self._seen()  # a next attempt has begun meanwhile
            answer = await self._deliver(event, instance)
        await self._told(answer)

    async def _deliver(self, event: events.Event, instance: Instance | None) -> Delivered | Missing | Ended | Settled:
        execution_id = None if instance is None else instance.execution_id
        to = Delivery(event=event, entity_id=self.entity_id, execution_id=execution_id)
        [answer] = await self._store.deliver([to])
        return answer

    async def _told(self, answer: Delivered | Missing | Ended | Settled) -> None:
        if isinstance(answer, Missing):
            raise self._missing()
        if isinstance(answer, Ended):
            raise NotFound(f"workflow {self.entity_id!r} has ended ({answer.status}) and takes nothing more")

    async def _settle(self, name: str, settlement: promises.Settlement) -> bool:
        pinned = None if self._run_id is None else await self._instance()
        execution_id = None if pinned is None else pinned.execution_id
        to = Delivery(event=settlement, entity_id=self.entity_id, execution_id=execution_id, promise=name)
        answer = await promises.deliver(self._access, to)
        log = await self.history(forgotten=True) if isinstance(answer, Missing | Ended) else []
        return promises.was_first(answer, log, self.entity_id, name)

    async def _next_attempt(self, failed: Instance) -> None:
        now = self._clock.now()
        log = await self._store.history(failed.execution_id)
        started, inbox = next_attempt(
            log,
            execution_id=new_id(now),
            at=now,
            python=python(),
            manual=True,
            compensated=await taken_back_by_hand(self._store, failed, log),
        )
        started = with_child_answers(started, await ends_of_children(self._store, started))
        [answer] = await self._store.create([Creation(started=started, inbox=inbox, follows=failed.execution_id)])
        if isinstance(answer, Exists):
            found = answer.instance
            raise AlreadyExists(
                f"workflow {self.entity_id!r} (run {failed.run_id}) cannot be tried again: its id has another execution "
                f"since ({found.status}, run {found.run_id}, attempt {found.attempt})"
            )
        self._known = answer.instance
        # Those that ended meanwhile, when neither attempt was there to be told.
        late = await ends_of_children(self._store, started)
        await self._store.deliver([Delivery(event=event, execution_id=started.execution_id) for event in late])

    def _read_result(self, instance: Instance, ended: events.Event | None) -> Any:
        match ended:
            case events.WorkflowCompleted():
                codec = self._result
                if codec is ANY and instance.name in self._access.registry.workflows:
                    codec = self._access.registry.workflows.find(instance.name).result
                return codec.decode(ended.result, f"result of workflow {instance.name!r}")
            case events.WorkflowFailed() | events.WorkflowRetried():
                raise WorkflowFailed(instance.name, self.entity_id) from rebuild(ended.failure)
            case events.WorkflowTerminated():
                raise WorkflowTerminated(instance.name, self.entity_id, ended.reason)
            case events.WorkflowContinued():
                raise NotFound(
                    f"workflow {self.entity_id!r} was continued as new, in run {ended.run_id!r}, which is not here any more"
                )
            case _:
                raise WorkflowCancelled(instance.name, self.entity_id)

    async def _why_no_result(self, timeout: Duration | None) -> str:
        found = await self.describe()
        after = f"no result of workflow {self.entity_id!r} within {timeout}"
        if found.status is Status.DIVERGED or isinstance(found.error, str):
            return f"{after}: it is {found.status}: {found.error}"
        return f"{after}: it is {found.status} and waits for {', '.join(found.waiting_for)}"


def signal_received(access: Access, name: str, value: object, id: str | None) -> events.SignalReceived:
    """Return a signal as it is put into an inbox."""
    check_text(name, "the name of a signal")
    if id is not None:
        check_text(id, "the id of a signal")
    written = access.write(value, f"signal {name!r}")
    now = access.clock.now()
    return events.SignalReceived(at=now, name=name, id=id or new_id(now), value=written)
