"""The engine: a client and a worker in one process, on one store."""

import asyncio
import builtins
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, TypeVarTuple, Unpack, overload

from resurgam.archive.archiver import Archiver
from resurgam.archive.service import ArchiveService
from resurgam.client.access import Access, check_text
from resurgam.client.client import Client, FlowOptions, IfExists, SignalOptions, StartOptions, UpdateOptions
from resurgam.client.handle import Handle
from resurgam.client.listing import Kind, query_of
from resurgam.client.subscription import Subscription
from resurgam.core.clock import Clock
from resurgam.core.codec import MAX_PAYLOAD
from resurgam.core.errors import StoreError
from resurgam.core.lifecycle import WORKFLOW
from resurgam.core.retry import Duration, is_whole, milliseconds
from resurgam.core.state import Status
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.definition import STEP_MARK, Workflow, WorkflowRef, refuse_options
from resurgam.runtime.definitions.settings import Settings
from resurgam.runtime.loop import dev_mode
from resurgam.runtime.registry import Registry, default_registry
from resurgam.runtime.system import SystemClock, new_id
from resurgam.store.open import open_store, second_opening
from resurgam.store.protocol import Inspector, Store
from resurgam.store.records import Arrival, EndedQuery, LiveWorker, Page
from resurgam.store.retention_rules import Retain, archive_age, closed_status, rules_of
from resurgam.store.secret import secret_of
from resurgam.worker.options import WorkerOptions
from resurgam.worker.process_main import check_not_imported
from resurgam.worker.tasks import complete, sleep

if TYPE_CHECKING:
    from typing_extensions import TypeForm as Form

    from resurgam.client.deletion import Deletion
    from resurgam.client.health_checks import HealthChecks
    from resurgam.flows.catalog import Health
    from resurgam.flows.http.outbound import Outbound
    from resurgam.flows.model import Step
    from resurgam.flows.planner import Mode, Plan
    from resurgam.flows.steps import Goal
    from resurgam.worker.worker import Worker

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_NOT_OPEN = "the engine is not open; use it inside `async with Engine(...) as engine:`"


