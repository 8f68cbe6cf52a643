"""Archives in memory, code that is archived, archivers that may die at any call, and where each history is readable."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from resurgam.archive import document
from resurgam.archive.archive import OWNER, Archive
from resurgam.archive.archiver import Archiver, Progress
from resurgam.archive.folder import ArchiveBusy
from resurgam.core import event as events
from resurgam.core.retry import RetryPolicy
from resurgam.engine import Engine
from resurgam.flows.steps import StepDecorator
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry
from resurgam.store import records as r
from resurgam.store.protocol import Store
from resurgam.testing import ManualClock
from resurgam.testing.environment import Environment
from support.moves import Death, Died, Dying


class MemoryFiles:
    """The files of an archive, in memory; a *death* counts what is done to them.

    *durable* is what a power cut leaves of the content. *read_whole* names the files of which more than the first bytes
    were read.
    """

    url = "memory:///archive/"

    def __init__(self, death: Death | None = None) -> None:
        self.content: dict[str, bytes] = {}
        self.durable: dict[str, bytes] = {}
        self.read_whole: list[str] = []
        self.owner: list[bytes] = []
        self._locked: list[bool] = []
        self._death = death

    def opened_by(self, death: Death | None) -> "MemoryFiles":
        """Return the same files, as another process has them open."""
        other = MemoryFiles(death)
        other.url = self.url
        other.content, other.durable = self.content, self.durable
        other.read_whole, other._locked, other.owner = self.read_whole, self._locked, self.owner
        return other

    def write(self, name: str, content: Iterable[bytes]) -> None:
        whole = b"".join(content)
        if name == OWNER:
            self.owner[:] = [whole]
            return
        self._check("write")
        self.content[name] = whole
        self._check(None)  # between the rename and the sync of the folder
        self.durable[name] = whole

    def sync(self, name: str) -> None:
        self._check("sync")
        self.durable[name] = self.content[name]
        self._check(None)

    def read(self, name: str, first: int | None = None) -> bytes | None:
        if name == OWNER:
            return self.owner[0] if self.owner else None
        self._check("read")
        if first is None:
            self.read_whole.append(name)
        found = self.content.get(name)
        return None if found is None else found[:first]

    def delete(self, name: str) -> None:
        self._check("delete")
        self.content.pop(name, None)
        self._check(None)
        self.durable.pop(name, None)

    def names(self) -> Iterator[str]:
        return iter(sorted(self.content))

    def stamp(self, name: str) -> object:
        return self.content.get(name)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        if self._locked:
            raise ArchiveBusy("another process is writing files")
        self._locked.append(True)
        try:
            yield
        finally:
            self._locked.clear()

    def _check(self, name: str | None) -> None:
        if self._death is not None:
            self._death.check(name)


def archiver(
    store: Store, files: MemoryFiles, clock: ManualClock, *, age: int = 1000, death: Death | None = None
) -> Archiver:
    """Return an archiver, of a process that may die."""
    calls: Any = store if death is None else Dying(store, death)
    return Archiver(calls, Archive(files.opened_by(death)), clock, age=age, name="keeper")


async def archive(store: Store, files: MemoryFiles, clock: ManualClock, **options: Any) -> Progress:
    """Run one pass; return what it did."""
    done = Progress()
    async for now in archiver(store, files, clock, **options).units():
        done = now
    return done


async def all_copies(store: Store) -> dict[str, r.Copy]:
    """Return every execution of a store, by its id, as the store has it."""
    found: dict[str, r.Copy] = {}
    page = await store.inspector.list(r.Query(limit=1000))
    for entity_id in {instance.entity_id for instance in page.instances}:
        found |= {copy.instance.execution_id: copy for copy in await store.transfer.copies(entity_id)}
    return found


async def readable(store: Store, files: MemoryFiles) -> dict[str, tuple[str, list[events.Event]]]:
    """Return where each history is readable, in the store or on the disk of the archive, and its entries.

    They are without the reservation, of which each log has one at most, and each archived one exactly one.
    """
    found: dict[str, tuple[str, list[events.Event]]] = {}
    on_disk = MemoryFiles()
    on_disk.content = files.durable
    archive = Archive(on_disk)
    for execution_id, copy in (await all_copies(store)).items():
        assert bool(copy.log) == (copy.instance.archived is None), "a row has its log, or says where that is"
        live = copy.instance.archived is None
        whole = copy if live else await archive.copy(copy.instance)
        log = [entry for entry in whole.log if not isinstance(entry, events.Archiving)]
        assert len(whole.log) - len(log) in ((0, 1) if live else (1,)), "a log is reserved once"
        found[execution_id] = "store" if live else "archive", log
    return found


def shop() -> Registry:
    """Return code that leaves trees, flows, generations, failures and forgotten entries behind."""
    registry = Registry()

    @registry.activity(retry=RetryPolicy(max_attempts=1))
    async def charge(cents: int) -> int:
        if cents < 0:
            raise ValueError("negative")
        return cents

    @registry.workflow
    async def parcel(ctx: Context, weight: int) -> str:
        await ctx.sleep(1)
        return f"{weight} kg"

    @registry.workflow
    async def order(ctx: Context, cents: int) -> str:
        ctx.tag(stage="new")
        await ctx.activity(charge, cents)
        ctx.tag(stage="paid")
        first, second = ctx.workflow(parcel, 1, id="p-1"), ctx.workflow(parcel, 2)
        return f"{await first}, {await second}"

    @registry.workflow
    async def ticker(ctx: Context, left: int) -> None:
        await ctx.workflow(parcel, left)
        if left:
            ctx.continue_as_new(left - 1)
        await ctx.listen("end")

    @StepDecorator(registry)
    def pack(order_id: str) -> str:
        return f"box of {order_id}"

    @StepDecorator(registry)
    def ship(pack: str) -> str:
        return f"{pack} shipped"

    return registry


def reading(env: Environment, files: MemoryFiles) -> Engine:
    """Return an engine that reads the archive."""
    engine = Engine(env.engine.store, registry=shop(), clock=env.clock, worker=False, archive="/archive")
    engine._archives.archive = Archive(files)
    return engine


def family() -> Registry:
    """Return workflows that start each other, three in a tree; the first attempt of one fails."""
    registry = Registry()

    @registry.workflow
    async def leaf(ctx: Context) -> str:
        return "secret"

    @registry.workflow
    async def mid(ctx: Context, id: str) -> str:
        return await ctx.workflow(leaf, id=id)

    @registry.workflow
    async def failing(ctx: Context) -> str:
        await ctx.workflow(mid, "leaf", id="mid")
        if ctx.info.attempt == 1:
            raise ValueError("no")
        return "done"

    @registry.workflow
    async def root(ctx: Context, prefix: str = "") -> str:
        return await ctx.workflow(mid, f"{prefix}leaf", id=f"{prefix}mid")

    return registry


class DiesAt(Death):
    """A process that dies at the first call of a name, or at a later one: the *times*-th. Behind it, or *before* it."""

    def __init__(self, call: str, times: int = 1, *, before: bool = False) -> None:
        super().__init__(None)
        self._call, self._times, self._before = call, times, before

    def check(self, name: str | None) -> None:
        if name == self._call:
            self._times -= 1
        if self._times == 0 and (name is not None) == self._before:
            raise Died
        super().check(name)


def file_in(files: MemoryFiles, name: str) -> document.File:
    """Return a file by its name."""
    return document.File(files.content[name], name)
