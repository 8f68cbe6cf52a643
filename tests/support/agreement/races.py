"""Stories in which several verbs are under way at once: what a store makes of them must be what some order of them makes.

On Postgres, other connections hold the rows of the instances until all the verbs wait for them, and let them go in an order
that is drawn. The memory store is told the verbs in every order until it answers and holds the same.
"""

import asyncio
import copy
import copyreg
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from operator import attrgetter
from typing import Any, Final

import asyncpg
from msgspec import Raw

from resurgam.store import records as r
from resurgam.store.memory.store import MemoryStore
from resurgam.store.postgres.store import PostgresStore
from resurgam.store.watches import Waiters
from resurgam.testing import ManualClock
from support.agreement.chance import CHILDREN, ENTITIES, Chance
from support.agreement.coverage import Coverage
from support.agreement.sides import Normal, Side, pairs
from support.agreement.story import WORKERS, Story
from support.agreement.subjects import oracle
from support.limits import HANGS
from support.postgres import shared_server

HOLDERS: Final = 3
_LOOK: Final = 0.002

copyreg.pickle(Raw, lambda _: "Raw")  # a copy of a store shares them: a default is left out where it is the same object


@dataclass(eq=False)
class Call:
    """A verb with its batch for each side, and who waits for the answers."""

    worker: str
    verb: str
    batches: Sequence[list[Any]]
    answers: "asyncio.Future[list[Any]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def perform(self, side: int, stores: Any) -> list[Any]:
        return list(await attrgetter(self.verb)(stores[self.worker])(self.batches[side]))


class Gate:
    """Connections that hold rows of instances, each some of them."""

    def __init__(self, schema: str) -> None:
        self._rows = f"SELECT execution_id FROM {schema}.states ORDER BY execution_id"
        self._hold = f"SELECT FROM {schema}.states WHERE execution_id = ANY ($1) FOR UPDATE"
        self._holders: list[Any] = []

    async def open(self) -> None:
        self._holders = [await asyncpg.connect(shared_server().url) for _ in range(HOLDERS)]

    async def close(self) -> None:
        for holder in self._holders:
            await holder.close()

    async def pass_through(self, calls: "list[asyncio.Task[Any]]", make: Callable[[], None], chance: Chance) -> None:
        """Hold all instances, have the calls made, and let the instances go in any order, once all the calls wait."""
        shares: list[list[str]] = [[] for _ in self._holders]
        for row in await self._holders[0].fetch(self._rows):
            chance.choice(shares).append(row[0])
        for holder, share in zip(self._holders, shares, strict=True):
            await holder.execute("BEGIN")
            await holder.fetch(self._hold, share)
        make()
        await self._all_wait(calls)
        for holder in chance.random.sample(self._holders, HOLDERS):
            await holder.execute("ROLLBACK")
            await self._all_wait(calls)

    async def _all_wait(self, calls: "list[asyncio.Task[Any]]") -> None:
        """Wait until each call has ended or waits for a row."""
        waiting = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"
        async with asyncio.timeout(HANGS):
            while (left := sum(not call.done() for call in calls)) > 0:
                if await self._holders[0].fetchval(waiting) >= left:
                    return
                await asyncio.sleep(_LOOK)


class RacingStory(Story):
    """A story with races. Claims take no part in them: they pass over what others hold."""

    compared_every = 1

    def __init__(self, sides: Sequence[Side], chance: Chance, normal: Normal, coverage: Coverage, gate: Gate) -> None:
        super().__init__(sides, chance, normal, coverage)
        self.races = 0
        """How many there were in which several verbs took part."""

        self._gate = gate
        self._calls: list[Call] | None = None

    async def step(self) -> None:
        if self.chance.hits(0.5):
            await self.race()
        await super().step()

    async def tell(self, worker: str, verb: str, *parts: Any, each: Callable[[int], Any] | None = None) -> list[Any]:
        if self._calls is None:
            return await super().tell(worker, verb, *parts, each=each)
        call = Call(worker, verb, [list(parts) if each is None else each(number) for number in range(2)])
        self._calls.append(call)
        return await call.answers

    async def submit(self, worker: str, made: Sequence[r.Commit]) -> list[Any]:
        if self._calls is None:
            return await super().submit(worker, made)
        return await self.tell(worker, "commit", each=lambda number: [made[number]])

    async def race(self) -> None:
        """Make several verbs at once, each once, and go on from an order of them that explains what has come of them."""
        verbs = (
            self.commit,
            self.deliver,
            self.extend,
            self.finish,
            self.release,
            self.create,
            self.purge,
            self.revive,
        )
        self._calls = calls = []
        chosen = self.chance.random.sample(verbs, self.chance.choice((2, 3)))
        racing = [asyncio.ensure_future(verb(self.chance.choice(WORKERS))) for verb in chosen]
        await asyncio.sleep(0)  # each has told, or has nothing to tell
        self._calls = None
        self.races += len(calls) > 1
        theirs: list[asyncio.Task[Any]] = []
        stores = self.sides[1].stores
        make = lambda: theirs.extend(asyncio.ensure_future(call.perform(1, stores)) for call in calls)  # noqa: E731
        await self._gate.pass_through(theirs, make, self.chance)
        answers = dict(zip(calls, await asyncio.gather(*theirs), strict=True))
        for call, ours in (await self._explained(calls, answers)).items():
            self.agree(call.verb, [ours, answers[call]])
            call.answers.set_result([ours, answers[call]])
            await asyncio.sleep(0)
        await asyncio.gather(*racing)

    async def _explained(self, calls: Sequence[Call], answers: dict[Call, Any]) -> dict[Call, list[Any]]:
        """Tell memory the calls in an order that has the same answers and leads to the same; return its answers."""
        held = await self._held(self.sides[1].stores[WORKERS[0]])
        for order in permutations(calls):
            store = _copied(self.sides[0].stores[WORKERS[0]])
            ours = {call: await call.perform(0, dict.fromkeys(WORKERS, store)) for call in order}
            if all(self._same(ours[call], answers[call]) for call in calls) and await self._held(store) == held:
                self.sides[0].stores = dict.fromkeys(WORKERS, store)
                return ours
        raise AssertionError(f"no order explains {[(call.verb, call.batches[1], answers[call]) for call in calls]}")

    def _same(self, ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
        return all(self.normal.answer(one) == self.normal.answer(other) for one, other in pairs([ours, theirs]))

    async def _held(self, store: Any) -> list[Any]:
        names = (*ENTITIES, *CHILDREN)
        return [[self.normal.answer(copy) for copy in await store.transfer.copies(name)] for name in names]


def _copied(store: Any) -> MemoryStore:
    """Return a store in memory that holds the same, by the same clock."""
    copied: MemoryStore = copy.deepcopy(store, {id(store._clock): store._clock})
    copied._waiting = Waiters(store._clock, lambda watches: map(copied._is_there, watches))
    return copied


async def race(side: Side, clock: ManualClock, seed: int, steps: int) -> int:
    """Tell a story with races on a Postgres store; return how many there were."""
    store: Any = side.stores[WORKERS[0]]
    assert isinstance(store, PostgresStore)
    gate = Gate(store._pool.address.schema)
    await gate.open()
    try:
        sides = (oracle(clock, partitioned=False), side)
        story = RacingStory(sides, Chance(seed, clock), Normal(ordered=True), Coverage(), gate)
        await story.begin()
        for number in range(steps):
            try:
                await story.step()
            except AssertionError as error:
                error.add_note(f"in step {number} of story {seed}")
                raise
        return story.races
    finally:
        await gate.close()
