"""Programs that can be edited: a tree of steps as a value, the workflow that runs it, and what it should come to.

Every step has a label of its own, so a history says by itself which step wrote an entry. A step also knows of which
generation of the code it is, which is what decides how high the version of a step put before it must be.
"""

import asyncio
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from resurgam import Break, Context, Continue, Registry, SignalTimeout
from resurgam.core.errors import Evicted
from resurgam.runtime.definitions.definition import Matching, Workflow

Path: TypeAlias = tuple[int, ...]
Block: TypeAlias = "tuple[Step, ...]"

NAMED = ("act", "op", "set", "listen", "branch", "child", "promise", "signal", "publish", "step", "many", "handler")
SAID = ("child", "promise", "signal", "publish", "step", "many")
LEAVES = ("act", "act", "act", "sleep", "op", "set", "listen", *SAID)
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


def workflow_of(
    block: Block, before: Block = (), matching: Matching = "location"
) -> tuple[Workflow[..., Any], Registry]:
    """Return the workflow that runs a block, with its activities, and with those that there were *before*."""
    registry = Registry()
    known = (*steps(before), *steps(block))
    for label in {step.label for step in known if step.kind in ("act", "step", "child")}:
        registry.activity(name=label)(_work)
    for label in {step.label for step in known if step.kind == "child"}:
        registry.workflow(name=label)(_offspring)

    @registry.workflow(name="edited", matching=matching)
    async def edited(ctx: Context) -> list[Any]:
        ctx._recorder.trace = []  # type: ignore[attr-defined]
        ctx._recorder.answers = {}  # type: ignore[attr-defined]
        ctx._recorder.cut = set()  # type: ignore[attr-defined]
        return await run_block(ctx, block, ())

    return edited, registry


def _work(path: list[int]) -> list[int]:
    return path


async def _offspring(ctx: Context, label: str, path: list[int]) -> list[int]:
    return list(await ctx.activity(label, path))


class Settled(dict[str, int]):
    """Every promise is settled, sooner or later."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> int:
        return 5


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
    place = ctx._recorder.scope().location
    try:
        for step in block:
            if step.removed:
                await _gone(ctx, step, path)
            else:
                results.append([step.label, await _RUN[step.kind](ctx, step, path)])
    except (asyncio.CancelledError, GeneratorExit, Evicted):
        # Called off, or still at work when the workflow ended: a handler, or a strand whose child winds down.
        ctx._recorder.cut.add(place)  # type: ignore[attr-defined]
        raise
    return results


_VERBS = {
    "act": "activity",
    "op": "run",
    "gather": "branch",
    "child": "workflow",
    "many": "listen",
    "handler": "signal",
}


async def _gone(ctx: Context, step: Step, path: Path) -> None:
    names = (name_of(step, path),) if step.kind in NAMED else ()
    for _ in step.blocks if step.kind == "gather" else (0,):
        note(ctx, step, path, "removed")
        await getattr(ctx.removed, _VERBS.get(step.kind, step.kind))(*names)


def name_of(step: Step, path: Path) -> str:
    """Return the name that a step has in the history; those of promises and signals are also of their item."""
    mine = step.kind in ("promise", "handler") and path
    return f"{step.label} {list(path)}" if mine else step.label


def note(ctx: Context, step: Step, path: Path, what: str = "call") -> None:
    """Note that a call is made, and in which strand."""
    place = ctx._recorder.scope().location
    name = name_of(step, path) if step.kind in NAMED else None
    ctx._recorder.trace.append((place, what, TAGS[step.kind], name))  # type: ignore[attr-defined]


def _versioned(ctx: Context, step: Step, path: Path) -> Context:
    note(ctx, step, path)
    return ctx.v(step.version) if step.version > 1 else ctx


async def _act(ctx: Context, step: Step, path: Path) -> Any:
    result = await _versioned(ctx, step, path).activity(step.label, list(path))
    if step.looks and not result and path:
        return "never"
    return result


async def _sleep(ctx: Context, step: Step, path: Path) -> None:
    return await _versioned(ctx, step, path).sleep(1)


async def _op(ctx: Context, step: Step, path: Path) -> str:
    return await _versioned(ctx, step, path).run(lambda: step.label, name=step.label)


async def _set(ctx: Context, step: Step, path: Path) -> None:
    _versioned(ctx, step, path).set(step.label, list(path))


async def _listen(ctx: Context, step: Step, path: Path) -> str:
    try:
        await _versioned(ctx, step, path).listen(step.label, timeout=2)
    except SignalTimeout:
        return "late"
    return "heard"


async def _many(ctx: Context, step: Step, path: Path) -> list[Any]:
    return await _versioned(ctx, step, path).listen_many(step.label, limit=2, timeout=2)


async def _child(ctx: Context, step: Step, path: Path) -> Any:
    return await _versioned(ctx, step, path).workflow(step.label, step.label, list(path))


async def _promise(ctx: Context, step: Step, path: Path) -> Any:
    return await _versioned(ctx, step, path).promise(name_of(step, path))


async def _signal(ctx: Context, step: Step, path: Path) -> None:
    await _versioned(ctx, step, path).signal(ctx.info.entity_id, step.label, list(path))


async def _publish(ctx: Context, step: Step, path: Path) -> None:
    await _versioned(ctx, step, path).publish(step.label, list(path))


async def _step(ctx: Context, step: Step, path: Path) -> Any:
    async with _versioned(ctx, step, path).saga() as saga:
        return await saga.step(step.label, list(path), undo=step.label)


async def _handler(ctx: Context, step: Step, path: Path) -> list[Any]:
    """What stands below is done by a handler, which is called by a signal to itself."""
    results: list[list[Any]] = []

    @ctx.on_signal(name_of(step, path))
    async def handle() -> None:
        results.append(await run_block(ctx, step.blocks[0], path))

    await _versioned(ctx, step, path).signal(ctx.info.entity_id, name_of(step, path))
    await ctx.until(lambda: bool(results))
    return results[0]


async def _branch(ctx: Context, step: Step, path: Path) -> list[Any]:
    return await _versioned(ctx, step, path).branch(run_block, step.blocks[0], path, name=step.label)


async def _gather(ctx: Context, step: Step, path: Path) -> list[Any]:
    for _ in step.blocks:
        note(ctx, step, path)
    with ctx.v(step.version):
        both = asyncio.gather(*(run_block(ctx, block, path) for block in step.blocks))
    return list(await both)


async def _map(ctx: Context, step: Step, path: Path) -> list[Any]:
    async def each(ctx: Context, item: int) -> list[Any]:
        return await run_block(ctx, step.blocks[0], (*path, item))

    return list(await _versioned(ctx, step, path).map(each, range(step.times), limit=2))


async def _race(ctx: Context, step: Step, path: Path) -> None:
    """Which of them wins is the world's to say, so it is not told."""
    await _versioned(ctx, step, path).race(*(run_block(ctx, block, path) for block in step.blocks))


