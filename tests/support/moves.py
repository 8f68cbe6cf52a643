"""Two stores, live runs in one of them, and moves between them that may die at any call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from resurgam.core import event as events
from resurgam.core.outcome import OpenPromise
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.move import Move, Moved, Options
from resurgam.store.protocol import Store
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import HOUR, Bench, OpensStores, routed
from resurgam.testing.contract.children import request_of
from support.stores import OpenStore

URL: Final = "other://store"
PROMISE: Final = "approval"


class Died(BaseException):
    """The process that moves runs is killed: nothing of it runs any more."""


class Dying:
    """A part of a store whose calls are counted, together with those of others; the last one kills the caller.

    A call that kills is made or not, as *done* says: a process may die before it has heard of an answer.
    """

    def __init__(self, part: Any, death: "Death") -> None:
        self._part = part
        self._death = death

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if name in ("inspector", "transfer", "values"):
            return Dying(found, self._death)

        async def call(*arguments: Any, **named: Any) -> Any:
            self._death.check(name)
            answer = await found(*arguments, **named)
            self._death.check(None)
            return answer

        return call


class Death:
    """The moment at which a process dies: before its call *before*, or behind it if *done*."""

    def __init__(self, before: int | None, *, done: bool = False) -> None:
        self._left = before
        self._done = done
        self._over = False
        self.calls = 0

    def check(self, name: str | None) -> None:
        """Count a call, and die if it is the one; a dead process calls nothing."""
        if self._over:
            raise Died
        if name is not None:
            self.calls += 1
        if self._left is not None and self.calls >= self._left and (name is None) == self._done:
            self._over = True
            raise Died


class _Backend(OpensStores):
    def __init__(self, open_store: OpenStore) -> None:
        self.open_store = open_store  # type: ignore[method-assign, assignment]


class Pair:
    """Two stores with one clock; live runs are in *here*."""

    def __init__(self, here: Bench, there: Bench) -> None:
        self.here = here
        self.there = there
        self.clock = here.clock

    async def move(self, death: Death | None = None, **options: Any) -> Moved:
        """Move, by a process that may die."""
        return await self._course(death, **options).run()

    async def abort(self) -> Moved:
        """End a move that was interrupted."""
        return await self._course(None).abort()

    def _course(self, death: Death | None, **options: Any) -> Move:
        source: Any = self.here.store
        target: Any = self.there.store
        if death is not None:
            source, target = Dying(source, death), Dying(target, death)
        return Move(source, target, self.clock, url=URL, options=Options(**options), sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.clock.move_to(self.clock.now() + round(seconds * 1000))
        await asyncio.sleep(0)

    async def offered(self) -> dict[str, list[str]]:
        """Return in which stores each open entity is offered to workers: neither paused there nor a dead letter."""
        found: dict[str, list[str]] = {}
        for name, bench in (("here", self.here), ("there", self.there)):
            for instance in (await bench.store.inspector.list(r.Query(limit=1000))).instances:
                if not instance.status.terminal:
                    found.setdefault(instance.entity_id, [])
                    if instance.status is not Status.PAUSED:
                        found[instance.entity_id].append(name)
        return found


@asynccontextmanager
async def pair(source: OpenStore, target: OpenStore) -> AsyncIterator[Pair]:
    """Open two empty stores."""
    clock = ManualClock()
    async with source(clock) as a, target(clock) as b:
        yield Pair(Bench(a, clock, _Backend(source)), Bench(b, clock, _Backend(target)))


async def populate(b: Bench) -> None:
    """Begin live runs: a parent with a child that it waits for, one with an activity, one that sleeps, one paused by hand.

    One has an earlier, closed run; one was put off; one has a promise and a signal that it has not read.
    """
    parent = await b.create("parent", queue="parents")
    claim = await b.claim_one(queues=("parents",))
    await b.committed(claim, children=(request_of(b, parent, "child"),))
    await b.store.transfer.flush()
    await b.committed(await b.claim_one(), wake_at=b.clock.now() + HOUR)  # the child
    await b.wanting(2, entity_id="working", queue="activities")
    await b.ended("again")
    await b.create("again")
    await b.committed(await b.claim_one(), promises=(OpenPromise(promise_id_of("again"), PROMISE),))
    await b.send_signals("again", "one")
    await b.create("halted")
    await b.pause("halted")
    await b.create("later", begins_at=b.clock.now() + HOUR)
    await b.ended("closed")


LIVE: Final = {"parent", "child", "working", "again", "halted", "later"}
"""The entities of `populate` that are live."""


def promise_id_of(entity_id: str) -> str:
    """Return the id of the promise of an entity."""
    return routed("p-1", entity_id)


async def copies_in(store: Store) -> dict[str, list[r.Copy]]:
    """Return everything that a store has, by entity."""
    found: dict[str, list[r.Copy]] = {}
    for instance in (await store.inspector.list(r.Query(limit=1000))).instances:
        found[instance.entity_id] = list(await store.transfer.copies(instance.entity_id))
    return found


def without_pauses(copy: r.Copy) -> tuple[Any, ...]:
    """Return what must be the same of an execution before and after a move: all but the pause that the move made."""
    halts = (events.WorkflowPaused, events.WorkflowResumed)
    inbox = tuple(event for event in copy.inbox if not isinstance(event, halts))
    return copy.instance, copy.log, copy.forgotten, inbox, copy.activities, copy.promises, copy.answer, copy.paused
