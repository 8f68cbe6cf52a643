"""Ask the service of a step whether it is well."""

from typing import Final

from resurgam.core.flow_event import HealthStatus
from resurgam.flows.http.addresses import AddressRefused
from resurgam.flows.http.answer import summary
from resurgam.flows.http.call import Outgoing, fill
from resurgam.flows.http.sending import Sends, Unreachable

_TIMEOUT: Final = 3.0
"""Seconds."""


async def probe(client: Sends, url: str) -> tuple[HealthStatus, str]:
    """Return the health of a service, and why it is unhealthy: it gives no answer, or one of 400 or more."""
    headers = {"Accept": "application/json, */*", "Accept-Encoding": "identity", "User-Agent": "resurgam"}
    try:
        request = Outgoing(method="GET", url=fill(url, {}), headers=headers)
        response = await client.send(request, timeout=_TIMEOUT, body_wanted=False)
    except Unreachable as error:
        return "unhealthy", f"the health check got no answer: {error}"
    except (AddressRefused, ValueError) as error:
        return "unhealthy", f"the health check cannot be made: {error}"
    if response.status >= 400:
        return "unhealthy", f"the health check {summary(response)}"
    return "healthy", ""
