"""What sends requests, as callers see it. The one that does needs a package that may be missing; see `client`."""

from typing import Protocol

from resurgam.core.errors import ResurgamError
from resurgam.flows.http.answer import Response
from resurgam.flows.http.call import Outgoing


class Unreachable(ResurgamError):
    """A service gave no answer, or not a whole one: no connection, a broken one, or no answer in time."""


class Sends(Protocol):
    """Sends requests. It follows no redirects, keeps no cookies, and knows no proxies."""

    async def send(self, outgoing: Outgoing, *, timeout: float, body_wanted: bool = True) -> Response:
        """Send a request and return the answer, within *timeout* seconds after a connection may be used.

        Raise `Unreachable` without a whole answer, `AddressRefused` if the address must not be called, ``ValueError``
        if it is none. The body of a success is read only if it is wanted.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
