"""Start, signal, settle, list and move workflows, without running any."""

import builtins
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, Unpack

from msgspec.structs import replace

from resurgam import client as verbs
from resurgam.client import promises, signal_schemas
from resurgam.client.access import Access, check_reason, check_tags, check_text, codec_of, deadline_after
from resurgam.client.handle import Handle, signal_received
from resurgam.client.subscription import Subscription
from resurgam.client.update import HandlerNotStarted, Position, Update, encode_update
from resurgam.core import event as events
from resurgam.core.codec import check_size
from resurgam.core.errors import AlreadyExists, DefinitionError, NotFound
from resurgam.core.flow_event import CATALOG, FLOW
from resurgam.core.retry import Duration, milliseconds
from resurgam.runtime.definitions.definition import DEFAULT_QUEUE, Workflow
from resurgam.runtime.system import new_id, new_ids, python
from resurgam.store import export
from resurgam.store.import_grace import keep_imported
from resurgam.store.records import (
    Adoption,
    Arrival,
    Copy,
    Created,
    Creation,
    EndedQuery,
    Exists,
    Instance,
    LiveWorker,
    Page,
    Query,
)
from resurgam.store.retention import purge_all

if TYPE_CHECKING:
    from resurgam.client.deletion import DeletableArchive, Deletion
    from resurgam.client.flows import Flows
    from resurgam.client.health_checks import HealthChecks
    from resurgam.client.webhook import Webhooks
    from resurgam.flows.http.outbound import Outbound

IfExists = Literal["error", "attach", "replace"]


class Labels(TypedDict, total=False):
    """Id, queue and tags of a workflow that is started."""

    id: str | None
    queue: str | None
    tags: Mapping[str, str] | None


class StartOptions(TypedDict, total=False):
    """The options of `Engine.start`."""

    id: str | None
    queue: str | None
    tags: Mapping[str, str] | None
    delay: Duration | None
    if_exists: IfExists


class FlowOptions(TypedDict, total=False):
    """The options of `Engine.start_flow`."""

    id: str | None
    queue: str | None
    tags: Mapping[str, str] | None
    metadata: Mapping[str, object] | None
    many: bool


class SignalOptions(TypedDict):
    """The options of `Engine.signal_with_start`."""

    id: str
    signal: str
    value: NotRequired[object]
    queue: NotRequired[str | None]
    tags: NotRequired[Mapping[str, str] | None]
    signal_id: NotRequired[str | None]


class UpdateOptions(TypedDict):
    """The options of `Engine.update_with_start`, beside ``type=``."""

    id: str
    update: str
    with_args: NotRequired[Sequence[object]]
    queue: NotRequired[str | None]
    tags: NotRequired[Mapping[str, str] | None]
    update_id: NotRequired[str | None]
    timeout: NotRequired[Duration | None]


