"""The state of both stores: everything that can be read of them, compared."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec.structs import replace

from resurgam.core.flow_event import WorkStarted
from resurgam.core.state import Status
from resurgam.store import records as r
from resurgam.store.protocol import Store
from support.agreement.chance import CHILDREN, ENTITIES, NAMES, QUEUES, TOPICS, Chance
from support.agreement.coverage import Coverage
from support.agreement.difference import assert_same
from support.agreement.sides import Hold, Normal, Side

Read = Callable[[Store, int], Awaitable[Any]]
"""A call for the store of a side, which is 0 or 1."""


class Comparison:
    """Read both stores by any of their openings, and assert that they hold the same."""

    def __init__(self, sides: Sequence[Side], chance: Chance, normal: Normal, coverage: Coverage) -> None:
        self._sides = sides
        self._chance = chance
        self._normal = normal
        self._coverage = coverage

    async def compare(self, holds: Sequence[Hold] | None) -> None:
        """Compare all executions; with *holds* also everything else that can be read."""
        reads = self._copies()
        if holds is not None:
            reads |= {
                **self._newest(),
                **self._of_executions(),
                **self._lists(),
                **self._others(),
                **self._waits(holds),
            }
        worker = self._chance.choice(list(self._sides[0].stores))
        found = []
        for number, side in enumerate(self._sides):
            store = side.stores[worker]
            found.append(await asyncio.gather(*(read(store, number) for read in reads.values())))
        for label, ours, theirs in zip(reads, *found, strict=True):
            assert_same(ours, theirs, label)
            self._coverage.note(label.partition("(")[0], _kind(ours))
        copies = [copy for label, ours in zip(reads, found[0], strict=True) if label[:6] == "copies" for copy in ours]
        self._chance.present = [copy.instance.execution_id for copy in copies]
        self._chance.instances = [copy.instance for copy in copies if copy.instance.archived is None]
        self._chance.promises = [promise.promise_id for copy in copies for promise in copy.promises]
        for copy in copies:
            self._note(copy)

    def _note(self, copy: r.Copy) -> None:
        instance = copy.instance
        held = {
            "dead letter: instance": instance.dead_letter is not None,
            "dead letter: activity": any(one.dead_letter is not None for one in copy.activities),
            "parked": instance.parked is not None,
            "paused": copy.paused is not None,
            "forgotten": bool(copy.forgotten),
            "archived": instance.archived is not None,
            "start": any(isinstance(event, WorkStarted) for event in copy.inbox),
            "start behind an entry": any(isinstance(event, WorkStarted) for event in copy.inbox[1:]),
        }
        self._coverage.seen.update(name for name, is_so in held.items() if is_so)

    def _newest(self) -> dict[str, Read]:
        return {
            f"inspector.get({entity_id})": lambda store, _, entity_id=entity_id: store.inspector.get(entity_id)
            for entity_id in (*ENTITIES, *CHILDREN)
        }

    def _copies(self) -> dict[str, Read]:
        reads: dict[str, Read] = {}
        for entity_id in (*ENTITIES, *CHILDREN):

            async def copies(store: Store, _: int, entity_id: str = entity_id) -> list[Any]:
                return [self._normal.answer(copy) for copy in await store.transfer.copies(entity_id)]

            reads[f"copies({entity_id})"] = copies
        return reads

    def _of_executions(self) -> dict[str, Read]:
        reads: dict[str, Read] = {}
        chosen = [*self._chance.present[-5:], *(self._chance.some_execution() for _ in range(4))]
        for execution_id in dict.fromkeys(chosen):  # not a set, which has another order in each run
            ref = r.ExecutionRef(
                entity_id=self._chance.entities.get(execution_id, "unknown"), execution_id=execution_id
            )
            after = self._chance.below(4)

            async def open_work(store: Store, _: int, ref: r.ExecutionRef = ref) -> object:
                return self._normal.answer(await store.inspector.open_work(ref))

            async def log(store: Store, _: int, ref: r.ExecutionRef = ref, after: int = after) -> object:
                whole = await store.inspector.history(ref, forgotten=True)
                last = await store.inspector.history(ref, after + 1)
                return list(await store.read(ref, after)), list(whole), list(last)

            reads[f"open_work({execution_id})"] = open_work
            reads[f"log({execution_id})"] = log
            closed = r.Closed(entity_id=ref.entity_id, execution_id=execution_id)
            grown = r.LogGrown(entity_id=ref.entity_id, execution_id=execution_id, last_seq=after + 1)
            for watch in (closed, grown):
                name = f"wait {type(watch).__name__}({execution_id})"
                reads[name] = lambda store, _, watch=watch: store.wait(watch, 0)
        return reads

    def _lists(self) -> dict[str, Read]:
        now = self._chance.clock.now()
        queries = (
            r.Query(status=Status.PAUSED),
            r.Query(status=Status.SCHEDULED),
            r.Query(status=Status.RUNNING, name=NAMES[0]),
            r.Query(parent="a", limit=2),
            r.Query(newest_only=True, limit=3),
            r.Query(newest_only=True, status=Status.RUNNING, until=now),
            r.Query(failure="E"),
            r.Query(tree_id="tree", status=Status.RUNNING),
            r.Query(tags={"k": "v"}, limit=3),
            r.Query(since=now - 500, tags={"l": "w"}),
            r.Query(tags={"k": "ü"}, name=NAMES[0]),
            r.Query(tags={"k": "v", "l": "w"}, status=Status.RUNNING, limit=1),
            r.Query(kind="workflow", status=Status.CONTINUED, limit=2),
            r.Query(name=NAMES[1], limit=2),
            r.Query(limit=4),
        )
        ended = (
            r.EndedQuery(before=2**52),
            r.EndedQuery(before=now, limit=2, after=(now - 10_000, "e")),
            r.EndedQuery(before=2**52, status=Status.FAILED, name=NAMES[1]),
            r.EndedQuery(before=2**52, archived=True),
            r.EndedQuery(before=2**52, archived=True, name=NAMES[0], limit=1),
        )
        chosen = self._chance.random.sample(queries, 3)
        reads: dict[str, Read] = {
            f"list({query})": lambda store, _, query=query: _pages(store, query) for query in (r.Query(), *chosen)
        }
        query = self._chance.choice(ended)

        async def complete(store: Store, _: int) -> list[r.Instance]:
            return list(await store.inspector.ended(query))

        return {**reads, f"ended({query})": complete}

    def _others(self) -> dict[str, Read]:
        reads: dict[str, Read] = {
            "stats": lambda store, _: _stats(store),
            "workers.list": lambda store, _: _listed(store),
            "feed": self._new_in_feed,
        }
        if self._chance.hits(0.05):
            few, one = r.FeedQuery(limit=7), r.FeedQuery(entity_id="a", types=("workflow_started",))
            reads["whole feed"] = lambda store, _: _feed(store, few)
            reads["feed of one"] = lambda store, _: _feed(store, one)
        for query_id in dict.fromkeys(self._chance.query_id() for _ in range(4)):
            reads[f"queries.result({query_id})"] = lambda store, _, name=query_id: store.queries.result(name)
            watch = r.QueryAnswered(query_id=query_id)
            reads[f"wait QueryAnswered({query_id})"] = lambda store, _, watch=watch: store.wait(watch, 0)
        for topic in TOPICS:

            async def messages(store: Store, side: int, topic: str = topic) -> object:
                found = []
                for cursor in ("", self._sides[side].cursors.get(topic, "")):
                    values = map(bytes, (await store.inspector.messages(topic, cursor)).values)
                    found.append([value for value in values if self._chance.is_settled(topic, value)])
                return found

            reads[f"messages({topic})"] = messages
        return reads

    async def _new_in_feed(self, store: Store, side: int) -> dict[str, list[r.FeedEntry]]:
        cursors = self._sides[side].cursors
        found, cursors["feed"] = await _read_feed(store, r.FeedQuery(after=cursors.get("feed", "")))
        return found

    def _waits(self, holds: Sequence[Hold]) -> dict[str, Read]:
        """Return looks at watches whose cursors each store has made itself, or that depend on its counters."""
        reads: dict[str, Read] = {}
        for kind in ("instances", "activities", "queries"):
            wanted = {name: name == kind for name in ("instances", "activities", "queries")}
            watch = r.Work(worker=self._chance.choice(list(self._sides[0].stores)), queues=QUEUES, **wanted)
            reads[f"wait Work({kind}, {watch.worker})"] = lambda store, _, watch=watch: store.wait(watch, 0)
        for hold in holds[-3:]:

            async def inbox(store: Store, side: int, hold: Hold = hold) -> bool:
                ref = {"entity_id": hold.instance.entity_id, "execution_id": hold.instance.execution_id}
                found = await store.inspector.get(**ref)
                if found is not None and found.archived is not None:
                    return True  # a store may end such a wait, or leave it
                return await store.wait(r.InboxChanged(**ref, wake=hold.views[side].wake), 0)

            reads[f"wait InboxChanged({hold.instance.execution_id}, {hold.claim.epoch})"] = inbox
        for topic in TOPICS:
            newest = [value for name, value in self._chance.published if name == topic][-1:]
            if not newest or not self._chance.is_settled(topic, newest[0]):
                continue  # what is too old may be there or not

            async def published(store: Store, side: int, topic: str = topic) -> bool:
                return await store.wait(r.Published(topic=topic, after=self._sides[side].cursors.get(topic, "")), 0)

            reads[f"wait Published({topic})"] = published

        cursors = [side.cursors.get("feed", "") for side in self._sides]

        async def grown(store: Store, side: int) -> bool:
            # A store may wake for events that were dropped meanwhile; it must wake for those that can be read.
            page = await store.feed.read(r.FeedQuery(after=cursors[side]))
            return await store.wait(r.FeedGrown(after=cursors[side]), 0) and bool(page.entries)

        reads["wait FeedGrown"] = grown
        return reads


async def _pages(store: Store, query: r.Query) -> list[r.Page]:
    pages = [await store.inspector.list(query)]
    while pages[-1].cursor is not None:
        pages.append(await store.inspector.list(replace(query, cursor=pages[-1].cursor)))
    return pages


async def _stats(store: Store) -> tuple[object, ...]:
    """Return the counts. A queue may be listed though it is empty, and count what is due as ready or not."""
    found = await store.inspector.stats()
    queues = {name: (one.activities, one.claimed_activities) for name, one in found.queues.items()}
    queues = {name: counts for name, counts in queues.items() if any(counts)}
    instances = {status: count for status, count in found.instances.items() if count}
    return instances, queues, found.dead_activities, found.dead_instances


async def _listed(store: Store) -> list[r.LiveWorker]:
    return list(await store.workers.list())


async def _feed(store: Store, query: r.FeedQuery) -> dict[str, list[r.FeedEntry]]:
    found, _ = await _read_feed(store, query)
    return found


async def _read_feed(store: Store, query: r.FeedQuery) -> tuple[dict[str, list[r.FeedEntry]], str]:
    """Return the events of each entity, and the cursor; the order between entities may differ with every reading."""
    found: defaultdict[str, list[r.FeedEntry]] = defaultdict(list)
    more = True
    while more:
        page = await store.feed.read(query)
        assert len(page.cursors) == len(page.entries)
        for entry in page.entries:
            found[entry.entity_id].append(entry)
        query, more = replace(query, after=page.cursor), page.more
    return found, query.after


def _kind(answer: Any) -> str:
    kind = {r.Instance: "instance", r.QueryResult: "result", type(None): "none"}.get(type(answer), "found")
    match answer:
        case bool():
            kind = str(answer)
        case [r.LiveWorker(), *_]:
            kind = "workers"
        case []:
            kind = "nothing"
    return kind
