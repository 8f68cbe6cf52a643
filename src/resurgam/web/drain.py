"""The end of a server, told to requests that would otherwise last: event streams and long polls."""

import asyncio

from starlette.requests import HTTPConnection


class Drain:
    """Whether the server is about to stop. Requests in flight are answered; those that wait must end soon."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()

    @property
    def begun(self) -> bool:
        """Whether the server is about to stop."""
        return self._begun.is_set()

    def begin(self) -> None:
        """Tell all requests that the server is about to stop."""
        self._begun.set()

    async def wait(self) -> None:
        """Wait until the server is about to stop."""
        await self._begun.wait()


def drain_of(connection: HTTPConnection) -> Drain:
    """Return the drain of the application that serves a request."""
    found: Drain = connection.app.state.drain
    return found
