"""Record the health of services as the prober does."""

from resurgam.client.access import Access
from resurgam.client.catalog import CatalogClient
from resurgam.core.flow_event import HealthStatus
from resurgam.engine import Engine
from resurgam.runtime.registry import Registry


async def set_health(engine: Engine, step_id: str, status: HealthStatus, error: str = "") -> bool:
    """Record the health of a service; return whether it has changed."""
    access = Access(engine.store, Registry(), engine._clock)
    return await CatalogClient(access, "prober").set_health(step_id, status, error)
