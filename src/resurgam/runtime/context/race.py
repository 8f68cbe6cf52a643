"""`ctx.race`: wait for the first of several to settle, and record which it was."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, cast

from resurgam.core import event as events
from resurgam.runtime.loop.futures import Durable
from resurgam.runtime.loop.scope import Scope, current
from resurgam.runtime.matching.pending import Race
from resurgam.runtime.matching.recorder import Recorder


def run_race(recorder: Recorder, awaitables: tuple[Awaitable[Any], ...], step: int | None) -> Durable[Any]:
    """Start a race of these competitors, and return the future of ``(index, value)``."""
    if not awaitables:
        raise ValueError("ctx.race needs at least one competitor, got none")
    try:
        future = recorder.call(events.RaceStarted, step=step, size=len(awaitables))
    except BaseException:
        for coroutine in filter(asyncio.iscoroutine, awaitables):
            coroutine.close()  # otherwise asyncio warns that it was never awaited
        raise
    scope = recorder.scope_below(future.command)
    race = Race([_competitor(awaitable, scope) for awaitable in awaitables])
    recorder.pending.add_race(future.command.seq, race)
    recorder.close_scope(scope)
    for index, member in enumerate(race.members):
        member.add_done_callback(_record_arrival(race, index))
    future.add_done_callback(lambda _: _cancel_all(race.members))
    return future


def _competitor(awaitable: Awaitable[Any], scope: Scope) -> asyncio.Future[Any]:
    if isinstance(awaitable, asyncio.Future):
        return awaitable
    inside = copy_context()
    inside.run(current.set, scope)
    return cast("asyncio.Future[Any]", inside.run(asyncio.ensure_future, awaitable))


def _record_arrival(race: Race, index: int) -> Callable[[asyncio.Future[Any]], None]:
    def settled(member: asyncio.Future[Any]) -> None:
        if not member.cancelled():
            member.exception()  # mark a loser's failure as retrieved, so that asyncio does not warn
        if race.winner is None:
            race.winner = index

    return settled


def _cancel_all(members: list[asyncio.Future[Any]]) -> None:
    for member in members:
        member.cancel()
