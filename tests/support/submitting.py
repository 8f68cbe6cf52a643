"""`Store.submit` by `Store.commit`, for tests that stand between an engine and its commits."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec.structs import replace

from resurgam.store.records import Commit, Creation

_tasks: set[asyncio.Task[None]] = set()


def without_first_commits(parts: Sequence[Creation]) -> list[Creation]:
    """Return starts whose first commits come by themselves, so that a test can stand between."""
    return [replace(part, first=None) for part in parts]


def submit_by_commit(
    commit: Callable[[Sequence[Commit]], Awaitable[Sequence[Any]]], part: Commit, done: Callable[[Any], None]
) -> None:
    """Commit in a task of its own, and call *done* with the answer outside of it."""

    async def run() -> None:
        try:
            [answer] = await commit([part])
        except Exception as error:  # handed on, as the store does
            answer = error
        asyncio.get_running_loop().call_soon(done, answer)

    task = asyncio.get_running_loop().create_task(run())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
