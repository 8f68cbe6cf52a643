"""The activity that calls HTTP steps, on a store. What it reads there is kept for a moment."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from resurgam.core.clock import Clock
from resurgam.flows.errors import ClientMissing
from resurgam.flows.http.activity import CallActivity
from resurgam.flows.http.message import HttpCall
from resurgam.flows.http.outbound import Outbound
from resurgam.flows.http.sending import Sends
from resurgam.flows.http.token import number_in
from resurgam.flows.state import FlowState
from resurgam.flows.stored_catalog import CatalogReader
from resurgam.runtime import system
from resurgam.runtime.definitions.definition import Activity
from resurgam.store.protocol import Store
from resurgam.store.secret import secret_of

T = TypeVar("T")

PUBLIC_URL: Final = "public-url"
"""The key in the values of a store under which its server keeps the address at which it is reached."""

_HEALTH_KEPT: Final = 1000
_URL_KEPT: Final = 5000


def service_client(outbound: Outbound, *, max_body: int) -> Sends:
    """Return what sends requests; raise `ClientMissing` if its package is not installed."""
    try:
        from resurgam.flows.http.client import ServiceClient  # noqa: PLC0415 -- its package may be missing
    except ModuleNotFoundError as error:
        raise ClientMissing(
            f"HTTP steps cannot be called from here: the package {error.name} is missing; "
            "install it with: pip install 'resurgam[web]'"
        ) from None
    return ServiceClient(outbound, max_body=max_body)


class Services:
    """The activity that calls services, and the connections that it keeps open until it is closed."""

    def __init__(self, store: Store, clock: Clock, outbound: Outbound, *, max_payload: int) -> None:
        self._client = service_client(outbound, max_body=max_payload)
        surroundings = StoreSurroundings(store, clock)
        self.activity: Activity[..., Any] = CallActivity(self._client, surroundings, clock, system.chance).definition()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


class StoreSurroundings:
    """What a store knows about a call."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._secret: bytes | None = None
        self._catalog = _Kept(CatalogReader(store).read, clock, _HEALTH_KEPT)
        self._public_url = _Kept(self._read_public_url, clock, _URL_KEPT)

    async def unhealthy(self, step_id: str) -> str | None:
        """Return why the service of a step must not be called now; None if it may be."""
        health = (await self._catalog.get()).health(step_id)
        return health.error if health.status == "unhealthy" else None

    async def is_wanted(self, call: HttpCall) -> bool:
        """Whether the flow still needs the result of a work item."""
        run_id, number = number_in(call.receipt)
        flow = await self._store.inspector.get(call.flow_id, run_id)
        return flow is not None and FlowState(await self._store.read(flow)).is_wanted(number)

    async def public_url(self) -> str | None:
        """Return the address under which the server of this store is reached; None if there is none."""
        return await self._public_url.get()

    async def secret(self) -> bytes:
        """Return the secret of the store."""
        if self._secret is None:
            self._secret = await secret_of(self._store.values)
        return self._secret

    async def _read_public_url(self) -> str | None:
        found = await self._store.values.get(PUBLIC_URL)
        return None if found is None else found.decode()


class _Kept(Generic[T]):
    """A value that is read again after *length* milliseconds; one that is None is not kept."""

    def __init__(self, read: Callable[[], Awaitable[T]], clock: Clock, length: int) -> None:
        self._read = read
        self._clock = clock
        self._length = length
        self._value: T | None = None
        self._at = 0

    async def get(self) -> T:
        now = self._clock.now()
        # A clock that was set back must not keep the value until it has caught up.
        if self._value is None or not self._at <= now < self._at + self._length:
            value = await self._read()
            self._value, self._at = value, now
            return value
        return self._value
