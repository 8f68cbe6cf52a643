"""Kill engines at any write to their store, and start others in their place.

A `World` has one clock, one set of data and one engine for each of its places. At the write that a `Death` names, before
it is applied or after, the engine dies: none of its calls to the store returns, its tasks are cancelled, its leases are
not released. Another engine takes its place, and a client of the dead engine repeats its calls. `oracle.py` checks what
must hold afterwards.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from resurgam import Engine, Registry
from resurgam.core import event as events
from resurgam.core.errors import NotFound, StoreError
from resurgam.core.flow_event import CATALOG
from resurgam.core.retry import milliseconds
from resurgam.runtime.definitions.info import activity_info
from resurgam.store.memory.store import MemoryStore
from resurgam.store.open import open_store
from resurgam.store.protocol import Store
from resurgam.store.records import Commit, Copy, Query
from resurgam.testing.clock import ManualClock
from support.submitting import submit_by_commit

T = TypeVar("T")

LEASE: Final = 1000
"""Milliseconds. All that happens in a scenario takes minutes, so that nothing depends on how long a lease runs on."""

_QUIET_TURNS: Final = 10
_MANY_TURNS: Final = 100
_CLAIMS: Final = frozenset({"claim", "claim_activities", "queries.claim"})
_WRITES: Final = frozenset(
    {
        "create",
        "deliver",
        "queries.submit",
        "queries.complete",
        "revive",
        "commit",
        "extend",
        "release",
        "complete_activities",
    }
)
_life: ContextVar["Life | None"] = ContextVar("life", default=None)


@dataclass(frozen=True, slots=True)
class Death:
    """The write at which an engine dies; *applied*: it is done, and only its answer is not heard."""

    write: int
    applied: bool

    def __str__(self) -> str:
        return f"{'after' if self.applied else 'before'} write {self.write}"


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that was done in the world, where no history can take it back."""

    name: str
    key: str
    attempt: int = 0


