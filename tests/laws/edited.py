"""Programs that can be edited: a tree of steps as a value, the workflow that runs it, and what it should come to.

Every step has a label of its own, so a history says by itself which step wrote an entry. A step also knows of which
generation of the code it is, which is what decides how high the version of a step put before it must be.
"""

import asyncio
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from resurgam import Break, Context, Continue, Registry, SignalTimeout
from resurgam.runtime.definition import Workflow

Path: TypeAlias = tuple[int, ...]
Block: TypeAlias = "tuple[Step, ...]"

NAMED = ("act", "op", "set", "listen", "branch")
LEAVES = ("act", "act", "act", "sleep", "op", "set", "listen")
NESTS = ("branch", "gather", "loop", "map", "race")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step. *blocks* are what stands below it; a check has the arm of older runs and that of newer ones."""

    kind: str
    label: str
    born: int = 1
    version: int = 1
    removed: bool = False
    blocks: tuple["tuple[Step, ...]", ...] = ()
    times: int = 1
    every: int | None = None
    looks: bool = False


def workflow_of(block: Block, before: Block = ()) -> tuple[Workflow[..., Any], Registry]:
    """Return the workflow that runs a block, with its activities, and with those that there were *before*."""
    registry = Registry()
    for label in {step.label for step in (*steps(block), *steps(before)) if step.kind == "act"}:
        registry.activity(name=label)(_work)

    @registry.workflow(name="edited")
    async def edited(ctx: Context) -> list[Any]:
        ctx._recorder.trace = []  # type: ignore[attr-defined]
        ctx._recorder.answers = {}  # type: ignore[attr-defined]
        ctx._recorder.cut = set()  # type: ignore[attr-defined]
        return await run_block(ctx, block, ())

    return edited, registry


def _work(path: list[int]) -> list[int]:
    return path


def steps(block: Block) -> Iterator[Step]:
    """Return all steps of a block, and of what stands below them."""
    for step in block:
        yield step
        for inner in step.blocks:
            yield from steps(inner)


# What running a step does.


async def run_block(ctx: Context, block: Block, path: Path) -> list[Any]:
    """Run a block and return what its steps came to, in their order."""
    results = []
    try:
        for step in block:
            if step.removed:
                await _gone(ctx, step)
            else:
                results.append([step.label, await _RUN[step.kind](ctx, step, path)])
    except asyncio.CancelledError:
        ctx._recorder.cut.add(ctx._recorder.scope().location)  # type: ignore[attr-defined]
        raise
    return results


async def _gone(ctx: Context, step: Step) -> None:
    verb = {"act": "activity", "op": "run", "gather": "branch"}.get(step.kind, step.kind)
    names = (step.label,) if step.kind in NAMED else ()
    for _ in step.blocks if step.kind == "gather" else (0,):
        note(ctx, step, "removed")
        await getattr(ctx.removed, verb)(*names)


def note(ctx: Context, step: Step, what: str = "call") -> None:
    """Note that a call is made, and in which strand."""
    place = ctx._recorder.scope().location
    name = step.label if step.kind in NAMED else None
    ctx._recorder.trace.append((place, what, TAGS[step.kind], name))  # type: ignore[attr-defined]


def _versioned(ctx: Context, step: Step) -> Context:
    note(ctx, step)
    return ctx.v(step.version) if step.version > 1 else ctx


async def _act(ctx: Context, step: Step, path: Path) -> Any:
    result = await _versioned(ctx, step).activity(step.label, list(path))
    if step.looks and not result and path:
        return "never"
    return result


async def _sleep(ctx: Context, step: Step, path: Path) -> None:
    return await _versioned(ctx, step).sleep(1)


async def _op(ctx: Context, step: Step, path: Path) -> str:
    return await _versioned(ctx, step).run(lambda: step.label, name=step.label)


async def _set(ctx: Context, step: Step, path: Path) -> None:
    _versioned(ctx, step).set(step.label, list(path))


async def _listen(ctx: Context, step: Step, path: Path) -> str:
    try:
        await _versioned(ctx, step).listen(step.label, timeout=2)
    except SignalTimeout:
        return "late"
    return "heard"


async def _branch(ctx: Context, step: Step, path: Path) -> list[Any]:
    return await _versioned(ctx, step).branch(run_block, step.blocks[0], path, name=step.label)


async def _gather(ctx: Context, step: Step, path: Path) -> list[Any]:
    for _ in step.blocks:
        note(ctx, step)
    with ctx.v(step.version):
        both = asyncio.gather(*(run_block(ctx, block, path) for block in step.blocks))
    return list(await both)


async def _map(ctx: Context, step: Step, path: Path) -> list[Any]:
    async def each(ctx: Context, item: int) -> list[Any]:
        return await run_block(ctx, step.blocks[0], (*path, item))

    return list(await _versioned(ctx, step).map(each, range(step.times), limit=2))


async def _race(ctx: Context, step: Step, path: Path) -> None:
    """Which of them wins is the world's to say, so it is not told."""
    await _versioned(ctx, step).race(*(run_block(ctx, block, path) for block in step.blocks))


async def _loop(ctx: Context, step: Step, path: Path) -> Any:
    async def body(ctx: Context, state: list[Any]) -> Continue[list[Any]] | Break[Any]:
        results = await run_block(ctx, step.blocks[0], (*path, len(state)))
        kept = [*state, results]
        # Not the results: those of a loop that has ended are as its code was then.
        return Continue(kept) if len(kept) < step.times else Break(len(kept))

    return await _versioned(ctx, step).loop(body, [], forget_every=step.every)


async def _check(ctx: Context, step: Step, path: Path) -> list[Any]:
    note(ctx, step, "check")
    answer = await ctx.check_version(step.version, step.label)
    ctx._recorder.answers[step.label, path] = answer  # type: ignore[attr-defined]
    return await run_block(ctx, step.blocks[answer >= step.version], path)


_RUN = {
    "act": _act,
    "sleep": _sleep,
    "op": _op,
    "set": _set,
    "listen": _listen,
    "branch": _branch,
    "gather": _gather,
    "map": _map,
    "race": _race,
    "loop": _loop,
    "check": _check,
}
TAGS = {
    "act": "activity_scheduled",
    "sleep": "timer_started",
    "op": "operation_started",
    "set": "state_set",
    "listen": "listen_started",
    "branch": "branch_started",
    "gather": "branch_started",
    "map": "branch_started",
    "race": "race_started",
    "loop": "loop_started",
    "check": "version_checked",
}


# What it should come to.


def expected(block: Block, path: Path, answers: dict[tuple[str, Path], int]) -> list[Any]:
    """Return what running a block should come to, with these answers of version checks."""
    return [[step.label, _value(step, path, answers)] for step in block if not step.removed]


def _value(step: Step, path: Path, answers: dict[tuple[str, Path], int]) -> Any:
    if step.kind == "check":
        return expected(step.blocks[answers[step.label, path] >= step.version], path, answers)
    if step.kind == "branch":
        return expected(step.blocks[0], path, answers)
    if step.kind == "gather":
        return [expected(block, path, answers) for block in step.blocks]
    if step.kind == "loop":
        return step.times
    if step.kind == "map":
        return [expected(step.blocks[0], (*path, number), answers) for number in range(step.times)]
    return {"act": list(path), "op": step.label, "listen": "late"}.get(step.kind)
