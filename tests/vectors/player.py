"""Runs programs that are data on a real context."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from resurgam import Break, Context, Continue, Registry, SignalTimeout
from resurgam.core.location import Location
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.loop.scope import current
from vectors.program_notation import STOP, Call, Path, Program

NAME = "edited"
WAIT = 3600
"""Seconds that a timed wait waits."""


@dataclass
class Player:
    """One program; *places* says which call of it a scope's n-th call is."""

    calls: Program
    sleep: float = 60
    argument: int = 0
    places: dict[tuple[Location, int], Path] = field(default_factory=dict)

    async def run(self, ctx: Context) -> list[object]:
        """Make the calls; return what the version checks and the waits gave."""
        notes: list[object] = []
        await self._play(ctx, self.calls, (), notes)
        return notes

    async def _play(self, ctx: Context, calls: Program, path: Path, notes: list[object]) -> None:
        for index, call in enumerate(calls):
            await self._begun(ctx, call, (*path, index), notes)
        self._note_place((*path, len(calls)))

    def _note_place(self, path: Path) -> None:
        scope = current.get()
        self.places[scope.location, scope.calls] = path

    def _begun(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> Awaitable[Any]:
        """Make a call, and return what is to be awaited."""
        self._note_place(path)
        versioned = ctx if call.version is None else ctx.v(call.version)
        return getattr(self, f"_{call.verb}")(versioned, call, path, notes)

    def _activity(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> Awaitable[Any]:
        return ctx.activity(str(call.name), self.argument)

    def _sleep(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> Awaitable[Any]:
        return ctx.sleep(self.sleep)

    def _listen(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> Awaitable[Any]:
        return ctx.listen(str(call.name))

    def _wait(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> Awaitable[Any]:
        return self._heard(ctx.listen(str(call.name), timeout=WAIT), notes)

    async def _heard(self, waiting: Awaitable[Any], notes: list[object]) -> None:
        try:
            notes.append(await waiting)
        except SignalTimeout:
            notes.append("timed out")

    async def _set(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> None:
        ctx.set(str(call.name), 1)

    def _run(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> Awaitable[Any]:
        return ctx.run(lambda: 1, name=call.name)

    def _stop(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> Awaitable[Any]:
        return ctx.until(lambda: False)

    def _removed(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> Awaitable[Any]:
        verb = getattr(ctx.removed, call.parts[0][0].verb)
        return verb() if call.name is None else verb(call.name)

    async def _check(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> None:
        answer = await ctx.check_version(call.number, call.name)
        notes.append(answer)
        if answer in call.arms:
            part = call.arms.index(answer)
            await self._play_arm(ctx, call.parts[part], (*path, part), notes)

    async def _play_arm(self, ctx: Context, calls: Program, path: Path, notes: list[object]) -> None:
        for index, call in enumerate(calls):
            await self._begun(ctx, call, (*path, index), notes)

    def _branch(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> Awaitable[Any]:
        async def inside(below: Context) -> None:
            await self._play(below, call.parts[0], (*path, 0), notes)

        return ctx.branch(inside, name=call.name)

    def _strand(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> Coroutine[Any, Any, None]:
        return self._play(ctx._plain, call.parts[0], (*path, 0), notes)

    def _gather(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> Awaitable[Any]:
        return asyncio.gather(*self._members(ctx, call, path, notes, asyncio.ensure_future))

    async def _task_group(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> None:
        async with asyncio.TaskGroup() as group:
            self._members(ctx, call, path, notes, group.create_task)

    def _members(
        self, ctx: Context, call: Call, path: Path, notes: list[object], begin: Callable[[Any], Any]
    ) -> list[Awaitable[Any]]:
        begun = []
        for index, part in enumerate(call.parts[0]):
            version = part.version if part.verb == "strand" else None
            with nullcontext() if version is None else ctx.v(version):
                begun.append(begin(self._begun(ctx, part, (*path, 0, index), notes)))
        return begun

    def _loop(self, ctx: Context, call: Call, path: Path, notes: list[object]) -> Awaitable[Any]:
        async def body(below: Context, done: int) -> Continue[int] | Break[int]:
            await self._play(below, call.parts[0], (*path, 0), notes)
            if done + 1 == call.stop_in:
                await below.until(lambda: False)
            return Continue(done + 1) if done + 1 < call.number else Break(done + 1)

        return ctx.loop(body, 0, forget_every=None)


def player(calls: Program, *, open_end: bool = False, **options: Any) -> Player:
    """Return who plays a program; with an open end it stays where it is afterwards."""
    return Player((*calls, STOP) if open_end else calls, **options)


def workflow(played: Player, registry: Registry | None = None) -> Workflow[..., Any]:
    """Return the workflow that plays a program."""

    async def edited(ctx: Context) -> list[Any]:
        return await played.run(ctx)

    own = Registry() if registry is None else registry
    return own.workflow(name=NAME)(edited)