class Life:
    """One engine from its opening to its death; as a store it is what the engine sees of the data."""

    def __init__(self, data: "Memory | File", name: str, death: Death | None) -> None:
        self._data = data
        self._death = death
        self._store = data.open(name)
        self.writes: list[str] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.dead = False

    def submit(self, part: Commit, done: Callable[[Any], None]) -> None:
        """Commit in a task, as the engine would by itself: it dies there."""
        submit_by_commit(partial(self.call, "commit", self._store.commit), part, done)

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._store, name)
        return partial(self.call, name, member) if callable(member) else Part(self, name, member)

    async def call(self, name: str, verb: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        if self.dead or (name in _WRITES and self._is_fatal(name, applied=False)):
            await self._die()
        number = len(self.writes)
        answer = await verb(*args, **options)
        fatal = self._death == Death(number, applied=True) and name in _WRITES
        # A claim that found nothing has written nothing.
        fatal = fatal or (name in _CLAIMS and bool(answer) and self._is_fatal(name, applied=True))
        if name in _WRITES | _CLAIMS:
            self._data.written(self._store)
        if self.dead or fatal:
            await self._die()
        return answer

    def _is_fatal(self, name: str, *, applied: bool) -> bool:
        self.writes.append(name)
        return self._death == Death(len(self.writes), applied)

    async def _die(self) -> None:
        """Stop at once, with all that this engine has in hand; nothing of it takes another step by itself."""
        self.dead = True
        for task in self.tasks:
            task.cancel()
        await asyncio.get_running_loop().create_future()

    async def end(self, engine: Engine) -> None:
        """Clear away what a process would have taken with it."""
        self.dead = True
        worker = engine._worker
        while left := {task for task in self.tasks if not task.done()}:
            for task in left:
                task.cancel()
            await asyncio.sleep(0)
        assert worker is not None
        await worker._instances.evict_all()
        worker._watchdog.stop()
        await self._data.bury(self._store)


class Part:
    """What an engine sees of a part of the store: its queries, its inspector."""

    def __init__(self, life: Life, name: str, part: object) -> None:
        self._life = life
        self._name = name
        self._part = part

    def __getattr__(self, verb: str) -> Any:
        return partial(self._life.call, f"{self._name}.{verb}", getattr(self._part, verb))


class Clock(ManualClock):
    """Time that is the same for all. What an engine asked to be called for ends with it."""

    def call_at(self, when: int, callback: Callable[[], None]) -> Callable[[], None]:
        life, here = _life.get(), copy_context()

        def call() -> None:
            if life is None or not life.dead:
                here.run(callback)

        return super().call_at(when, call)


class Impersonal:
    """The clock of a store that outlives its engines."""

    def __init__(self, clock: ManualClock) -> None:
        self.now = clock.now
        self.call_at = partial(ManualClock.call_at, clock)


class Memory:
    """One store in memory, for all engines: leases of the dead run out."""

    def __init__(self, clock: ManualClock) -> None:
        self._store = MemoryStore(Impersonal(clock), lease=LEASE)

    def open(self, name: str) -> Store:
        return self._store

    def written(self, store: Store) -> None:
        """All engines share the store."""

    async def bury(self, store: Store) -> None:
        """Nothing is left behind."""


class File:
    """A file that every engine opens for itself: leases of a dead engine end when another finds its lock unheld."""

    def __init__(self, clock: ManualClock, path: Path) -> None:
        self._clock = clock
        self._path = path
        self._open: list[Any] = []

    def open(self, name: str) -> Store:
        url = f"sqlite:///{self._path}?synchronous=off"
        self._open.append(open_store(url, self._clock, name=name, lease=LEASE))
        return self._open[-1]

    def written(self, store: Store) -> None:
        """Tell other engines what they would find out in a hundredth of a second."""
        for other in self._open:
            if other is not store:
                other._watcher._look_at_all()

    async def bury(self, store: Any) -> None:
        """Close the file, and leave what a dead process leaves: an unheld lock."""
        self._open.remove(store)
        lock = store._owner._file._path
        await store.close()
        lock.parent.mkdir(exist_ok=True)
        lock.touch()


@dataclass
class Opened:
    """An engine at its place."""

    queues: tuple[str, ...]
    engine: Engine
    life: Life


@dataclass
class World:
    """Where a scenario happens. *deaths* come one after the other, all at the place *victim*."""

    clock: Clock
    data: "Memory | File"
    registry: Registry
    places: Sequence[tuple[str, ...]] = (("default",),)
    deaths: Sequence[Death] = ()
    victim: int = 0
    died: list[str] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    done: list[tuple[int, set[Effect]]] = field(default_factory=list)
    """After each death: how many effects there were, and which of them are on record."""
    answers: list[Any] = field(default_factory=list)
    """What those outside were told."""
    heard: list[Any] = field(default_factory=list)
    """What was published."""
    opened: list[Opened] = field(default_factory=list)
    lives: int = 0

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().set_task_factory(_noted)
        self.outside = self.data.open("outside")
        for place in range(len(self.places)):
            self.opened.append(await self._open(place))
        _world.append(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        _world.remove(self)
        for opened in self.opened:
            await opened.life.end(opened.engine)
        await self.data.bury(self.outside)
        asyncio.get_running_loop().set_task_factory(None)

    # Life and death.

    async def _open(self, place: int) -> Opened:
        self.lives += 1
        name = f"life-{self.lives}"
        due = self.deaths[len(self.died)] if place == self.victim and len(self.died) < len(self.deaths) else None
        life = Life(self.data, name, due)
        queues = self.places[place]
        engine = Engine(life, registry=self.registry.copy(), clock=self.clock, queues=queues, lease=LEASE / 1000)  # type: ignore[arg-type]
        token = _life.set(life)
        try:
            await engine.__aenter__()
        finally:
            _life.reset(token)
        return Opened(queues, engine, life)

    async def _see_to_the_dead(self) -> bool:
        """Let another engine take the place of one that has died, and wait until what that held is taken up again."""
        for place, opened in enumerate(self.opened):
            if opened.life.dead:
                verb = opened.life.writes[-1]
                await opened.life.end(opened.engine)
                self.died.append(f"{self.deaths[len(self.died)]} ({verb})")
                self.done.append((len(self.effects), await self._on_record()))
                self.opened[place] = await self._open(place)
                await self.advance(2 * LEASE / 1000)
                return True
        return False

    async def _on_record(self) -> set[Effect]:
        """Return the effects that need never be had again: their outcome is in a log, or on its way there."""
        recorded = set()
        for copy in await self.copies():
            commands = {entry.seq: entry for entry in copy.log if isinstance(entry, events.Command)}
            for entry in (*copy.log, *copy.inbox):
                command = commands.get(entry.ref or 0)
                if isinstance(entry, events.OperationCompleted) and command is not None:
                    recorded.add(Effect(command.name or "", copy.instance.execution_id))
                if isinstance(command, events.ActivityScheduled) and hasattr(entry, "attempt"):
                    key = "/".join(
                        [copy.instance.run_id, *(".".join(map(str, part)) for part in command.location.coordinates)]
                    )
                    recorded.add(Effect(command.name or "", key, entry.attempt))
        return recorded

    # Time.

    async def settle(self) -> None:
        """Wait until no engine has anything to do before time passes."""
        quiet = 0
        while quiet < _QUIET_TURNS:
            await asyncio.sleep(0)
            at_rest = all(opened.engine.resting for opened in self.opened)
            quiet = quiet + 1 if at_rest else 0
            if await self._see_to_the_dead():
                quiet = 0
        await self._listen()

    async def advance(self, seconds: float) -> None:
        """Let time pass, stopping at every moment at which something is due."""
        target = self.clock.now() + milliseconds(seconds)
        await self.settle()
        while (due := self.clock.next_due()) is not None and due <= target:
            self.clock.move_to(due)
            await self.settle()
        self.clock.move_to(target)
        await self.settle()

    async def finish(self, limit: float = 86400) -> None:
        """Let time pass until every execution has ended and its history is complete."""
        await self._until_ended(lambda _: True, limit)

    async def finish_one(self, id: str, limit: float = 86400) -> None:
        """Let time pass until the executions of one workflow have ended."""
        await self._until_ended(lambda one: one.entity_id == id, limit)

    async def _until_ended(self, meant: Callable[[Any], bool], limit: float) -> None:
        end = self.clock.now() + milliseconds(limit)
        await self.settle()
        while left := [
            one for one in await self.instances() if meant(one) and not one.deactivated and one.kind != CATALOG
        ]:
            due = self.clock.next_due()
            if due is None or due > end:
                raise AssertionError(f"nothing is due, and open are {[(one.entity_id, one.status) for one in left]}")
            self.clock.move_to(due)
            await self.settle()

    async def _listen(self) -> None:
        news = await self.outside.inspector.messages("news", self._last)
        self._last = news.cursor
        self.heard.extend(bytes(value) for value in news.values)

    _last = ""
    _spoken = -1

    # What is known of it.

    async def instances(self) -> Sequence[Any]:
        page = await self.outside.inspector.list(Query(limit=1000))
        return sorted(page.instances, key=lambda one: (one.created_at, one.generation, one.attempt, one.execution_id))

    async def copies(self) -> list[Copy]:
        entities = dict.fromkeys(one.entity_id for one in await self.instances())
        return [copy for entity_id in entities for copy in await self.outside.transfer.copies(entity_id)]

    # What is said from outside.

    async def act(self, call: Callable[[Engine], Awaitable[T]], *, again: Any = ()) -> T | None:
        """Say something to the engine, and again to the next one if it dies of it; *again*: what that may raise then."""
        for times in range(len(self.deaths) + 1):
            # Each time to another, so that what one has in its cache is old when it is spoken to again.
            self._spoken += 1
            opened, deaths = self.opened[self._spoken % len(self.opened)], len(self.died)
            token = _life.set(opened.life)
            asked = asyncio.ensure_future(call(opened.engine))
            _life.reset(token)
            await self.settle()
            while not await self._answered(asked):
                due = self.clock.next_due()
                assert due is not None, "no answer, and nothing is due"
                self.clock.move_to(due)
                await self.settle()
            if len(self.died) > deaths and asked.cancelled():
                continue
            try:
                return await asked
            except again:
                if not times:
                    raise
                return None
        raise AssertionError("it died more often than it was to")

    async def _answered(self, asked: "asyncio.Future[Any]") -> bool:
        """Whether there is an answer without time passing: who speaks may have many words to say."""
        for _ in range(_MANY_TURNS):
            if asked.done():
                break
            await asyncio.sleep(0)
        await self.settle()
        return asked.done()

    async def start(self, workflow: Any, *args: Any, id: str, **options: Any) -> None:
        await self.act(lambda engine: engine.start(workflow, *args, id=id, if_exists="attach", **options))

    async def signal(self, id: str, name: str, value: Any, key: str | None = None) -> None:
        key = key or f"{name}-{value}"
        await self.act(lambda engine: engine.handle(id).signal(name, value, id=key), again=NotFound)

    async def update(self, id: str, name: str, *args: Any, key: str) -> None:
        """Send an update, twice: the second time under the same id, to be told the same."""
        for _ in range(2):
            self.answers.append(await self.act(lambda engine: engine.handle(id).update(name, *args, id=key)))

    async def query(self, id: str, name: str, *args: Any) -> None:
        self.answers.append(await self.act(lambda engine: engine.handle(id).query(name, *args)))

    async def tell(self, id: str, verb: str, *args: Any, **options: Any) -> None:
        """Call a verb of a handle; if it is repeated, that it was done already is no error."""
        call = lambda engine: getattr(engine.handle(id), verb)(*args, **options)  # noqa: E731 -- read in one place
        await self.act(call, again=(NotFound, StoreError))

    async def cancel(self, id: str) -> None:
        """Ask a workflow to stop, once: to ask again would call off its clean-up too."""

        await self.act(lambda engine: self.cancel_by(engine, id))

    async def cancel_by(self, engine: Engine, id: str) -> None:
        """Do so, after a look at whether it was done."""
        told = [entry for copy in await self.outside.transfer.copies(id) for entry in (*copy.log, *copy.inbox)]
        if not any(isinstance(entry, events.CancelRequested) for entry in told):
            await engine.handle(id).cancel()


_world: list[World] = []


def _noted(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    """Make a task, and note whose it is."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    life = _life.get()
    if life is not None:
        life.tasks.add(task)
        task.add_done_callback(life.tasks.discard)
    return task


def did() -> None:
    """Note that an activity was begun."""
    info = activity_info()
    _world[-1].effects.append(Effect(info.name, info.idempotency_key, info.attempt))


def operated(name: str, execution_id: str) -> None:
    """Note that an operation was begun."""
    _world[-1].effects.append(Effect(name, execution_id))


@contextlib.asynccontextmanager
async def in_memory(**options: Any) -> AsyncIterator[World]:
    clock = Clock()
    async with World(clock, Memory(clock), **options) as world:
        yield world


@contextlib.asynccontextmanager
async def in_file(path: Path, **options: Any) -> AsyncIterator[World]:
    clock = Clock()
    async with World(clock, File(clock, path), **options) as world:
        yield world
