"""Random concurrent programs: a small tree language, a strategy that draws trees, and a workflow that runs them.

Programs nest concurrency (gather, task groups, races, timeouts, branches), share one list, and take decisions on what
stands in it. That is the code for which replay is hard: the order in which strands move shows in everything they do.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from msgspec import Raw

from resurgam import Break, Context, Continue, Registry, RetryPolicy, SignalTimeout
from resurgam.core import event as events
from resurgam.errors import (
    ActivityFailed,
    AlreadyExists,
    ChildWorkflowFailed,
    OperationFailed,
    PromiseRejected,
    PromiseTimeout,
    SignalFailed,
)

Node = list[Any]
registry = Registry()

LEAVES = ("act", "fail", "sleep", "op", "state", "listen", "random", "until")
SAID = ("signal", "publish", "many", "doomed", "own_promise")
SHARED = ("promise", "settled")
"""Promises whose names others may have in use: that is told by what else is open, also in loops that are forgotten."""
ENDINGS = ("flop", "anew")
NEST_ONE = ("child", "called_off", "saga")
NESTS = ("gather", "group", "race", "timeout", "wait", "branch", "shield", "cancel")
RACES = frozenset({"race", "timeout", "wait", "cancel"})


@registry.activity
def act(value: int) -> int:
    """Return what it is given, negated."""
    return -value


@registry.activity(retry=RetryPolicy(max_attempts=1))
def fail(value: int) -> int:
    """Fail always."""
    raise ValueError(value)


@registry.activity
def undo(value: int | None) -> None:
    """Take back."""


@registry.activity(retry=RetryPolicy(max_attempts=2, jitter=0))
def undo_in_vain(value: int | None) -> None:
    """Fail to take back."""
    raise ValueError(value)


@registry.workflow
async def doomed(ctx: Context, value: int) -> None:
    """Do something, and fail."""
    await ctx.activity(act, value)
    raise ValueError(value)


class Flop(Exception):
    """What ends the first attempt of a program."""


@registry.workflow(retry=RetryPolicy(max_attempts=2, jitter=0))
async def program(ctx: Context, tree: list[Any]) -> list[Any]:
    """Run a tree and return everything that happened, in the order in which it did."""
    seen: list[Any] = []
    try:
        await run(ctx, tree, seen)
    except (ActivityFailed, OperationFailed, TimeoutError, ExceptionGroup) as error:
        seen.append(type(error).__name__)
    except asyncio.CancelledError:
        seen.append(["cleaned", await ctx.activity(act, 99)])
    return seen


async def run(ctx: Context, node: Node, seen: list[Any]) -> Any:
    """Run one node of a tree."""
    value = await _RUN[node[0]](ctx, node, seen)
    seen.append([node[0], value])
    noted = ctx._recorder.__dict__.setdefault("noted", [])  # what a test sees of a run that has not ended
    noted.append((ctx._recorder.scope().location, node[0], value))
    return value


async def _seq(ctx: Context, node: Node, seen: list[Any]) -> int:
    for child in node[1]:
        await run(ctx, child, seen)
    return len(seen)


async def _decide(ctx: Context, node: Node, seen: list[Any]) -> Any:
    return await run(ctx, node[1][len(seen) % len(node[1])], seen)


async def _act(ctx: Context, node: Node, seen: list[Any]) -> int:
    return await ctx.activity(act, node[1] + len(seen))


async def _fail(ctx: Context, node: Node, seen: list[Any]) -> str:
    try:
        return str(await ctx.activity(fail, node[1]))
    except ActivityFailed as error:
        if node[1] % 2:
            raise
        return str(error)


async def _sleep(ctx: Context, node: Node, seen: list[Any]) -> str:
    await (asyncio.sleep(node[1] / 10) if node[1] % 2 else ctx.sleep(node[1] / 10))
    return ctx.now().isoformat()


async def _op(ctx: Context, node: Node, seen: list[Any]) -> int:
    async def later() -> int:
        return node[1] * 2

    return await (ctx.run(later, name="later") if node[1] % 2 else ctx.run(lambda: node[1] * 3, name="at once"))


async def _state(ctx: Context, node: Node, seen: list[Any]) -> Any:
    before = ctx.get("k", 0)
    if before % 3 == 2:
        ctx.clear("k")
        ctx.tag(k=str(node))
    else:
        ctx.set("k", before + 1)
    return before


async def _listen(ctx: Context, node: Node, seen: list[Any]) -> Any:
    try:
        return await ctx.listen("s", "t", timeout=node[1] / 10)
    except SignalTimeout:
        return None


async def _random(ctx: Context, node: Node, seen: list[Any]) -> list[Any]:
    return [ctx.random.random(), str(ctx.uuid4()), ctx.info.history_length]


async def _until(ctx: Context, node: Node, seen: list[Any]) -> int:
    goal = len(seen) + 1
    helper = asyncio.create_task(run(ctx, ["act", node[1]], seen))
    await ctx.until(lambda: len(seen) >= goal)
    await helper
    return len(seen)


async def _gather(ctx: Context, node: Node, seen: list[Any]) -> Any:
    results = await asyncio.gather(*(run(ctx, child, seen) for child in node[1]), return_exceptions=True)
    return [type(r).__name__ if isinstance(r, BaseException) else r for r in results]


async def _group(ctx: Context, node: Node, seen: list[Any]) -> int:
    async with asyncio.TaskGroup() as group:
        for child in node[1]:
            group.create_task(run(ctx, child, seen))
        group.create_task(ctx.activity(act, 7))
    return len(seen)


async def _race(ctx: Context, node: Node, seen: list[Any]) -> Any:
    index, _ = await ctx.race(ctx.activity(act, 5), *(run(ctx, child, seen) for child in node[1]))
    return index


async def _timeout(ctx: Context, node: Node, seen: list[Any]) -> Any:
    try:
        if len(node[1]) > 1:
            return await asyncio.wait_for(run(ctx, node[1][0], seen), 0.25)
        async with asyncio.timeout(0.35):
            return await run(ctx, node[1][0], seen)
    except TimeoutError:
        return "late"


async def _wait(ctx: Context, node: Node, seen: list[Any]) -> int:
    todo = {asyncio.create_task(run(ctx, child, seen)) for child in node[1]}
    rounds = 0
    while todo:
        done, todo = await asyncio.wait(todo, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            seen.append(["done", task.exception() is None])
        rounds += 1
    return rounds


async def _branch(ctx: Context, node: Node, seen: list[Any]) -> Any:
    return await ctx.branch(_seq, node, seen, name="branch")


async def _shield(ctx: Context, node: Node, seen: list[Any]) -> Any:
    inner = asyncio.ensure_future(run(ctx, node[1][0], seen))
    try:
        async with asyncio.timeout(0.15):
            return await asyncio.shield(inner)
    except TimeoutError:
        return ["after all", await inner]


async def _cancel(ctx: Context, node: Node, seen: list[Any]) -> Any:
    async def body() -> None:
        try:
            await run(ctx, node[1][0], seen)
        except asyncio.CancelledError:
            seen.append(["clean-up", await ctx.activity(act, 1)])
            raise

    task = asyncio.create_task(body())
    await ctx.activity(act, 3)
    task.cancel()
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    return type(outcome).__name__


async def _loop(ctx: Context, node: Node, seen: list[Any]) -> Any:
    async def body(ctx: Context, state: list[Any]) -> Continue[list[Any]] | Break[list[Any]]:
        done, children, times, kept = state
        mine: list[Any] = []
        for child in children:
            await run(ctx, child, mine)
        kept = [*kept, [done, len(mine), ctx.random.random(), ctx.get("k"), mine[-1:]]]
        return Break(kept) if done + 1 == times else Continue([done + 1, children, times, kept])

    _, children, every, times = node
    return await ctx.loop(body, [0, children, times, []], forget_every=every)


async def _map(ctx: Context, node: Node, seen: list[Any]) -> Any:
    async def each(ctx: Context, child: Node) -> Any:
        return await run(ctx, child, seen)

    results = await ctx.map(each, node[1], limit=node[2])
    return len(results)


async def _queue(ctx: Context, node: Node, seen: list[Any]) -> int:
    queue: asyncio.Queue[object] = asyncio.Queue()

    async def produce() -> None:
        try:
            for child in node[1]:
                queue.put_nowait(await run(ctx, child, seen))
        finally:
            queue.put_nowait(queue)

    producer, count = asyncio.create_task(produce()), 0
    while await queue.get() is not queue:
        seen.append(["got", await ctx.activity(act, count)])
        count += 1
    await producer
    return count


# What it says to others, and what they say.


async def _promise(ctx: Context, node: Node, seen: list[Any]) -> Any:
    try:
        return await ctx.promise(f"p{node[1] % 4}", timeout=None if node[1] % 4 < 2 else node[1] / 10)
    except (AlreadyExists, PromiseRejected, PromiseTimeout) as error:
        return type(error).__name__


async def _settled(ctx: Context, node: Node, seen: list[Any]) -> Any:
    try:
        promise = ctx.promise(f"q{node[1] % 3}", timeout=node[1] / 10)
    except AlreadyExists:
        return "taken"
    first = await ctx.resolve(promise.promise_id, node[1]) if node[1] % 2 else None
    try:
        return [first, await promise]
    except PromiseTimeout:
        return [first, "late"]


async def _own_promise(ctx: Context, node: Node, seen: list[Any]) -> Any:
    kind = "settled" if node[1] % 2 else "alone"
    try:
        promise = ctx.promise(f"{kind} {ctx._recorder.scope().location} {len(seen)}", timeout=node[1] / 10)
        first = await ctx.resolve(promise.promise_id, node[1]) if node[1] % 3 else None
        return [first, await promise]
    except PromiseTimeout:
        return "late"


async def _signal(ctx: Context, node: Node, seen: list[Any]) -> str:
    try:
        await ctx.signal("unknown" if node[1] % 3 == 0 else ctx.info.entity_id, "s", node[1])
    except SignalFailed:
        return "unknown"
    return "sent"


async def _publish(ctx: Context, node: Node, seen: list[Any]) -> None:
    await ctx.publish("topic", len(seen))


async def _many(ctx: Context, node: Node, seen: list[Any]) -> Any:
    return await ctx.listen_many("s", "t", limit=1 + node[1] % 3, timeout=node[1] / 10)


async def _doomed(ctx: Context, node: Node, seen: list[Any]) -> str:
    try:
        await ctx.workflow(doomed, node[1])
    except ChildWorkflowFailed as error:
        return type(error.__cause__).__name__
    return "never"


async def _child(ctx: Context, node: Node, seen: list[Any]) -> Any:
    child = ctx.workflow(program, ["seq", node[1]])
    if len(seen) % 2:
        try:
            await child.signal("s", len(seen))
        except SignalFailed:
            seen.append("too late")
    return len(await child)


async def _called_off(ctx: Context, node: Node, seen: list[Any]) -> Any:
    child = ctx.workflow(program, ["seq", node[1]])
    if len(seen) % 3:
        await ctx.activity(act, 2)
    child.cancel()
    return [type(outcome).__name__ for outcome in await asyncio.gather(child, return_exceptions=True)]


async def _saga(ctx: Context, node: Node, seen: list[Any]) -> str:
    try:
        async with ctx.saga() as saga:
            for number, child in enumerate(node[1]):
                await saga.step(act, len(seen), undo=undo if number else undo_in_vain)
                await run(ctx, child, seen)
            if len(seen) % 2:
                raise LookupError
            await saga.step(fail, 1, undo=undo, undo_on_unknown=len(node[1]) > 1)
    except (LookupError, ActivityFailed) as error:
        return type(error).__name__
    return "never"


async def _handle(ctx: Context, node: Node, seen: list[Any]) -> None:
    """Signals and updates are handled from here on, beside whatever else there is."""

    @ctx.on_signal("t")
    async def heard(value: int) -> None:
        seen.append(["heard", await ctx.activity(act, value)])

    @ctx.on_update("u", validator=_refuse_odd, one_at_a_time=node[1] % 2 == 1)
    async def updated(value: int) -> int:
        seen.append(["updated", value])
        if value == 2:
            return value
        await ctx.sleep(value / 20)
        return await ctx.activity(act if value % 4 else fail, value)

    if node[1] % 3 == 2:
        await ctx.handlers_finished()


def _refuse_odd(value: int) -> None:
    if value % 2:
        raise ValueError("odd")


# How an execution ends before its program has.


async def _flop(ctx: Context, node: Node, seen: list[Any]) -> int:
    if ctx.info.attempt == 1 and node[1] % 2:
        raise Flop
    return ctx.info.attempt


async def _anew(ctx: Context, node: Node, seen: list[Any]) -> int:
    if ctx.info.generation == 1 and node[1] % 2:
        ctx.continue_as_new(["seq", [["many", node[1]], ["act", 1]]], signals="carry" if node[1] % 3 else "drop")
    return ctx.info.generation


_RUN: dict[str, Callable[[Context, Node, list[Any]], Any]] = {
    name.removeprefix("_"): function for name, function in globals().items() if asyncio.iscoroutinefunction(function)
}


def _nodes(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(children, min_size=1, max_size=3)
    # Concurrency is what these programs are about, so it is drawn three times as often as plain sequence.
    kinds = st.sampled_from(NESTS * 3 + ("seq", "decide") * 4 + NEST_ONE * 2)
    return st.tuples(kinds, several).map(list)


leaves = st.tuples(st.sampled_from((LEAVES + SAID + SHARED) * 4 + ENDINGS + ("handle",) * 4), st.integers(0, 9)).map(
    list
)
_parts = st.recursive(leaves, _nodes, max_leaves=8)
_trees = st.tuples(
    st.sampled_from(("seq", "gather", "group", "race", "wait")), st.lists(_parts, min_size=2, max_size=3)
).map(list)


def _with_life(tree: Node, handled: bool, ending: str | None) -> Node:
    parts = [["handle", 0]] * handled + [tree] + ([[ending, 1], ["act", 4]] if ending else [])
    return ["seq", parts] if len(parts) > 1 else tree


trees: st.SearchStrategy[Node] = st.builds(
    _with_life, _trees, st.booleans(), st.sampled_from((None, None, None, "flop", "anew"))
)


def _looping_nodes(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(children, min_size=1, max_size=3)
    loops = st.tuples(st.just("loop"), several, st.sampled_from((None, 1, 2, 3)), st.integers(1, 5)).map(list)
    maps = st.tuples(st.just("map"), several, st.sampled_from((None, 1, 2))).map(list)
    others = st.tuples(
        st.sampled_from(("queue", "shield", "race", "gather", "branch", "seq", "child", "saga")), several
    ).map(list)
    return loops | loops | loops | loops | maps | others


# Beside a loop that forgets, no code reads what it sets: see test_forgetting.py.
_stateless = st.tuples(
    st.sampled_from([leaf for leaf in LEAVES if leaf != "state"] * 8 + list(SAID) * 6 + list(ENDINGS)),
    st.integers(0, 9),
).map(list)
# Handlers beside a loop that forgets change durable state only, so these, which share a list, are not among them.
_unhandled = st.tuples(st.sampled_from(LEAVES * 8 + SAID * 6 + ENDINGS), st.integers(0, 9)).map(list)
_looping_parts = st.recursive(_stateless, _looping_nodes, max_leaves=6)
_loops_beside = st.tuples(
    st.sampled_from(("seq", "gather", "race")), st.lists(_looping_nodes(_looping_parts), min_size=1, max_size=2)
).map(list)


def _loop_of(parts: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(parts, min_size=1, max_size=3)
    return st.tuples(st.just("loop"), several, st.sampled_from((None, 1, 2, 3)), st.integers(1, 5)).map(list)


_inner = _nodes(_unhandled) | _unhandled
_loops_in_order = st.tuples(
    st.just("seq"), st.lists(_loop_of(_inner | _loop_of(_inner)) | _unhandled, min_size=1, max_size=3)
).map(list)
looping_trees: st.SearchStrategy[Node] = _loops_beside | _loops_in_order
"""Programs with loops that forget or do not, in and around concurrency."""


class Settled(dict[str, Any]):
    """How promises are settled, by their names; some by how their name begins."""

    def __contains__(self, name: object) -> bool:
        return str(name).startswith("settled") or super().__contains__(name)

    def __missing__(self, name: str) -> Any:
        return 10


def outside(seed: int) -> dict[str, Any]:
    """Draw what reaches a program from outside: signals, updates, sometimes the request to cancel, settled promises."""
    chance = random.Random(seed)
    drawn: list[events.Event] = [
        events.SignalReceived(name=chance.choice("st"), id=f"{n}", value=Raw(b"%d" % n))
        for n in range(chance.randrange(4))
    ]
    for number in range(chance.randrange(3)):
        value = chance.choice((0, 1, 2, 2, 6))
        update = events.UpdateAccepted(name="u", id=f"u{number}", input=Raw(b"[%d]" % value))
        drawn.insert(chance.randrange(len(drawn) + 1), update)
    if chance.random() < 0.15:
        drawn.insert(chance.randrange(len(drawn) + 1), events.CancelRequested())
    promises = Settled({"p0": 7, "p1": ValueError("no"), "q0": 8, "q1": 9})
    return {"messages": drawn, "promises": promises, "registry": registry}


def kinds(tree: Node) -> list[str]:
    """Return every kind of node in a tree."""
    inside = tree[1] if isinstance(tree[1], list) else []
    return [tree[0], *(kind for child in inside for kind in kinds(child))]


def nests_concurrency(tree: Node, depth: int = 0) -> bool:
    """Whether a tree has concurrency within concurrency."""
    here = depth + (tree[0] in NESTS)
    inside = tree[1] if isinstance(tree[1], list) else []
    return here >= 2 or any(nests_concurrency(child, here) for child in inside)
