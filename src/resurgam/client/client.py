"""Start, signal, cancel, list: what a program may ask of workflows without running any."""

import builtins
import platform
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Raw

from resurgam.client.handle import Handle
from resurgam.core import event as events
from resurgam.core.clock import Clock
from resurgam.core.codec import Codec, codec_for
from resurgam.core.errors import AlreadyExists, DefinitionError, NotFound
from resurgam.runtime.definition import Workflow
from resurgam.runtime.registry import Registry
from resurgam.runtime.system import new_id
from resurgam.store import lines
from resurgam.store.protocol import Store
from resurgam.store.records import Adoption, Arrival, Creation, Exists, Instance, Page, Query

IfExists = Literal["error", "attach"]
_ANY = codec_for(Any)


class Client:
    """Speaks to one store."""

    def __init__(self, store: Store, registry: Registry, clock: Clock) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock

    async def start(
        self,
        workflow: Any,
        args: tuple[object, ...],
        *,
        id: str | None,
        queue: str | None,
        tags: Mapping[str, str] | None,
        if_exists: IfExists,
    ) -> Handle[Any]:
        """Begin an execution and return its handle."""
        definition = self._definition(workflow)
        if id is not None and (not isinstance(id, str) or not id):
            raise ValueError(f"id is {id!r}; it is a string that is not empty")
        if queue is not None and (not isinstance(queue, str) or not queue):
            raise ValueError(f"queue is {queue!r}; it is a name")
        if if_exists not in ("error", "attach"):
            raise ValueError(f"if_exists is {if_exists!r}; it is 'error' or 'attach'")
        started = self._started(definition, _input(definition, args), id, queue, _tags(tags))
        [answer] = await self._store.create([Creation(started=started, attach=if_exists == "attach")])
        if isinstance(answer, Exists) and if_exists == "error":
            raise AlreadyExists(
                f"workflow id {id!r} is in use by an open execution of {answer.instance.name!r} "
                f"({answer.instance.status}); choose another id, or pass if_exists='attach' to wait for that one"
            )
        return self._handle(answer.instance.entity_id, answer.instance, definition.result)

    def handle(self, entity_id: str, run_id: str | None = None, result: Codec[Any] = _ANY) -> Handle[Any]:
        """Return a handle to what may or may not exist."""
        return Handle(self._store, self._clock, self._registry, entity_id, run_id, result=result)

    async def list(self, query: Query) -> Page:
        """Return a page of instances."""
        return await self._store.list(query)

    async def export(self, entity_id: str, run_id: str | None) -> builtins.list[str]:
        """Return everything that is kept of an entity's executions, or of one run's, as lines."""
        copies = await self._store.copies(entity_id, run_id)
        if not copies:
            raise NotFound(
                f"there is no workflow with id {entity_id!r}" + (f" and run {run_id!r}" if run_id is not None else "")
            )
        return lines.write(copies)

    async def import_(self, exported: str | Iterable[str]) -> builtins.list[Arrival]:
        """Take in what was exported, all of it or nothing."""
        [answer] = await self._store.adopt([Adoption(copies=lines.read(exported))])
        if isinstance(answer, Exists):
            found = answer.instance
            raise AlreadyExists(
                f"workflow id {found.entity_id!r} is in use by an open execution of {found.name!r} ({found.status}, "
                f"run {found.run_id}), and another open one was to come in; nothing was imported: end one of them first"
            )
        return list(answer.arrivals)

    def _handle(self, entity_id: str, instance: Instance, result: Codec[Any]) -> Handle[Any]:
        return Handle(self._store, self._clock, self._registry, entity_id, None, result=result, known=instance)

    def _started(
        self, definition: Workflow[..., Any], written: Raw, id: str | None, queue: str | None, tags: dict[str, str]
    ) -> events.WorkflowStarted:
        now = self._clock.now()
        run_id = new_id(now)
        return events.WorkflowStarted(
            seq=1,
            at=now,
            name=definition.name,
            queue=queue or definition.queue,
            entity_id=id or new_id(now),
            execution_id=new_id(now),
            run_id=run_id,
            tree_id=run_id,
            matching=definition.options.matching if definition.options else None,
            python=".".join(platform.python_version_tuple()[:2]),
            input=written,
            tags=tags,
        )

    def _definition(self, workflow: Any) -> Workflow[..., Any]:
        if isinstance(workflow, Workflow):
            return workflow
        if isinstance(workflow, str):
            known = workflow in self._registry.workflows
            return self._registry.workflows.find(workflow) if known else Workflow(workflow, None, "default")
        raise DefinitionError(f"{workflow!r} is not a workflow; decorate it with @workflow, or give its name")


def _input(definition: Workflow[..., Any], args: tuple[object, ...]) -> Raw:
    if definition.signature is not None:
        return definition.signature.encode(args)
    return _ANY.encode(args, f"workflow {definition.name!r}, arguments")


def _tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    if tags is not None and not isinstance(tags, Mapping):
        raise TypeError(f"tags is {tags!r}; it is a mapping of strings to strings")
    for key, value in (tags or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"tag {key!r}: {value!r}; tags are strings by strings")
    return dict(tags or {})
