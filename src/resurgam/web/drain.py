"""The end of a server, told to requests that would otherwise last: event streams and long polls."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from starlette.requests import HTTPConnection, Request

from resurgam.web.problems import Problem

T = TypeVar("T")

_STOPPED: Final = "the server stops, and cannot wait for the answer; ask another one, or this one later"


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

    async def unless_begun(self, waiting: Coroutine[Any, Any, T], request: Request) -> T | None:
        """Return what a wait returns; None as soon as the server is about to stop, or the caller has left."""
        tasks = [asyncio.ensure_future(one) for one in (waiting, self.wait(), _left(request))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return await tasks[0] if tasks[0].done() else None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _left(request: Request) -> None:
    """Wait until the caller of a request has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def drain_of(connection: HTTPConnection) -> Drain:
    """Return the drain of the application that serves a request."""
    found: Drain = connection.app.state.drain
    return found


def given_up(request: Request, cancelled: asyncio.CancelledError) -> Problem:
    """Return the refusal of a request that was cancelled because the server stops; otherwise raise the cancellation."""
    task = asyncio.current_task()
    if task is None or not drain_of(request).begun:
        raise cancelled
    task.uncancel()
    return Problem(503, "stopping", _STOPPED, {"Retry-After": "1"})
