"""Client and worker in one process: what a program opens."""

import asyncio
import builtins
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, cast, overload

from resurgam.client.client import Client, IfExists
from resurgam.client.handle import Handle
from resurgam.core.clock import Clock
from resurgam.core.errors import StoreError
from resurgam.core.retry import Duration, milliseconds
from resurgam.core.state import Status
from resurgam.runtime import dev
from resurgam.runtime.context import Context
from resurgam.runtime.definition import WorkflowRef
from resurgam.runtime.registry import Registry, default_registry
from resurgam.runtime.system import SystemClock, new_id
from resurgam.store.open import open_store
from resurgam.store.protocol import Store
from resurgam.store.records import Arrival, Page, Query
from resurgam.worker.at_once import AtOnce
from resurgam.worker.loop import Worker, WorkerOptions
from resurgam.worker.processes import check_not_imported

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_NOT_OPEN = "the engine is not open; use it inside `async with Engine(...) as engine:`"


class Engine:
    """Opens a store, and serves its queues unless ``worker=False``.

    Leaving the ``async with`` drains: nothing more is claimed, what runs may finish within *grace*, the rest is
    released for others.
    """

    def __init__(  # noqa: PLR0913 -- each is an option of its own with a default, and only given by name
        self,
        url: str | Store = "memory://",
        *,
        registry: Registry | None = None,
        worker: bool = True,
        queues: Sequence[str] = ("default",),
        clock: Clock | None = None,
        name: str | None = None,
        lease: Duration = 10,
        grace: Duration = 10,
        max_activities: int = 1000,
        cache_size: int = 1000,
        tick_limit: Duration = 10,
    ) -> None:
        if not isinstance(url, str) and not hasattr(url, "claim"):
            raise TypeError(f"{url!r} is neither the URL of a store nor a store")
        if registry is not None and not isinstance(registry, Registry):
            raise TypeError(f"registry is {registry!r}; it is a Registry")
        self._url = url
        self._registry = default_registry if registry is None else registry
        self._clock = SystemClock() if clock is None else clock
        self._serves = worker
        self._options = WorkerOptions(
            # A start of its own each time: a parked run is offered once to each start of a worker.
            name=f"{name or f'{socket.gethostname()}-{os.getpid()}'}-{new_id(self._clock.now())[-6:]}",
            queues=_names(queues),
            lease=milliseconds(lease),
            grace=milliseconds(grace) / 1000,
            max_activities=max_activities,
            cache_size=cache_size,
            tick_limit=milliseconds(tick_limit) / 1000,
        )
        self._store: Store | None = None
        self._front: Store | None = None
        self._worker: Worker | None = None

    async def __aenter__(self) -> Self:
        if self._store is not None:
            raise StoreError("this engine is open already; make another one")
        check_not_imported()
        if isinstance(self._url, str):
            self._store = open_store(self._url, self._clock, name=self._options.name, lease=self._options.lease)
        else:
            self._store = self._url
        if self._serves:
            if dev.ON:
                from resurgam.lint.registered import warn  # noqa: PLC0415 -- only who develops pays for the import

                warn(self._registry.workflows)
            self._worker = Worker(self._store, self._registry, self._clock, self._options)
            self._worker.start()
            self._front = cast("Store", AtOnce(self._store, self._worker))
        else:
            self._front = self._store
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._worker is not None:
            await self._worker.stop()
        if self._store is not None and isinstance(self._url, str):
            await self._store.close()
        self._worker = self._store = self._front = None

    async def run(self) -> None:
        """Serve until the process is asked to stop (SIGTERM or SIGINT), then drain and return.

        Call it inside the ``async with``; leaving that afterwards finds everything at rest.
        """
        worker, asked = self._serving, asyncio.Event()
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, asked.set)
        try:
            await asked.wait()
        finally:
            for signal_number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(signal_number)
        await worker.stop()

    @property
    def _serving(self) -> Worker:
        if self._worker is None:
            raise StoreError("there is no worker to run; open the engine without worker=False")
        return self._worker

    @property
    def store(self) -> Store:
        """The open store."""
        if self._store is None:
            raise StoreError(_NOT_OPEN)
        return self._store

    @property
    def busy(self) -> int:
        """How many instances and activities this engine's worker has in hand."""
        return 0 if self._worker is None else self._worker.busy

    @property
    def progress(self) -> int:
        """A number that grows with every claim, and when what was claimed is done."""
        return 0 if self._worker is None else self._worker.progress

    @property
    def resting(self) -> bool:
        """Whether this engine's worker has nothing in hand and waits for work."""
        return self._worker is None or self._worker.resting

    @overload
    async def start(
        self,
        workflow: Callable[[Context, *Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        id: str | None = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        if_exists: IfExists = "error",
    ) -> Handle[R]: ...
    @overload
    async def start(
        self,
        workflow: WorkflowRef[R],
        /,
        *args: Any,
        id: str | None = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        if_exists: IfExists = "error",
    ) -> Handle[R]: ...
    @overload
    async def start(
        self,
        workflow: str,
        /,
        *args: Any,
        id: str | None = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        if_exists: IfExists = "error",
    ) -> Handle[Any]: ...
    async def start(  # type: ignore[misc]  # mypy does not see that *args: Any takes any *Ts
        self,
        workflow: Any,
        /,
        *args: Any,
        id: str | None = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        if_exists: IfExists = "error",
    ) -> Handle[Any]:
        """Begin a workflow and return its handle.

        *id* is your own name for it; while an execution of that id is open, another start is `AlreadyExists`, unless
        ``if_exists="attach"``, which returns the one there is, open or closed.
        """
        client = self._client()
        self._check_known(workflow, queue)
        return await client.start(workflow, args, id=id, queue=queue, tags=tags, if_exists=if_exists)

    @overload
    async def execute(
        self,
        workflow: Callable[[Context, *Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        id: str | None = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        if_exists: IfExists = "error",
    ) -> R: ...
    @overload
    async def execute(
        self,
        workflow: WorkflowRef[R],
        /,
        *args: Any,
        id: str | None = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        if_exists: IfExists = "error",
    ) -> R: ...
    @overload
    async def execute(
        self,
        workflow: str,
        /,
        *args: Any,
        id: str | None = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        if_exists: IfExists = "error",
    ) -> Any: ...
    async def execute(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, **options: Any
    ) -> Any:
        """Begin a workflow and wait for its result."""
        handle: Handle[Any] = await self.start(workflow, *args, **options)
        return await handle.result()

    def handle(self, entity_id: str, run_id: str | None = None) -> Handle[Any]:
        """Return a handle to a workflow by its id; with *run_id* it means that one run for ever."""
        return self._client().handle(entity_id, run_id)

    async def list(
        self,
        *,
        status: Status | str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        since: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of instances, newest first; its ``cursor`` leads to the next."""
        if not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit is {limit}; it is at least 1")
        if since is not None and since.tzinfo is None:
            raise ValueError(f"since={since.isoformat()}: no time zone; use an aware datetime")
        query = Query(
            status=None if status is None else Status(status),
            name=name,
            tags=dict(tags or {}),
            since=None if since is None else round(since.timestamp() * 1000),
            limit=limit,
            cursor=cursor,
        )
        return await self._client().list(query)

    async def export(self, entity_id: str, run_id: str | None = None) -> builtins.list[str]:
        """Return all that the store keeps of a workflow, every execution or those of one run, as lines of JSON.

        The workflow itself goes on here: close the engines that serve it before, or terminate it afterwards.
        """
        return await self._client().export(entity_id, run_id)

    async def import_(self, lines: str | Iterable[str]) -> builtins.list[Arrival]:
        """Take in what `export` gave, all of it or nothing; it goes on here exactly where it was.

        An execution that is here already is left alone, and its `Arrival` is not ``new``. An open one of an id that
        has another open one here is `AlreadyExists`; lines that are no export are a `SerializationError`.
        """
        return await self._client().import_(lines)

    def _client(self) -> Client:
        if self._front is None:
            raise StoreError(_NOT_OPEN)
        return Client(self._front, self._registry, self._clock)

    def _check_known(self, workflow: Any, queue: str | None) -> None:
        """Refuse a name that nobody here knows, if it is this very engine that would have to run it."""
        if isinstance(workflow, str) and self._serves and (queue or "default") in self._options.queues:
            self._registry.workflows.find(workflow)


def _names(queues: Sequence[str]) -> tuple[str, ...]:
    if isinstance(queues, str) or not queues or not all(isinstance(queue, str) and queue for queue in queues):
        raise ValueError(f"queues is {queues!r}; it is a list of names")
    return tuple(queues)
