"""Client and worker in one process: what a program opens."""

import asyncio
import builtins
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, TypeVarTuple, Unpack, cast, overload

from resurgam.client.access import Access, check_text
from resurgam.client.client import Client, IfExists, SignalOptions, StartOptions, UpdateOptions
from resurgam.client.handle import Handle
from resurgam.client.listing import query_of
from resurgam.client.subscription import Subscription
from resurgam.core.clock import Clock
from resurgam.core.codec import MAX_PAYLOAD
from resurgam.core.errors import StoreError
from resurgam.core.retry import Duration, is_whole, milliseconds
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.definition import Workflow, WorkflowRef, refuse_options
from resurgam.runtime.definitions.registry import Registry, default_registry
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.loop import dev_mode
from resurgam.runtime.system import SystemClock, new_id
from resurgam.store.open import open_store
from resurgam.store.protocol import Store
from resurgam.store.records import Arrival, EndedQuery, Page
from resurgam.worker.eager import EagerStore
from resurgam.worker.processes import check_not_imported
from resurgam.worker.tasks import complete
from resurgam.worker.worker import Worker, WorkerOptions

if TYPE_CHECKING:
    from typing_extensions import TypeForm as Form

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_NOT_OPEN = "the engine is not open; use it inside `async with Engine(...) as engine:`"


