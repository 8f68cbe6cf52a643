"""Start, signal, settle, list: what a program may ask of workflows without running any."""

import builtins
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NotRequired, TypedDict, Unpack

from msgspec import Raw

from resurgam.client import promises, signal_schemas
from resurgam.client.access import ANY, Access, check_text, moment_after
from resurgam.client.answers import codec_of
from resurgam.client.handle import Handle, signal_received
from resurgam.client.subscription import Subscription
from resurgam.client.update import NotBegun, Position, Update, written_update
from resurgam.core import event as events
from resurgam.core.codec import Codec, check_size
from resurgam.core.errors import AlreadyExists, DefinitionError, NotFound
from resurgam.core.retry import Duration, milliseconds
from resurgam.runtime.definitions.definition import DEFAULT_QUEUE, Workflow
from resurgam.runtime.system import new_id, python
from resurgam.store import export
from resurgam.store.records import Adoption, Arrival, Copy, Created, Creation, EndedQuery, Exists, Instance, Page, Query
from resurgam.store.retention import Purge

IfExists = Literal["error", "attach", "replace"]


class Labels(TypedDict, total=False):
    """What a workflow that begins is given beside its arguments."""

    id: str | None
    queue: str | None
    tags: Mapping[str, str] | None


class StartOptions(TypedDict, total=False):
    """The options of a start."""

    id: str | None
    queue: str | None
    tags: Mapping[str, str] | None
    delay: Duration | None
    if_exists: IfExists


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
    """Speaks to one store."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._store = access.store

    async def start(self, workflow: Any, args: tuple[object, ...], **options: Unpack[StartOptions]) -> Handle[Any]:
        """Begin an execution and return its handle."""
        if_exists = options.get("if_exists", "error")
        if if_exists not in ("error", "attach", "replace"):
            raise ValueError(f"if_exists is {if_exists!r}; it is 'error', 'attach' or 'replace'")
        labels: Labels = {"id": options.get("id"), "queue": options.get("queue"), "tags": options.get("tags")}
        definition, started = self._prepare(workflow, args, labels, _milliseconds(options.get("delay")))
        creation = Creation(
            started=started,
            attach=if_exists == "attach",
            replace=_replaced(started) if if_exists == "replace" else None,
        )
        [answer] = await self._store.create([creation])
        if isinstance(answer, Exists) and if_exists == "error":
            raise AlreadyExists(
                f"workflow id {started.entity_id!r} is in use by an open execution of {answer.instance.name!r} "
                f"({answer.instance.status}); choose another id, or pass if_exists='attach' to wait for that one, "
                "'replace' to end it first"
            )
        return self._handle(answer.instance, definition.result)

    async def signal_with_start(
        self, workflow: Any, args: tuple[object, ...], signal: events.SignalReceived, **labels: Unpack[Labels]
    ) -> Handle[Any]:
        """Send a signal to the open execution of an id, or begin one that finds it; in one step."""
        check_text(labels.get("id"), "id")
        definition, started = self._prepare(workflow, args, labels)
        found = await self._store.get(started.entity_id)
        if found is not None:
            await signal_schemas.check(self._access, found, signal)
        [answer] = await self._store.create([Creation(started=started, inbox=(signal,))])
        return self._handle(answer.instance, definition.result)

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
        """Send an update to the open execution of an id, or begin one that finds it, in one step; return its result."""
        check_text(id, "id")
        if isinstance(with_args, str | bytes) or not isinstance(with_args, Sequence):
            raise TypeError(f"with_args must be a list or tuple of the update's arguments, got {with_args!r}")
        codec = codec_of(type, f"update {update!r}")
        written = written_update(self._access, update, with_args, update_id)
        until = moment_after(self._access.clock, timeout)
        labels: Labels = {"id": id, "queue": queue, "tags": tags}
        definition, started = self._prepare(workflow, args, labels)
        sent = Update(
            access=self._access,
            entity_id=started.entity_id,
            workflow=definition.name,
            name=update,
            id=update_id or new_id(started.at),
            written=written,
            pinned=False,
            codec=codec,
        )
        before = await self._store.get(started.entity_id) if update_id is not None else None
        position = await sent.find(before) if before is not None else None
        while position is None:
            [answer] = await self._store.create([Creation(started=started, inbox=(sent.event,))])
            sent = replace(sent, workflow=answer.instance.name)
            found = Position(answer.instance.execution_id, answer.instance.last_seq)
            try:
                return await sent.result(found, until)
            except NotBegun:
                if isinstance(answer, Created):
                    raise  # this very call began it, and the next one would end without a handler too
                # The run ended while the update was on its way to it: the next one is begun with it.
                _, started = self._prepare(workflow, args, labels)
        return await sent.result(position, until)

    def signal(self, name: str, value: object, id: str | None) -> events.SignalReceived:
        """Return a signal, checked and written."""
        return signal_received(self._access, name, value, id)

    def handle(self, entity_id: str, run_id: str | None, execution_id: str | None, workflow: Any) -> Handle[Any]:
        """Return a handle to what may or may not exist; with *workflow* it reads the result as that one's."""
        if workflow is None:
            return Handle(self._access, entity_id, run_id, execution_id=execution_id)
        meant = self._definition(workflow)
        return Handle(
            self._access, entity_id, run_id, execution_id=execution_id, workflow=meant.name, result=meant.result
        )

    async def resolve(self, promise_id: str, value: object) -> bool:
        """Give a promise its value; whether it was not settled before."""
        promises.check_promise(promise_id)
        return await promises.settle_by_id(self._access, promise_id, promises.resolved(self._access, promise_id, value))

    async def reject(self, promise_id: str, error: BaseException | str) -> bool:
        """Say that a promise gets no value; whether it was not settled before."""
        promises.check_promise(promise_id)
        return await promises.settle_by_id(self._access, promise_id, promises.rejected(self._access, promise_id, error))

    def subscribe(self, topic: str) -> Subscription:
        """Return what is published on a topic from now on, to be iterated over."""
        check_text(topic, "a topic")
        return Subscription(self._store, topic)

    async def list(self, query: Query) -> Page:
        """Return a page of instances."""
        return await self._store.list(query)

    async def purge(self, query: EndedQuery) -> int:
        """Remove ended executions that no other one needs; return how many."""
        return (await Purge(self._store, query).total()).removed

    async def export(self, entity_id: str, run_id: str | None) -> builtins.list[str]:
        """Return everything that is kept of an entity's executions, or of one run's, as lines."""
        copies = await self._store.copies(entity_id, run_id)
        if not copies:
            raise NotFound(
                f"there is no workflow with id {entity_id!r}" + (f" and run {run_id!r}" if run_id is not None else "")
            )
        return export.write(copies)

    async def import_(self, exported: str | Iterable[str]) -> builtins.list[Arrival]:
        """Take in what was exported, all of it or nothing."""
        copies = export.read(exported)
        [answer] = await self._store.adopt([Adoption(copies=copies)])
        if isinstance(answer, Exists):
            raise _in_the_way(answer.instance, copies)
        return list(answer.arrivals)

    def _handle(self, instance: Instance, result: Codec[Any]) -> Handle[Any]:
        return Handle(self._access, instance.entity_id, None, result=result, began=instance)

    def _prepare(
        self, workflow: Any, args: tuple[object, ...], labels: Labels, delay: int | None = None
    ) -> tuple[Workflow[..., Any], events.WorkflowStarted]:
        """Check everything that a start was given, and return the first entry of the execution that it asks for."""
        definition = self._definition(workflow)
        entity_id, queue = labels.get("id"), labels.get("queue")
        for what, given in (("id", entity_id), ("queue", queue)):
            if given is not None:
                check_text(given, what)
        where = f"arguments of workflow {definition.name!r}"
        written = check_size(self._access.max_payload, _input(definition, args), where)
        now = self._access.clock.now()
        run_id = new_id(now)
        started = events.WorkflowStarted(
            seq=1,
            at=now,
            name=definition.name,
            queue=queue or definition.queue or DEFAULT_QUEUE,
            entity_id=entity_id or new_id(now),
            execution_id=new_id(now),
            run_id=run_id,
            tree_id=run_id,
            matching=definition.matching,
            python=python(),
            input=written,
            tags=_tags(labels.get("tags")),
            begins_at=now + delay if delay else None,
            retry=definition.overrides.retry,
            timeout=definition.overrides.timeout,
        )
        return definition, started

    def _definition(self, workflow: Any) -> Workflow[..., Any]:
        if isinstance(workflow, Workflow):
            return workflow
        if isinstance(workflow, str):
            known = self._access.registry.workflows
            return known.find(workflow) if workflow in known else Workflow(workflow, None, None)
        raise DefinitionError(f"{workflow!r} is not a workflow; decorate it with @workflow, or give its name")