class Engine:
    """Open a store, and serve its queues unless ``worker=False``.

    Leaving the ``async with`` drains the worker: it claims nothing more, running work may finish within *grace*, and
    the rest is released for other workers. If the leaving task is cancelled meanwhile, the rest of the grace is skipped
    and the store is still closed. A value larger than *max_payload* bytes as JSON is refused where it is passed.

    With *retain* the worker removes runs that closed longer ago than that, as `purge` does, in small batches. A list of
    `Retain` rules says it by name and status; the most specific rule decides.
    *outbound* says which addresses the worker may call for HTTP steps, and how many at a time.

    *archive* is the URL or the path of a folder with archived histories, which are then read as if the store had them. With
    *archive_after* the worker moves complete runs there that closed longer ago than that.
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
        retain: Duration | Sequence[Retain] | None = None,
        outbound: "Outbound | None" = None,
        archive: str | Path | None = None,
        archive_after: Duration | None = None,
    ) -> None:
        if not isinstance(url, str) and not hasattr(url, "claim"):
            raise TypeError(f"url must be the URL of a store, or a store, got {url!r}")
        if registry is not None and not isinstance(registry, Registry):
            raise TypeError(f"registry must be a Registry, got {registry!r}")
        if retain is not None and not worker:
            raise ValueError("retain needs a worker; open the engine without worker=False, or call engine.purge()")
        if not is_whole(max_payload, 1):
            raise ValueError(f"max_payload must be a number of bytes, at least 1, got {max_payload!r}")
        if archive_after is not None and (archive is None or not worker):
            raise ValueError("archive_after needs archive= and a worker; `resurgam archive` archives once, without one")
        rules = () if retain is None else rules_of(retain)
        after = None if archive_after is None else archive_age(archive_after, rules)
        self._url = url
        self._registry = default_registry if registry is None else registry
        self._clock = SystemClock() if clock is None else clock
        self._has_worker = worker
        self._max_payload = max_payload
        self._options = WorkerOptions(
            # A new name for each start of a worker: a parked run is offered once to each name.
            name=f"{name or f'{socket.gethostname()}-{os.getpid()}'}-{new_id(self._clock.now())[-6:]}",
            queues=_names(queues),
            lease=milliseconds(lease),
            grace=milliseconds(grace) / 1000,
            max_activities=max_activities,
            cache_size=cache_size,
            tick_limit=milliseconds(tick_limit) / 1000,
            retain=rules,
            archive_after=after,
            outbound=None if outbound is None else _rules(outbound),
        )
        self._archives = ArchiveService(archive, after, self._clock, self._options.name)
        self._store: Store | None = None
        self._opened_client: Client | None = None
        self._worker: Worker | None = None
        self._pid = os.getpid()

    async def __aenter__(self) -> Self:
        if self._store is not None:
            raise StoreError("this engine is already open; create another one")
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
        if not self._has_worker:
            self._opened_client = self._client_of(self._archives.readable(self._store))
            return
        from resurgam.runtime.brain import CodeBrain  # noqa: PLC0415 -- only an engine with a worker pays for the imports
        from resurgam.worker.brains import Brains  # noqa: PLC0415 -- as above
        from resurgam.worker.eager import EagerStore  # noqa: PLC0415 -- as above
        from resurgam.worker.worker import Worker  # noqa: PLC0415 -- as above

        if dev_mode.ON:
            from resurgam.lint.registered import warn  # noqa: PLC0415 -- only development mode pays for the import

            warn(self._registry.workflows)
        known = self._registry.workflows
        settings = Settings(
            secret=await secret_of(self._store.values),
            max_payload=self._max_payload,
            queue_of=lambda name: known.find(name).queue if name in known else None,
        )
        self._worker = Worker(
            self._store,
            Brains({WORKFLOW: CodeBrain(self._registry, settings)}, self._store),
            self._registry,
            self._clock,
            self._options,
            max_payload=self._max_payload,
            reopen=self._second_opening(self._store),
        )
        client = self._client_of(EagerStore(self._store, self._worker, self._archives.inspector(self._store)))
        if any(hasattr(activity, STEP_MARK) for activity in self._registry.activities):
            # Before the worker starts: it must not run a flow by definitions that its functions no longer fit.
            await client.flows.define_functions()
        self._worker.start()
        self._opened_client = client
        self._archives.start(self._store, lambda seconds: sleep(self._clock, seconds))

    def _second_opening(self, store: Store) -> Callable[[], Store] | None:
        """Return how the watchdog opens the store for its own thread; None where that cannot be done."""
        if not isinstance(self._url, str):
            return None
        name = f"{self._options.name}-watchdog"
        return second_opening(self._url, store, self._clock, name=name, lease=self._options.lease)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pid == os.getpid():
            await self._close()

    async def _close(self) -> None:
        """Drain the worker and close the store; a cancellation skips the grace and is raised afterwards."""
        worker, store = self._worker, self._store

        async def close() -> None:
            failed: Exception | None = None
            try:
                await self._archives.stop()
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
            self._worker = self._store = self._opened_client = None

    async def run(self) -> None:
        """Serve until the process receives SIGTERM or SIGINT, then drain and return.

        Call it inside the ``async with``. A further SIGTERM has no effect while the worker drains, because service managers
        send it to a process and to its parent; a further SIGINT raises `KeyboardInterrupt`, which skips the grace.
        """
        worker, stop = self.worker, asyncio.Event()
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, stop.set)
        try:
            try:
                await stop.wait()
            finally:
                loop.remove_signal_handler(signal.SIGINT)
            await worker.stop()
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    @property
    def worker(self) -> "Worker":
        """The running worker; raise `StoreError` if this engine has none."""
        if self._worker is None:
            raise StoreError("this engine has no worker to run; open it without worker=False")
        return self._worker

    @property
    def store(self) -> Store:
        """The open store."""
        if self._store is None:
            raise StoreError(_NOT_OPEN)
        return self._store

    @property
    def readable(self) -> Store:
        """The store, with the histories of the archive; those of archived runs raise `NotFound` without ``archive=``."""
        return self._archives.readable(self.store)

    @property
    def inspector(self) -> Inspector:
        """The read side of `readable`."""
        return self._archives.inspector(self.store)

    def archiver(self, age: int) -> Archiver:
        """Return what archives runs that closed more than *age* milliseconds ago; raise `StoreError` without an archive."""
        return self._archives.archiver(self.store, age)

    @property
    def clock(self) -> Clock:
        """The clock of the engine."""
        return self._clock

    @property
    def busy(self) -> int:
        """How many instances and activities this engine's worker holds; an archiver at work counts too."""
        return self._archives.working + (0 if self._worker is None else self._worker.busy)

    @property
    def running(self) -> int:
        """How many activities this engine's worker runs."""
        return 0 if self._worker is None else self._worker.running

    @property
    def progress(self) -> int:
        """A counter of claims and of completed work."""
        return self._archives.progress + (0 if self._worker is None else self._worker.progress)

    @property
    def resting(self) -> bool:
        """Whether this engine's worker holds nothing and waits for work, and its archiver is not at work."""
        return not self._archives.working and (self._worker is None or self._worker.resting)

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
        """Start a workflow and return its handle.

        *id* is your own name for it. While an execution of that id is open, another start raises `AlreadyExists`,
        unless *if_exists* is ``"attach"``, which returns a handle of the existing one, open or closed, or
        ``"replace"``, which terminates an open one and starts this one in one step. With *delay* the workflow is
        ``scheduled`` until it has passed.
        """
        if unknown:
            refuse_options("engine.start", workflow, unknown)
        client = self._client()
        if isinstance(workflow, str):
            self._check_known(workflow, queue)
        return await client.start(workflow, args, {"id": id, "queue": queue, "tags": tags}, delay, if_exists)

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
        """Start a workflow and wait for its result."""
        if options:
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
        """Signal the open execution of *id*, or start one with the signal in its mailbox, in one atomic step."""
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
        """Update the open execution of *id*, or start one with the update, in one atomic step; return its result.

        The update handler is called with *with_args*. If an update of *update_id* was sent to the workflow before, it
        does not run again and nothing is started. Everything else is as for `Handle.update`.
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

        With *run_id* it is a handle of that one run, with *execution_id* of one attempt, which can only be read.
        *workflow* gives the handle its type: the result is decoded by the workflow's annotation, and the id of another
        workflow raises `NotFound`. Without it the result is decoded by the annotation of the registered workflow, if
        there is one.
        """
        return self._client().handle(entity_id, run_id, execution_id, workflow)

    async def start_flow(
        self,
        goals: "Sequence[Goal]",
        init: Mapping[str, object] | None = None,
        *,
        id: str | None = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        metadata: Mapping[str, object] | None = None,
        many: bool = False,
    ) -> Handle[dict[str, Any]]:
        """Start a flow that leads to *goals*, given the values of *init* by name, and return its handle.

        A goal is the id of a step, a function with ``@step``, or a definition. The flow runs the registered steps that lead
        from *init* to the goals; its result are their outputs by name. Raise `NotFound` for an unknown goal, and
        `DefinitionError` if values are missing. With the *id* of a flow that is there, open or closed, return its handle if
        it has the same goals and *init*; otherwise raise `AlreadyExists`. Steps get *metadata* that they ask for. With
        *many*, each value of *init* is a list of the values of that name, in order; an empty one gives none.
        """
        options: FlowOptions = {"id": id, "queue": queue, "tags": tags, "metadata": metadata, "many": many}
        return await self._client().flows.start(goals, init, options)

    async def plan(
        self,
        goals: "Sequence[Goal]",
        init: Mapping[str, object] | None = None,
        *,
        mode: "Mode" = "preview",
        many: bool = False,
    ) -> "Plan":
        """Return the plan of a flow without starting it: its steps, why each is there, and which values are missing.

        With *mode* ``"strict"`` only steps are planned that can run with these values, as in a flow that starts. *many* is
        as for `start_flow`.
        """
        return await self._client().flows.plan(goals, init, mode, many=many)

    async def register_step(self, step: "Step | Callable[..., Any]") -> bool:
        """Add a step to the catalog; return False if an equal one is there. Raise `AlreadyExists` for a different one.

        Functions with ``@step`` in the registry of this engine need not be registered: the engine does it.
        """
        return await self._client().flows.register(step)

    async def update_step(self, step: "Step | Callable[..., Any]") -> bool:
        """Replace the definition of a step; return False if it is the same. Raise `NotFound` for an unknown one.

        Flows that have started keep the definitions that they started with.
        """
        return await self._client().flows.update(step)

    async def remove_step(self, step_id: str) -> None:
        """Remove a step from the catalog; steps that need it stay. Raise `NotFound` for an unknown one."""
        await self._client().flows.remove(step_id)

    async def steps(self) -> "builtins.list[Step]":
        """Return the registered steps, in the order of their ids."""
        return [*(await self._client().flows.catalog()).steps.values()]

    def health_checks(self) -> "HealthChecks":
        """Return an async context manager: while it is entered, the services of steps are probed every 30 seconds.

        A step is probed at its ``health_check``; what changes is recorded. Several processes on one store share the work.
        """
        return self._client().health_checks(self._options.outbound)

    async def step_health(self, step_id: str) -> "Health":
        """Return the health of the service of a step, as it was last probed. Raise `NotFound` for an unknown step."""
        catalog = await self._client().flows.catalog()
        return catalog.health(catalog.profile(step_id).step.id)

    async def complete_work(self, flow_id: str, step_id: str, token: str, outputs: Mapping[str, object]) -> bool:
        """Answer an async step that was called with the webhook address of this *token*: its outputs by name.

        Return whether this answer was the first; only that one counts. Raise `NotFound` if nothing was called with it.
        """
        return await self._client().webhooks.complete(flow_id, step_id, token, outputs)

    async def fail_work(self, flow_id: str, step_id: str, token: str, reason: str) -> bool:
        """Answer an async step as `complete_work` does: it has failed for good."""
        return await self._client().webhooks.fail(flow_id, step_id, token, reason)

    async def resolve(self, promise_id: str, value: object = None) -> bool:
        """Resolve the promise of this id; return whether this settlement was the first. Only the first counts."""
        return await self._client().resolve(promise_id, value)

    async def reject(self, promise_id: str, error: BaseException | str) -> bool:
        """Reject the promise of this id with an error; return whether this settlement was the first."""
        return await self._client().reject(promise_id, error)

    def subscribe(self, topic: str) -> Subscription:
        """Return an async iterator over the messages published on *topic* from the moment it is entered."""
        return self._client().subscribe(topic)

    async def list(  # noqa: PLR0913 -- each is a filter of its own with a default, and only given by name
        self,
        *,
        status: Status | str | None = None,
        kind: Kind | None = None,
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
        """Return a page of executions, newest first; pass its ``cursor`` to get the next page.

        *kind* is ``"workflow"`` or ``"flow"``; by default both are listed. *parent* is the id of the workflow whose
        children are listed. *failure* is the type name of the exception that failed the run, as in ``"ValueError"``; a
        failed activity or child counts by its own cause. *since* (inclusive) and *until* (exclusive) bound the time of
        creation. With *newest_only* each id is listed once, with its newest execution.
        """
        query = query_of(
            status=status,
            kind=kind,
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

    async def workers(self) -> builtins.list[LiveWorker]:
        """Return the workers that serve the store, whichever process they run in, in the order in which they started."""
        return await self._client().workers()

    async def purge(self, *, before: datetime, status: Status | str | None = None, name: str | None = None) -> int:
        """Remove runs that closed before a moment, and return how many; each attempt of a run counts.

        *status* and *name* filter them. A run is kept while another one needs it: its parent is open and waits for it,
        or failed and may be retried, or it is one of the last before an open run that continues it.
        """
        if not isinstance(before, datetime):
            raise TypeError(f"before must be a datetime, got {before!r}")
        if before.tzinfo is None:
            raise ValueError(f"before must have a time zone, got {before.isoformat()}; use an aware datetime")
        if name is not None:
            check_text(name, "name")
        query = EndedQuery(before=round(before.timestamp() * 1000), status=closed_status(status), name=name)
        return await self._client().purge(query)

    async def delete(self, entity_id: str, *, reason: str = "", tree: bool = False) -> int:
        """Delete everything about an entity, open or closed, with *tree* its descendants too; return how many executions.

        All archives of the store are searched too; `StoreError` is raised if one is not there. What other histories say
        about it stays. A call that was killed is finished by another one. Raise `NotFound` for an unknown id.
        """
        client = self._client()
        async with self._archives.exclusive(self.store) as archives:
            return await client.delete(entity_id, reason, tree=bool(tree), archives=archives)

    async def deletions(self) -> "builtins.list[Deletion]":
        """Return the recorded deletions, in order; one without ``deleted_at`` was interrupted."""
        return await self._client().deletions()

    async def export(self, entity_id: str, run_id: str | None = None) -> builtins.list[str]:
        """Return all stored data of a workflow, every execution or those of one run, as JSON lines.

        The workflow itself goes on in this store: close the engines that serve it before, or terminate it afterwards.
        Without ``archive=`` only the rows of archived executions are returned, and warnings are logged.
        """
        return await self._client().export(entity_id, run_id, self._archives.with_histories)

    async def import_(self, lines: str | Iterable[str]) -> builtins.list[Arrival]:
        """Import the lines of `export`; their executions go on in this store exactly where they were.

        Each workflow is imported whole or not at all. An execution that this store already has is left unchanged, and
        its `Arrival` is not ``new``. Raise `AlreadyExists` for an open execution of an id that has another open one
        here, after the other workflows are imported; `SerializationError` for lines that are not an export, and then
        nothing is imported.
        """
        return await self._client().import_(lines)

    def _client(self) -> Client:
        if self._opened_client is None:
            raise StoreError(_NOT_OPEN)
        if self._pid != os.getpid():
            raise StoreError(
                f"this engine was opened by process {self._pid} and cannot be used in a fork of it; "
                "open one in each process, after the fork"
            )
        return self._opened_client

    def _client_of(self, store: Store) -> Client:
        return Client(Access(store, self._registry, self._clock, self._max_payload), self._options.name)

    def _check_known(self, workflow: Any, queue: str | None) -> None:
        """Refuse the name of an unregistered workflow if this engine serves its queue."""
        if isinstance(workflow, str) and self._has_worker and (queue or "default") in self._options.queues:
            self._registry.workflows.find(workflow)


def _rules(outbound: "Outbound") -> "Outbound":
    from resurgam.flows.http.outbound import Outbound  # noqa: PLC0415 -- only an engine with such rules pays for the import

    if not isinstance(outbound, Outbound):
        raise TypeError(f"outbound must be an Outbound, such as Outbound(allow=('shop.example',)), got {outbound!r}")
    return outbound


def _names(queues: Sequence[str]) -> tuple[str, ...]:
    if isinstance(queues, str) or not queues or not all(isinstance(queue, str) and queue for queue in queues):
        raise ValueError(f"queues must be a list of names, got {queues!r}")
    return tuple(queues)