class Engine:
    """Opens a store, and serves its queues unless ``worker=False``.

    Leaving the ``async with`` drains: nothing more is claimed, running work may finish within *grace*, the rest is
    released for other workers. If the task that leaves it is cancelled meanwhile, the rest of the grace is skipped; the
    store is closed all the same. A value of more than *max_payload* bytes, as JSON, is refused where it is passed.

    With *retain* the worker removes runs that ended longer ago than that, as `purge` does, in small batches.
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
        max_payload: int = MAX_PAYLOAD,
        retain: Duration | None = None,
    ) -> None:
        if not isinstance(url, str) and not hasattr(url, "claim"):
            raise TypeError(f"{url!r} is neither the URL of a store nor a store")
        if registry is not None and not isinstance(registry, Registry):
            raise TypeError(f"registry is {registry!r}; it is a Registry")
        if retain is not None and not worker:
            raise ValueError("retain is done by a worker; open the engine without worker=False, or call engine.purge()")
        if not is_whole(max_payload, 1):
            raise ValueError(f"max_payload is {max_payload!r}; it is a number of bytes, at least 1")
        self._url = url
        self._registry = default_registry if registry is None else registry
        self._clock = SystemClock() if clock is None else clock
        self._serves = worker
        self._max_payload = max_payload
        self._options = WorkerOptions(
            # A start of its own each time: a parked run is offered once to each start of a worker.
            name=f"{name or f'{socket.gethostname()}-{os.getpid()}'}-{new_id(self._clock.now())[-6:]}",
            queues=_names(queues),
            lease=milliseconds(lease),
            grace=milliseconds(grace) / 1000,
            max_activities=max_activities,
            cache_size=cache_size,
            tick_limit=milliseconds(tick_limit) / 1000,
            retain=None if retain is None else milliseconds(retain),
        )
        self._store: Store | None = None
        self._front: Store | None = None
        self._worker: Worker | None = None
        self._pid = os.getpid()

    async def __aenter__(self) -> Self:
        if self._store is not None:
            raise StoreError("this engine is open already; make another one")
        check_not_imported()
        self._pid = os.getpid()
        if isinstance(self._url, str):
            self._store = open_store(self._url, self._clock, name=self._options.name, lease=self._options.lease)
        else:
            self._store = self._url
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def _open(self) -> None:
        assert self._store is not None
        if not self._serves:
            self._front = self._store
            return
        if dev_mode.ON:
            from resurgam.lint.registered import warn  # noqa: PLC0415 -- only who develops pays for the import

            warn(self._registry.workflows)
        known = self._registry.workflows
        settings = Settings(
            secret=await self._store.secret(),
            max_payload=self._max_payload,
            queue_of=lambda name: known.find(name).queue if name in known else None,
        )
        self._worker = Worker(self._store, self._registry, self._clock, self._options, settings)
        self._worker.start()
        self._front = cast("Store", EagerStore(self._store, self._worker))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pid == os.getpid():
            await self._close()

    async def _close(self) -> None:
        """Drain and close, whatever is cancelled meanwhile: a cancellation skips the grace and is raised afterwards."""
        worker, store = self._worker, self._store

        async def close() -> None:
            failed: Exception | None = None
            try:
                if worker is not None:
                    await worker.stop()
            except Exception as error:  # noqa: BLE001 -- raised below, once the store is closed
                failed = error
            if store is not None and isinstance(self._url, str):
                await store.close()
            if failed is not None:
                raise failed

        try:
            await complete(close, worker.skip_grace if worker is not None else lambda: None)
        finally:
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
        delay: Duration | None = None,
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
        delay: Duration | None = None,
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
        delay: Duration | None = None,
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
        delay: Duration | None = None,
        if_exists: IfExists = "error",
        **unknown: Any,
    ) -> Handle[Any]:
        """Begin a workflow and return its handle.

        *id* is your own name for it; while an execution of that id is open, another start is `AlreadyExists`, unless
        ``if_exists="attach"``, which returns the one there is, open or closed, or ``"replace"``, which ends an open one
        and begins this one in one step. After *delay* its code begins; until then it is ``scheduled``.
        """
        refuse_options("engine.start", workflow, unknown)
        client = self._client()
        self._check_known(workflow, queue)
        return await client.start(workflow, args, id=id, queue=queue, tags=tags, delay=delay, if_exists=if_exists)

    @overload
    async def execute(
        self, workflow: Callable[[Context, *Ts], Coroutine[Any, Any, R]], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> R: ...
    @overload
    async def execute(self, workflow: WorkflowRef[R], /, *args: Any, **options: Unpack[StartOptions]) -> R: ...
    @overload
    async def execute(self, workflow: str, /, *args: Any, **options: Unpack[StartOptions]) -> Any: ...
    async def execute(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, **options: Unpack[StartOptions]
    ) -> Any:
        """Begin a workflow and wait for its result."""
        refuse_options("engine.execute", workflow, options.keys() - StartOptions.__annotations__.keys())
        handle: Handle[Any] = await self.start(workflow, *args, **options)
        return await handle.result()

    @overload
    async def signal_with_start(
        self,
        workflow: Callable[[Context, *Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[SignalOptions],
    ) -> Handle[R]: ...
    @overload
    async def signal_with_start(
        self, workflow: WorkflowRef[R], /, *args: Any, **options: Unpack[SignalOptions]
    ) -> Handle[R]: ...
    @overload
    async def signal_with_start(
        self, workflow: str, /, *args: Any, **options: Unpack[SignalOptions]
    ) -> Handle[Any]: ...
    async def signal_with_start(  # type: ignore[misc]  # as above
        self,
        workflow: Any,
        /,
        *args: Any,
        id: str,
        signal: str,
        value: object = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        signal_id: str | None = None,
        **unknown: Any,
    ) -> Handle[Any]:
        """Send a signal to the open execution of *id*, or begin one that finds it in its mailbox; in one atomic step."""
        refuse_options("engine.signal_with_start", workflow, unknown)
        client = self._client()
        self._check_known(workflow, queue)
        sent = client.signal(signal, value, signal_id)
        return await client.signal_with_start(workflow, args, sent, id=id, queue=queue, tags=tags)

    @overload
    async def update_with_start(
        self,
        workflow: Callable[[Context, *Ts], Coroutine[Any, Any, Any]],
        /,
        *args: *Ts,
        type: "Form[T]",
        **options: Unpack[UpdateOptions],
    ) -> T: ...
    @overload
    async def update_with_start(
        self,
        workflow: Callable[[Context, *Ts], Coroutine[Any, Any, Any]],
        /,
        *args: *Ts,
        type: None = None,
        **options: Unpack[UpdateOptions],
    ) -> Any: ...
    @overload
    async def update_with_start(
        self, workflow: WorkflowRef[Any] | str, /, *args: Any, type: "Form[T]", **options: Unpack[UpdateOptions]
    ) -> T: ...
    @overload
    async def update_with_start(
        self, workflow: WorkflowRef[Any] | str, /, *args: Any, type: None = None, **options: Unpack[UpdateOptions]
    ) -> Any: ...
    async def update_with_start(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, type: Any = None, **options: Unpack[UpdateOptions]
    ) -> Any:
        """Send an update to the open execution of *id*, or begin one that finds it, in one atomic step; return its result.

        The update is called with *with_args*. With an *update_id* it is not run again, and nothing is begun, if an update of
        this id was sent to the workflow before. Everything else is as for `Handle.update`.
        """
        refuse_options("engine.update_with_start", workflow, options.keys() - UpdateOptions.__annotations__.keys())
        self._check_known(workflow, options.get("queue"))
        return await self._client().update_with_start(workflow, args, type, **options)

    @overload
    def handle(
        self,
        entity_id: str,
        run_id: str | None = None,
        *,
        execution_id: str | None = None,
        workflow: Workflow[..., R],
    ) -> Handle[R]: ...
    @overload
    def handle(
        self,
        entity_id: str,
        run_id: str | None = None,
        *,
        execution_id: str | None = None,
        workflow: str | None = None,
    ) -> Handle[Any]: ...
    def handle(
        self,
        entity_id: str,
        run_id: str | None = None,
        *,
        execution_id: str | None = None,
        workflow: Any = None,
    ) -> Handle[Any]:
        """Return a handle to a workflow by its id.

        With *run_id* it means that one run for ever, with *execution_id* one attempt, which can be read but not acted on.
        *workflow* gives the handle its type: the result is read as the workflow's annotation says, and the id of another
        workflow is `NotFound`. Without it the result is read by what is registered here, if the workflow is.
        """
        return self._client().handle(entity_id, run_id, execution_id, workflow)

    async def resolve(self, promise_id: str, value: object = None) -> bool:
        """Give the promise of this id its value; whether it was not settled before. The first settlement counts."""
        return await self._client().resolve(promise_id, value)

    async def reject(self, promise_id: str, error: BaseException | str) -> bool:
        """Say that the promise of this id gets no value, and why; whether it was not settled before."""
        return await self._client().reject(promise_id, error)

    def subscribe(self, topic: str) -> Subscription:
        """Return an async iterator of what is published on *topic* from the moment it is entered."""
        return self._client().subscribe(topic)

    async def list(  # noqa: PLR0913 -- each is a filter of its own with a default, and only given by name
        self,
        *,
        status: Status | str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        parent: str | None = None,
        failure: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        newest_only: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of executions, newest first; its ``cursor`` leads to the next page.

        *parent* is the id of the workflow whose children are listed. *failure* is the type name of the exception that a
        run failed by, as in ``"ValueError"``; a failed activity or child counts by its own cause. Executions were created
        at *since* or later and before *until*. With *newest_only* each id is listed once, with its newest execution.
        """
        query = query_of(
            status=status,
            name=name,
            tags=tags,
            parent=parent,
            failure=failure,
            since=since,
            until=until,
            newest_only=newest_only,
            limit=limit,
            cursor=cursor,
        )
        return await self._client().list(query)

    async def purge(self, *, before: datetime, status: Status | str | None = None, name: str | None = None) -> int:
        """Remove runs that ended before a moment, and return how many; each attempt of a run counts.

        *status* and *name* choose among them. A run is kept while an open one needs it: its parent waits for it, or it is
        one of the last before an open run that continues it.
        """
        if not isinstance(before, datetime):
            raise TypeError(f"before must be a datetime, got {before!r}")
        if before.tzinfo is None:
            raise ValueError(f"before must have a time zone, got {before.isoformat()}; use an aware datetime")
        if name is not None:
            check_text(name, "name")
        ends = [one for one in Status if one.terminal]
        if status is not None and status not in ends:
            raise ValueError(f"status must be that of an ended run ({', '.join(ends)}), got {status!r}")
        query = EndedQuery(
            before=round(before.timestamp() * 1000), status=None if status is None else Status(status), name=name
        )
        return await self._client().purge(query)

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
        if self._pid != os.getpid():
            raise StoreError(
                f"this engine was opened by process {self._pid} and cannot be used in a fork of it; "
                "open one in each process, after the fork"
            )
        return Client(Access(self._front, self._registry, self._clock, self._max_payload))

    def _check_known(self, workflow: Any, queue: str | None) -> None:
        """Refuse a name that nobody here knows, if it is this very engine that would have to run it."""
        if isinstance(workflow, str) and self._serves and (queue or "default") in self._options.queues:
            self._registry.workflows.find(workflow)


def _names(queues: Sequence[str]) -> tuple[str, ...]:
    if isinstance(queues, str) or not queues or not all(isinstance(queue, str) and queue for queue in queues):
        raise ValueError(f"queues is {queues!r}; it is a list of names")
    return tuple(queues)