class Client:
    """The client verbs of an engine, on one store. *name* is that of the engine."""

    def __init__(self, access: Access, name: str = "client") -> None:
        self._access = access
        self._store = access.store
        self._name = name

    @cached_property
    def flows(self) -> "Flows":
        """The verbs of goal flows."""
        return verbs.flows.Flows(self._access, self._name)

    @cached_property
    def webhooks(self) -> "Webhooks":
        """The answers of async steps."""
        return verbs.webhook.Webhooks(self._access)

    def health_checks(self, outbound: "Outbound | None") -> "HealthChecks":
        """Return the health checks of the registered steps."""
        return verbs.health_checks.make(self._access, self._name, outbound)

    async def start(
        self,
        workflow: Any,
        args: tuple[object, ...],
        labels: Labels,
        delay: Duration | None = None,
        if_exists: IfExists = "error",
    ) -> Handle[Any]:
        """Start an execution and return its handle."""
        if if_exists not in ("error", "attach", "replace"):
            raise ValueError(f"if_exists must be 'error', 'attach' or 'replace', got {if_exists!r}")
        definition, started = self._prepare(workflow, args, labels, None if delay is None else _milliseconds(delay))
        creation = Creation(
            started=started,
            attach=if_exists == "attach",
            replace=_termination(started) if if_exists == "replace" else None,
        )
        [answer] = await self._store.create([creation])
        if isinstance(answer, Exists) and if_exists == "error":
            raise AlreadyExists(
                f"workflow id {started.entity_id!r} is in use by an open execution of {answer.instance.name!r} "
                f"({answer.instance.status}); choose another id, or pass if_exists='attach' to get its handle, "
                "if_exists='replace' to terminate it first"
            )
        _check_is_workflow(answer)
        return Handle(self._access, started.entity_id, None, result=definition.result, started=answer.instance)

    async def signal_with_start(
        self, workflow: Any, args: tuple[object, ...], signal: events.SignalReceived, **labels: Unpack[Labels]
    ) -> Handle[Any]:
        """Signal the open execution of an id, or start one with the signal in its mailbox, in one atomic step."""
        check_text(labels.get("id"), "id")
        definition, started = self._prepare(workflow, args, labels)
        found = await self._store.inspector.get(started.entity_id)
        if found is not None:
            await signal_schemas.check(self._access, found, signal)
        [answer] = await self._store.create([Creation(started=started, inbox=(signal,))])
        _check_is_workflow(answer)
        return Handle(self._access, started.entity_id, None, result=definition.result, started=answer.instance)

    async def update_with_start(  # noqa: PLR0913 -- each is an option of its own, and only given by name
        self,
        workflow: Any,
        args: tuple[object, ...],
        type: Any,
        *,
        id: str,
        update: str,
        with_args: Sequence[object] = (),
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        update_id: str | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Update the open execution of an id, or start one with the update, in one atomic step; return its result."""
        check_text(id, "id")
        if isinstance(with_args, str | bytes) or not isinstance(with_args, Sequence):
            raise TypeError(f"with_args must be a list or tuple of the update's arguments, got {with_args!r}")
        codec = codec_of(type, f"update {update!r}")
        encoded = encode_update(self._access, update, with_args, update_id)
        until = deadline_after(self._access.clock, timeout)
        labels: Labels = {"id": id, "queue": queue, "tags": tags}
        _, started = self._prepare(workflow, args, labels)
        sent = Update(
            access=self._access,
            entity_id=started.entity_id,
            workflow=self._access.workflow_of(started),
            name=update,
            id=update_id or new_id(started.at),
            input=encoded,
            pinned=False,
            codec=codec,
        )
        earlier = await self._store.inspector.get(started.entity_id) if update_id is not None else None
        position = await sent.find(earlier) if earlier is not None else None
        while position is None:
            [answer] = await self._store.create([Creation(started=started, inbox=(sent.event,))])
            _check_is_workflow(answer)
            sent = replace(sent, workflow=self._access.workflow_of(answer.instance))
            found = Position(answer.instance.entity_id, answer.instance.execution_id, answer.instance.last_seq)
            try:
                return await sent.result(found, until)
            except HandlerNotStarted:
                if isinstance(answer, Created):
                    raise  # this call started the run, and another run would close without a handler too
                # The run closed before it read the update: start the next one with it.
                _, started = self._prepare(workflow, args, labels)
        return await sent.result(position, until)

    def signal(self, name: str, value: object, id: str | None) -> events.SignalReceived:
        """Return a signal event; refuse a bad name, id or value."""
        return signal_received(self._access, name, value, id)

    def handle(self, entity_id: str, run_id: str | None, execution_id: str | None, workflow: Any) -> Handle[Any]:
        """Return a handle to a workflow that may or may not exist; *workflow* gives the type of its result."""
        if workflow is None:
            return Handle(self._access, entity_id, run_id, execution_id=execution_id)
        definition = workflow if isinstance(workflow, Workflow) else self._named(workflow)
        return Handle(
            self._access,
            entity_id,
            run_id,
            execution_id=execution_id,
            workflow=definition.name,
            result=definition.result,
        )

    async def resolve(self, promise_id: str, value: object) -> bool:
        """Resolve a promise to a value; return whether this settlement was the first."""
        promises.check_promise(promise_id)
        settlement = promises.resolution(self._access, promise_id, value)
        return await promises.settle_by_id(self._access, promise_id, settlement)

    async def reject(self, promise_id: str, error: BaseException | str) -> bool:
        """Reject a promise with an error; return whether this settlement was the first."""
        promises.check_promise(promise_id)
        settlement = promises.rejection(self._access, promise_id, error)
        return await promises.settle_by_id(self._access, promise_id, settlement)

    def subscribe(self, topic: str) -> Subscription:
        """Return an async iterator over the messages of a topic."""
        check_text(topic, "topic")
        return Subscription(self._store, topic)

    async def list(self, query: Query) -> Page:
        """Return a page of instances. The catalog of steps is left out: it is part of the store, and never ends."""
        page = await self._store.inspector.list(query)
        shown = tuple(found for found in page.instances if found.kind != CATALOG)
        short = len(page.instances) - len(shown)
        if not short:
            return page
        if page.cursor is None:
            return replace(page, instances=shown)
        rest = await self.list(replace(query, cursor=page.cursor, limit=short))
        return replace(rest, instances=shown + rest.instances)

    async def workers(self) -> builtins.list[LiveWorker]:
        """Return the live workers, in the order in which they started."""
        return [*await self._store.workers.list()]

    async def purge(self, query: EndedQuery) -> int:
        """Remove closed executions that no other execution needs; return how many."""
        return sum([batch.removed async for batch in purge_all(self._store, query)])

    async def delete(self, entity_id: str, reason: str, *, tree: bool, archives: "DeletableArchive") -> int:
        """Delete everything about an entity; return how many executions were removed."""
        check_text(entity_id, "id")
        deleter = verbs.deletion.Deleter(self._access, self._name, archives)
        return len((await deleter.delete(entity_id, reason=check_reason(reason), tree=tree)).executions)

    async def deletions(self) -> "builtins.list[Deletion]":
        """Return the recorded deletions, in the order of their requests."""
        return await verbs.deletion.read_deletions(self._store)

    async def export(
        self, entity_id: str, run_id: str | None, restore: Callable[[Sequence[Copy]], Awaitable[Sequence[Copy]]]
    ) -> builtins.list[str]:
        """Return all data of an entity's executions, or of one run, as JSON lines; *restore* reads those that are archived."""
        copies = await restore(await self._store.transfer.copies(entity_id, run_id))
        if not copies:
            of_run = f" and run {run_id!r}" if run_id is not None else ""
            raise NotFound(f"there is no workflow with id {entity_id!r}{of_run}")
        return export.write(copies)

    async def import_(self, exported: str | Iterable[str]) -> builtins.list[Arrival]:
        """Import exported workflows, each whole or not at all; raise for the first that is refused."""
        workflows: dict[str, builtins.list[Copy]] = {}
        for copy in export.read(exported):
            workflows.setdefault(copy.instance.entity_id, []).append(copy)
        parts = [Adoption(entity_id=entity_id, copies=tuple(copies)) for entity_id, copies in workflows.items()]
        old = {
            copy.instance.tree_id for part in parts for copy in part.copies if copy.log and copy.instance.deactivated
        }
        await keep_imported(self._store.values, old, self._access.clock)  # an archiver would take them away again
        arrivals: builtins.list[Arrival] = []
        for part, answer in zip(parts, await self._store.transfer.adopt(parts), strict=True):
            if isinstance(answer, Exists):
                raise _import_conflict(answer.instance, part.entity_id)
            arrivals += answer.arrivals
        return arrivals

    def _prepare(
        self, workflow: Any, args: tuple[object, ...], labels: Labels, delay: int | None = None
    ) -> tuple[Workflow[..., Any], events.WorkflowStarted]:
        """Check the arguments of a start; return the definition and the first entry of the new execution."""
        definition = workflow if isinstance(workflow, Workflow) else self._named(workflow)
        entity_id, queue = labels.get("id"), labels.get("queue")
        if entity_id is not None:
            check_text(entity_id, "id")
        if queue is not None:
            check_text(queue, "queue")
        where = f"arguments of workflow {definition.name!r}"
        encoded = check_size(self._access.max_payload, definition.encode(args), where)
        now = self._access.clock.now()
        run_id, execution_id, generated_id = new_ids(now)
        tags = labels.get("tags")
        started = events.WorkflowStarted(
            seq=1,
            at=now,
            name=definition.name,
            queue=queue or definition.queue or DEFAULT_QUEUE,
            entity_id=entity_id or generated_id,
            execution_id=execution_id,
            run_id=run_id,
            tree_id=run_id,
            matching=definition.matching,
            python=python(),
            input=encoded,
            tags={} if tags is None else check_tags(tags),
            begins_at=now + delay if delay else None,
            retry=definition.overrides.retry,
            timeout=definition.overrides.timeout,
        )
        return definition, started

    def _named(self, workflow: Any) -> Workflow[..., Any]:
        """Return the workflow of a name, registered here or not."""
        if isinstance(workflow, str):
            known = self._access.registry.workflows
            return known.find(workflow) if workflow in known else Workflow(workflow, None, None)
        raise DefinitionError(f"{workflow!r} is not a workflow; decorate it with @workflow, or pass its name")


def _check_is_workflow(answer: Created | Exists) -> None:
    """Refuse an id that belongs to a flow; what was sent along is ignored by it."""
    found = answer.instance
    if found.kind in (FLOW, CATALOG):
        raise AlreadyExists(
            f"id {found.entity_id!r} belongs to a {found.kind}, {found.name!r} ({found.status}); choose another id"
        )


def _milliseconds(delay: Duration) -> int:
    length = milliseconds(delay)
    if length < 0:
        raise ValueError(f"delay must be 0 or more, got {delay!r}")
    return length


def _termination(started: events.WorkflowStarted) -> events.WorkflowTerminated:
    """Return the event that terminates the execution which *started* replaces."""
    return events.WorkflowTerminated(
        at=started.at, reason=f"replaced by another start of this id, run {started.run_id}"
    )


def _import_conflict(found: Instance, entity_id: str) -> AlreadyExists:
    """Return the error for a workflow of an import that conflicts with an execution of this store."""
    if found.entity_id == entity_id and not found.status.terminal:
        return AlreadyExists(
            f"workflow id {entity_id!r} is in use by an open execution of {found.name!r} ({found.status}, "
            f"run {found.run_id}), and the import has another open execution of it; nothing of {entity_id!r} was "
            "imported: terminate one of them first"
        )
    return AlreadyExists(
        f"a promise of the import belongs to workflow {found.entity_id!r} (run {found.run_id}, {found.status}) in this "
        f"store; nothing of {entity_id!r} was imported: import the export unchanged, or purge that run first"
    )