async def _loop(ctx: Context, step: Step, path: Path) -> Any:
    async def body(ctx: Context, state: list[Any]) -> Continue[list[Any]] | Break[Any]:
        results = await run_block(ctx, step.blocks[0], (*path, len(state)))
        kept = [*state, results]
        # Not the results: those of a loop that has ended are as its code was then.
        return Continue(kept) if len(kept) < step.times else Break(len(kept))

    return await _versioned(ctx, step, path).loop(body, [], forget_every=step.every)


async def _check(ctx: Context, step: Step, path: Path) -> list[Any]:
    note(ctx, step, path, "check")
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
    "many": _many,
    "child": _child,
    "promise": _promise,
    "signal": _signal,
    "publish": _publish,
    "step": _step,
    "handler": _handler,
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
    "many": "listen_started",
    "child": "child_scheduled",
    "promise": "promise_created",
    "signal": "signal_sent",
    "publish": "message_published",
    "step": "saga_step_registered",
    "handler": "signal_sent",
}


# What it should come to.


def expected(block: Block, path: Path, answers: dict[tuple[str, Path], int]) -> list[Any]:
    """Return what running a block should come to, with these answers of version checks."""
    return [[step.label, _value(step, path, answers)] for step in block if not step.removed]


def _value(step: Step, path: Path, answers: dict[tuple[str, Path], int]) -> Any:
    if step.kind == "check":
        return expected(step.blocks[answers[step.label, path] >= step.version], path, answers)
    if step.kind in ("branch", "handler"):
        return expected(step.blocks[0], path, answers)
    if step.kind == "gather":
        return [expected(block, path, answers) for block in step.blocks]
    if step.kind == "loop":
        return step.times
    if step.kind == "map":
        return [expected(step.blocks[0], (*path, number), answers) for number in range(step.times)]
    given: dict[str, Any] = {"op": step.label, "listen": "late", "many": [], "promise": 5}
    return list(path) if step.kind in ("act", "child", "step") else given.get(step.kind)