def _input(definition: Workflow[..., Any], args: tuple[object, ...]) -> Raw:
    if definition.signature is not None:
        return definition.signature.encode(args)
    return ANY.encode(args, f"workflow {definition.name!r}, arguments")


def _milliseconds(delay: Duration | None) -> int | None:
    if delay is None:
        return None
    length = milliseconds(delay)
    if length < 0:
        raise ValueError(f"delay is {delay!r}; it is 0 or more")
    return length


def _replaced(started: events.WorkflowStarted) -> events.WorkflowTerminated:
    return events.WorkflowTerminated(
        at=started.at, reason=f"replaced by another start of this id, run {started.run_id}"
    )


def _in_the_way(found: Instance, copies: Sequence[Copy]) -> AlreadyExists:
    """Return the error for an import that an execution of this store forbids."""
    if found.entity_id in {copy.instance.entity_id for copy in copies} and not found.status.terminal:
        return AlreadyExists(
            f"workflow id {found.entity_id!r} is in use by an open execution of {found.name!r} ({found.status}, "
            f"run {found.run_id}), and another open one was to come in; nothing was imported: end one of them first"
        )
    return AlreadyExists(
        f"a promise of the import belongs to workflow {found.entity_id!r} (run {found.run_id}, {found.status}) here; "
        "nothing was imported: give an export as it was written, or purge that run first"
    )


def _tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    if tags is not None and not isinstance(tags, Mapping):
        raise TypeError(f"tags is {tags!r}; it is a mapping of strings to strings")
    for key, value in (tags or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"tag {key!r}: {value!r}; tags are strings by strings")
    return dict(tags or {})
