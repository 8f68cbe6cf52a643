"""The brains that a worker has by default, and its own activities. Those of flows are imported when they are first needed."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from resurgam.core.brain import Brain
from resurgam.core.clock import Clock
from resurgam.core.flow_event import CATALOG, FLOW
from resurgam.runtime.definitions.definition import Activity
from resurgam.store.protocol import Store

if TYPE_CHECKING:
    from resurgam.flows.http.outbound import Outbound
    from resurgam.flows.services import Services


def _flow_brain(store: Store) -> Brain:
    from resurgam.flows.brain import FlowBrain  # noqa: PLC0415 -- only a worker that serves flows pays for the import
    from resurgam.flows.expressions import Expressions  # noqa: PLC0415 -- as above
    from resurgam.flows.stored_catalog import CatalogReader  # noqa: PLC0415 -- as above

    return FlowBrain(Expressions(), CatalogReader(store))


def _catalog_brain(_: Store) -> Brain:
    from resurgam.flows.catalog_brain import CatalogBrain  # noqa: PLC0415 -- as above

    return CatalogBrain()


def script_activity() -> Activity[..., Any]:
    """Return the activity that evaluates scripts."""
    from resurgam.flows.scripts import SCRIPT  # noqa: PLC0415 -- as above

    return SCRIPT


class ServiceActivity:
    """The activity that calls HTTP steps on one store, made when it is first looked up."""

    def __init__(self, store: Store, clock: Clock, outbound: "Outbound | None", *, max_payload: int) -> None:
        self._store = store
        self._clock = clock
        self._outbound = outbound
        self._max_payload = max_payload
        self._services: Services | None = None

    def find(self) -> Activity[..., Any]:
        """Return the activity; raise `NotFound` if this installation cannot send requests."""
        if self._services is None:
            from resurgam.flows.http.outbound import Outbound  # noqa: PLC0415 -- as above
            from resurgam.flows.services import Services  # noqa: PLC0415 -- as above

            outbound = self._outbound or Outbound()
            self._services = Services(self._store, self._clock, outbound, max_payload=self._max_payload)
        return self._services.activity

    async def close(self) -> None:
        """Close its connections."""
        if self._services is not None:
            await self._services.close()


_MAKE: Final[Mapping[str, Callable[[Store], Brain]]] = {FLOW: _flow_brain, CATALOG: _catalog_brain}


class Brains(Mapping[str, Brain]):
    """The given brains by kind, and those of flows and of the catalog, each made when it is first looked up."""

    def __init__(self, given: Mapping[str, Brain], store: Store) -> None:
        self._made = dict(given)
        self._store = store

    def __getitem__(self, kind: str) -> Brain:
        if kind not in self._made:
            self._made[kind] = _MAKE[kind](self._store)
        return self._made[kind]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._made, **_MAKE})

    def __len__(self) -> int:
        return len({**self._made, **_MAKE})
