"""The interface through which the event loop and its futures reach the history."""

import asyncio
from typing import Protocol

from resurgam.core import event as events
from resurgam.runtime.loop.scope import Scope
from resurgam.runtime.loop.verdict import Verdict


class DurableCalls(Protocol):
    """The durable calls that asyncio's own functions make: tasks are branches, and timers are durable."""

    now: int
    verdict: Verdict

    def scope(self) -> Scope:
        """Return the running scope."""
        ...

    def branch(self) -> Scope:
        """Open a scope at the next location of the running one."""
        ...

    def start_timer(self, seconds: float) -> "asyncio.Future[None]":
        """Start a durable timer."""
        ...

    def close_scope(self, scope: Scope) -> None:
        """Note that the code of a scope has returned."""
        ...

    def cut_scope(self, scope: Scope) -> None:
        """Note that the code of a scope was cancelled or has failed."""
        ...

    def cancel(self, command: events.Command) -> None:
        """Record that the code no longer waits for a command."""
        ...

    def reports_unawaited(self, *, settled: bool) -> bool:
        """Return whether a future that was dropped without being awaited is a mistake of the code."""
        ...
