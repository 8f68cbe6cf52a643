"""Events of the feed as events of the original, and the states that they change: each made once for all sockets."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from resurgam.core import flow_event as fe
from resurgam.core.entry import Event
from resurgam.core.errors import CorruptHistory
from resurgam.core.event import decode_event
from resurgam.engine import Engine
from resurgam.flows.catalog import Catalog
from resurgam.flows.registration import fold
from resurgam.store import records as r
from resurgam.web.argyll.events import CATALOG, CLUSTER, CatalogTranslator, FlowTranslator, WireEvent
from resurgam.web.argyll.state import flow_shape
from resurgam.web.argyll.steps import NODE, catalog_of, cluster_of
from resurgam.web.window import Item

logger = logging.getLogger("resurgam.web")

_LOGS: Final = 1024
"""Places in logs at which translators are kept, so that the next event needs no look at the log."""

_LAST: Final = "flow_deactivated"
"""The type of the last entry of a flow."""

Aggregate: TypeAlias = tuple[str, ...]
Translator: TypeAlias = FlowTranslator | CatalogTranslator


class Snapshot(NamedTuple):
    """The state of an aggregate after all its events before *sequence*."""

    aggregate_id: Aggregate
    state: dict[str, Any]
    sequence: int

    def shape(self) -> dict[str, Any]:
        """Return it as the original sends it."""
        return {"id": self.aggregate_id, "data": self.state, "sequence": self.sequence}


class Translations:
    """Translate entries of flows and of the catalog. An event depends on those before it: their translators are kept.

    Each stands after an entry of its log, so that a socket that is behind goes on with one of its own.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._logs: dict[tuple[str, int], list[Translator]] = {}
        self._made: WeakKeyDictionary[Item, WireEvent | None] = WeakKeyDictionary()
        self._turn = asyncio.Lock()

    async def event_of(self, item: Item) -> WireEvent | None:
        """Return an entry as an event; None if the original has none for it, or it was deleted meanwhile."""
        if item not in self._made:
            async with self._turn:
                if item not in self._made:
                    self._made[item] = await self._translate(item.entry)
        return self._made[item]

    async def _translate(self, entry: r.FeedEntry) -> WireEvent | None:
        translator = self._take(entry)
        try:
            if translator is None:
                translator, event = await self._from_the_log(entry)
            else:
                event = translator.translate(decode_event(bytes(entry.body)))
        except (CorruptHistory, ValueError):
            logger.warning("sockets miss a %s of %s: this version cannot read it", entry.type, entry.execution_id)
            return None
        self._keep(entry, translator)
        return event

    async def _from_the_log(self, entry: r.FeedEntry) -> tuple[Translator | None, WireEvent | None]:
        ref = r.ExecutionRef(entity_id=entry.entity_id, execution_id=entry.execution_id)
        # With forgotten entries: the catalog forgets what it knew of the health of a service.
        known = self._engine.inspector.history
        first = [decode_event(bytes(entry.body))] if entry.seq == 1 else await known(ref, forgotten=True)
        log = [one for one in first if one.seq <= entry.seq]
        if not log or log[-1].seq != entry.seq:
            return None, None
        translator = CatalogTranslator(NODE) if entry.kind == fe.CATALOG else FlowTranslator(log[0])
        event = None
        for one in log:
            event = translator.translate(one)
        return translator, event

    def _take(self, entry: r.FeedEntry) -> Translator | None:
        """Return a translator that stands before an entry; None if there is none."""
        place = entry.execution_id, entry.seq - 1
        standing = self._logs.pop(place, [])
        if len(standing) > 1:
            self._logs[place] = standing[:-1]
        return standing[-1] if standing else None

    def _keep(self, entry: r.FeedEntry, translator: Translator | None) -> None:
        """Keep a translator for the next event of its log, unless that has ended; drop those not used for longest."""
        if translator is not None and entry.type != _LAST:
            self._logs.setdefault((entry.execution_id, entry.seq), []).append(translator)
        if len(self._logs) > _LOGS:
            del self._logs[next(iter(self._logs))]

    async def snapshot(self, aggregate_id: Aggregate) -> Snapshot | None:
        """Return the state of an aggregate; None if there is none."""
        match aggregate_id:
            case ("flow", flow_id):
                log = await self._read(flow_id, fe.FLOW)
                return Snapshot(aggregate_id, flow_shape(log), log[-1].seq) if log else None
            case ("catalog",) | ("cluster",):
                return _catalog_snapshot(aggregate_id, await self._read(fe.CATALOG, fe.CATALOG))
            case _:
                return None

    async def _read(self, entity_id: str, kind: str) -> Sequence[Event]:
        found = await self._engine.inspector.get(entity_id)
        if found is None or found.kind != kind:
            return ()
        return await self._engine.inspector.history(found, forgotten=True)


def _catalog_snapshot(aggregate_id: Aggregate, log: Sequence[Event]) -> Snapshot:
    """Return the state of the catalog or of the cluster: the log of the catalog has the events of both."""
    translator = CatalogTranslator(NODE)
    made = [translator.translate(entry) for entry in log]
    count = sum(event is not None and event.aggregate_id == aggregate_id for event in made)
    catalog, last = fold(Catalog(), log), log[-1].at if log else None
    steps = [*catalog.steps.values()]
    if aggregate_id == CATALOG:
        return Snapshot(CATALOG, catalog_of(steps, last), count)
    return Snapshot(CLUSTER, cluster_of(steps, {step.id: catalog.health(step.id) for step in steps}, last), count)
