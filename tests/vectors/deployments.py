"""Deployments of programs, one after the other, on one SQLite file."""

import asyncio
import logging
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from resurgam import Registry
from resurgam.core import event as events
from resurgam.core.errors import HistoryDiverged, NotFound
from resurgam.core.state import Status
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.execution.execution import Execution
from resurgam.runtime.loop.outside_task import run_outside_task
from resurgam.store.export import write
from resurgam.store.records import Copy, Instance
from resurgam.testing import Environment, ManualClock
from resurgam.testing.simulation import start_event
from vectors.history_notation import answered, recorded, told
from vectors.player import NAME, Player, player, workflow
from vectors.program_notation import Program

ID = "w-1"
ACTIVITIES = (*"abcdefgknpqrxyz", "k1", "k2", "k3", "e1", "e2", "e3", "e4", "e5", "foo", "bar", "baz", "bar_fast")


@dataclass
class Deployment:
    """What one deployment did to the run."""

    status: Status
    error: str | None
    log: list[events.Event]
    before: list[events.Event]
    result: Any = None

    @property
    def history(self) -> str:
        """The recorded commands, as text."""
        return told(self.log)

    @property
    def written(self) -> str:
        """The commands that this deployment wrote, as text."""
        return told(self.log[len(self.before) :])


@dataclass
class World:
    """A file, a clock, and how often each activity has returned; *held* are those that never do."""

    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    ran: Counter[str] = field(default_factory=Counter)
    held: set[str] = field(default_factory=set)
    begun: bool = False
    log: list[events.Event] = field(default_factory=list)

    def registry(self) -> Registry:
        """Return the activities; each counts when it returns."""
        registry = Registry()
        for name in ACTIVITIES:
            registry.activity(name=name)(self._activity(name))
        return registry

    def _activity(self, name: str) -> Any:
        async def act(argument: int = 0) -> str:
            if name in self.held:
                await asyncio.Event().wait()
            self.ran[name] += 1
            return f"{name}{argument}"

        return act

    @asynccontextmanager
    async def engine(self, played: Player, *, worker: bool = True) -> Any:
        """Open an engine on the file, with this program."""
        registry = self.registry()
        workflow(played, registry)
        url = f"sqlite:////{self.folder}/w.db?synchronous=off"
        options = {"patience": 0.01, "grace": 0.001, "worker": worker}
        async with Environment(store=url, registry=registry, clock=self.clock, **options) as env:
            yield env

    async def deploy(
        self,
        calls: Program,
        *,
        open_end: bool = True,
        signal: bool = False,
        advance: float = 0,
        **options: Any,
    ) -> Deployment:
        """Run a program where the run stands, until nothing more happens by itself."""
        before = self.log
        async with self.engine(player(calls, open_end=open_end, **options)) as env:
            await self._wake(env)
            handle = env.engine.handle(ID)
            if signal:
                await self._send(env, "go")
            await env.settle()
            if advance:
                await env.advance(advance)
            description = await handle.describe()
            self.log = await handle.history()
            result = await handle.result() if description.status == "completed" else None
        return Deployment(description.status, description.error, self.log, before, result)

    async def _wake(self, env: Environment) -> None:
        if self.begun:
            # No code listens for it: it only makes a worker load the run.
            await self._send(env, "look")
            return
        self.begun = True
        await env.start(NAME, id=ID)

    async def _send(self, env: Environment, name: str) -> None:
        with suppress(NotFound):  # it may have ended by then
            await env.engine.handle(ID).signal(name, "now")

    async def adopt(self, history: str) -> None:
        """Begin with a history that no program can have written."""
        started = start_event(workflow(player(())), ())
        started = replace(started, entity_id=ID)
        later = (replace(entry, at=started.at) for entry in answered(recorded(history)))
        log = (started, *later)
        instance = replace(Instance.of(started), last_seq=len(log))
        async with self.engine(player(()), worker=False) as env:
            await env.engine.import_(write([Copy(instance=instance, log=log)]))
        self.begun, self.log = True, list(log)


def diverges(played: Player, log: list[events.Event]) -> HistoryDiverged | None:
    """Return the divergence, with its remedy, that a worker would find."""
    return advanced(workflow(played), log)


def advanced(code: Workflow[..., Any], log: list[events.Event]) -> HistoryDiverged | None:
    execution = Execution(code, log)
    logger = logging.getLogger("resurgam.runtime")
    before, logger.disabled = logger.disabled, True
    try:
        execution.advance([], log[-1].at)
        verdict = execution.verdict
    finally:
        execution.close()
        logger.disabled = before
    return verdict if isinstance(verdict, HistoryDiverged) else None


async def found(played: Player, log: list[events.Event]) -> HistoryDiverged | None:
    """As `diverges`, from inside a running event loop."""
    return await run_outside_task(lambda: diverges(played, log))
