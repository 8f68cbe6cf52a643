"""User code that raises unusual exceptions: it fails, and nothing else does."""

import asyncio
import sys
from dataclasses import dataclass

import pytest

from resurgam import Context, Engine, Registry, RetryAfter, RetryPolicy, errors
from resurgam.testing import Environment
from support.limits import HANGS

YEARS = 10 * 365 * 86400
ONCE = RetryPolicy(max_attempts=1)
registry = Registry()


class Base(BaseException):
    pass


class BrokenText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class BrokenBaseText(Exception):
    def __str__(self):
        raise Base("no text")


class BrokenNotes(Exception):
    def __init__(self):
        self.__notes__ = 5


class BrokenAddNote(Exception):
    def add_note(self, note):
        raise RuntimeError("no notes, please")


class BrokenArgs(Exception):
    @property
    def args(self):
        return 5


class ForeignPause(Exception):
    pause_ms = "soon"


def exits():
    sys.exit(3)


def raiser(error):
    def fail():
        raise error

    return fail


_TEXTLESS = __name__ + ".{0}: <{0} whose text cannot be made: {1}('no text')>"
# What is raised, and how it is told: (by a plain function, by a coroutine, by an activity that is a coroutine).
RAISED = {
    "base": (raiser(Base("b")), "Base: b", "Base: b", "Base: b"),
    "exit": (exits, "SystemExit: 3", "SystemExit: 3", "SystemExit: 3"),
    "generator_exit": (raiser(GeneratorExit()), "GeneratorExit", "GeneratorExit", "GeneratorExit"),
    "cancelled": (
        raiser(asyncio.CancelledError("c")),
        "CancelledError: c",
        "CancelledError: c",
        "RuntimeError: activity 'cancelled_async' was cancelled from within",
    ),
    "stop": (
        raiser(StopIteration(3)),
        "StopIteration: 3",
        "RuntimeError: coroutine raised StopIteration",
        "RuntimeError: coroutine raised StopIteration",
    ),
    "stop_async": (raiser(StopAsyncIteration()), *["StopAsyncIteration"] * 3),
    "group": (raiser(BaseExceptionGroup("g", [Base("b")])), *["BaseExceptionGroup: g (1 sub-exception)"] * 3),
    "text": (raiser(BrokenText()), *[_TEXTLESS.format("BrokenText", "RuntimeError")] * 3),
    "base_text": (raiser(BrokenBaseText()), *[_TEXTLESS.format("BrokenBaseText", "Base")] * 3),
    "notes": (raiser(BrokenNotes()), *["BrokenNotes"] * 3),
    "add_note": (raiser(BrokenAddNote("x")), *["BrokenAddNote: x"] * 3),
    "args": (raiser(BrokenArgs()), *["BrokenArgs: <an exception that cannot be read: TypeError>"] * 3),
    "big": (raiser(ValueError(2**70)), *["ValueError: 1180591620717411303424"] * 3),
}


def as_coroutine(function):
    async def coroutine():
        function()

    return coroutine


def asking(own):
    """Add a workflow that asks for an activity by its name, under its own policy, and tells how it failed."""

    @own.workflow
    async def asks(ctx: Context, name: str) -> str:
        try:
            await ctx.activity(own.activities.find(name))
        except errors.ActivityFailed as error:
            return str(error)
        return "nothing was raised"

    return asks


for _name, (_function, *_) in RAISED.items():
    registry.activity(name=f"{_name}_threaded", retry=ONCE)(_function)
    registry.activity(name=f"{_name}_async", retry=ONCE)(as_coroutine(_function))
asks = asking(registry)


@registry.workflow
async def operates(ctx: Context, name: str, kind: str) -> str:
    function = RAISED[name][0]
    try:
        await ctx.run(as_coroutine(function) if kind == "async" else function, name="op")
    except errors.OperationFailed as error:
        return str(error)
    return "nothing was raised"


@registry.workflow
async def raises(ctx: Context, name: str) -> None:
    RAISED[name][0]()


@registry.workflow
async def hello(ctx: Context) -> str:
    return "hello"


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Failed attempts are logged with tracebacks; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("kind", ["threaded", "async"])
async def test_whatever_an_activity_raises_is_its_failure(name, kind):
    """A failed attempt is recorded whatever was raised, and the worker goes on."""
    async with Environment(registry=registry) as env:
        told = await env.finish(env.engine.execute(asks, f"{name}_{kind}"))
        after = await env.finish(env.engine.execute(hello))

    assert told == f"activity '{name}_{kind}' failed after 1 attempt: {RAISED[name][1 if kind == 'threaded' else 3]}"
    assert after == "hello"


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_whatever_an_operation_raises_is_its_failure(name, kind):
    """It is recorded as the operation's answer, so the operation is run once."""
    async with Environment(registry=registry) as env:
        handle = await env.start(operates, name, kind)
        told = await env.finish(handle.result())
        history = await handle.history()
        after = await env.finish(env.engine.execute(hello))

    assert told == f"operation 'op' failed: {RAISED[name][1 if kind == 'plain' else 2]}"
    assert [entry.type for entry in history[:3]] == ["workflow_started", "operation_started", "operation_failed"]
    assert after == "hello"


@pytest.mark.parametrize("name", ["text", "base_text", "notes", "add_note", "args", "base", "exit", "big"])
async def test_whatever_a_workflow_raises_is_its_failure(name):
    """The run has failed, can be described, and the worker goes on."""
    async with Environment(registry=registry) as env:
        handle = await env.start(raises, name)
        with pytest.raises(errors.WorkflowFailed) as found:
            await env.finish(handle.result())
        description = await handle.describe()
        after = await env.finish(env.engine.execute(hello))

    assert str(found.value).endswith(f"failed: {RAISED[name][1]}")
    assert description.status == "failed"
    assert after == "hello"


# Pauses that an exception asks for.


async def test_a_retry_after_the_end_of_time_is_cut_to_ten_years():
    """However long a pause is asked for, the next attempt has a date, and the run can be described."""
    own = Registry()
    attempts = []

    @own.activity(retry=RetryPolicy(max_attempts=2))
    async def later() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise RetryAfter(9e10)
        return "done"

    @own.workflow
    async def wait(ctx: Context) -> str:
        return await ctx.activity(later)

    async with Environment(registry=own) as env:
        handle = await env.start(wait)
        begun = env.now()
        retry = (await handle.history())[-1]
        description = await handle.describe()
        result = await env.finish(handle.result(), limit=YEARS + 1)

        assert retry.type == "activity_retry_scheduled"
        assert retry.next_at - retry.at == YEARS * 1000
        assert description.waiting_for == ("activity 'later' on queue 'default' at {1}",)
        assert result == "done"
        assert (env.now() - begun).total_seconds() == YEARS


@pytest.mark.parametrize("pause", [5e11, 1e300, float("inf"), float("nan"), "soon", None])
async def test_a_retry_after_what_is_no_length_of_time_fails_like_any_error(pause):
    """The mistake is told where it was made: the attempt fails with it."""
    own = Registry()

    @own.activity(retry=ONCE)
    async def later() -> None:
        raise RetryAfter(pause)

    asking(own)
    async with Environment(registry=own) as env:
        told = await env.finish(env.engine.execute("asks", "later"))

    assert told == (
        f"activity 'later' failed after 1 attempt: ValueError: a duration must be seconds or a timedelta, got {pause!r}"
    )


async def test_a_policy_of_endless_intervals_pauses_ten_years():
    """An interval beyond any calendar is cut to one that has a date."""
    own = Registry()

    @own.activity(retry=RetryPolicy(max_attempts=2, initial_interval=1e300, max_interval=1e300))
    async def fails() -> None:
        raise ValueError("x")

    asking(own)
    async with Environment(registry=own) as env:
        handle = await env.start("asks", "fails")
        retry = (await handle.history())[-1]

    assert retry.next_at - retry.at == YEARS * 1000


async def test_a_pause_that_a_foreign_exception_carries_is_not_heeded():
    """Only RetryAfter says when to try again; an attribute of the same name means something else."""
    own = Registry()

    @own.activity(retry=RetryPolicy(max_attempts=2, initial_interval=3, jitter=0))
    async def fails() -> None:
        raise ForeignPause

    asking(own)
    async with Environment(registry=own) as env:
        begun = env.now()
        told = await env.finish(env.engine.execute("asks", "fails"))

        assert told == "activity 'fails' failed after 2 attempts: ForeignPause"
        assert (env.now() - begun).total_seconds() == 3


# Predicates of ctx.until.


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (asyncio.CancelledError(), "CancelledError()"),
        (StopIteration(), "RuntimeError('StopIteration()')"),
        (Base("b"), "Base('b')"),
        (SystemExit(3), "SystemExit(3)"),
        (ValueError("v"), "ValueError('v')"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_whatever_a_predicate_raises_is_raised_by_until(error, told):
    """ctx.until raises it in the workflow, which may handle it."""
    own = Registry()

    @own.workflow
    async def waits(ctx: Context) -> str:
        try:
            await ctx.until(raiser(error))
        except BaseException as raised:
            return repr(raised)
        return "nothing was raised"

    async with Environment(registry=own) as env:
        result = await env.finish(env.engine.execute(waits))

    assert result == told


async def test_a_predicate_that_asks_a_cancelled_task_ends_the_run():
    """A CancelledError without a request is the run's failure, and the lease is given back."""
    own = Registry()

    @own.workflow
    async def waits(ctx: Context) -> None:
        task = asyncio.create_task(asyncio.sleep(10))
        task.cancel()
        await asyncio.sleep(0)
        await ctx.until(lambda: task.done() and task.result() is None)

    async with Environment(registry=own) as env:
        handle = await env.start(waits)
        with pytest.raises(
            errors.WorkflowFailed, match="CancelledError: cancelled without a request to cancel the workflow"
        ):
            await env.finish(handle.result())
        await env.settle()

        assert env.engine.busy == 0


# Values whose class refuses them.


@dataclass
class Order:
    cents: int

    def __post_init__(self):
        assert self.cents > 0, "cents must be positive"


@dataclass
class Stop:
    cents: int

    def __post_init__(self):
        if self.cents <= 0:
            raise KeyError("cents")


@pytest.mark.parametrize("kind", [Order, Stop])
async def test_a_signal_that_its_class_refuses_is_an_error_in_the_code_that_listens(kind):
    """The sender's mistake is told to the listener, which goes on listening."""
    own = Registry()

    @own.workflow
    async def listens(ctx: Context) -> list[str]:
        try:
            await ctx.listen("order", type=kind)
        except errors.SerializationError as error:
            second = await ctx.listen("order", type=kind)
            return [str(error)[:14], str(second.cents)]
        return []

    async with Environment(registry=own) as env:
        handle = await env.start(listens)
        await handle.signal("order", {"cents": -1})
        await handle.signal("order", {"cents": 5})
        result = await env.finish(handle.result())

    assert result == ["signal 'order'", "5"]


@pytest.mark.parametrize("kind", [Order, Stop])
async def test_a_result_of_an_activity_that_its_class_refuses_is_its_failure(kind):
    """A value that could not be read back is refused when it is returned, and not tried again."""
    own = Registry()

    async def make():
        order = kind(1)
        order.cents = -1
        return order

    make.__annotations__["return"] = kind
    own.activity(make)
    asking(own)
    async with Environment(registry=own) as env:
        told = await env.finish(env.engine.execute("asks", "make"))

    assert told.startswith("activity 'make' failed after 1 attempt: SerializationError: result of activity 'make': ")


@pytest.mark.parametrize("kind", [Order, Stop])
async def test_a_result_of_a_workflow_that_its_class_refuses_is_its_failure(kind):
    """The run fails and says which value it was."""
    own = Registry()

    async def make(ctx):
        order = kind(1)
        order.cents = -1
        return order

    make.__annotations__["return"] = kind
    own.workflow(make)
    async with Environment(registry=own) as env:
        handle = await env.start("make")
        with pytest.raises(errors.WorkflowFailed, match=r"SerializationError: result of workflow 'make': .*cents"):
            await env.finish(handle.result())


# Clean-up and operations that do not give way.


async def test_clean_up_that_raises_a_base_exception_on_eviction_does_not_block_the_worker():
    """A hundred coroutines whose finally raises are put away like any other, and the engine closes."""
    own = Registry()
    cleaned = []

    @own.workflow
    async def bad(ctx: Context) -> None:
        try:
            await ctx.listen("never")
        finally:
            cleaned.append(1)
            raise Base("clean-up")

    own.workflow(name="hello")(hello.function)
    async with Environment(registry=own, cache_size=0) as env:
        for _ in range(100):
            await env.engine.start(bad)
        result = await env.finish(env.engine.execute("hello"))
        await env.settle()

        assert env.engine.busy == 0
    assert result == "hello"
    assert len(cleaned) == 100


async def test_clean_up_that_raises_a_base_exception_does_not_escape_from_the_engine():
    """Leaving the engine puts every cached coroutine and each of its strands away, whatever their clean-up raises."""
    own = Registry()
    cleaned = []

    @own.workflow
    async def bad(ctx: Context) -> None:
        async def strand(signal: str) -> None:
            try:
                await ctx.listen(signal)
            finally:
                cleaned.append(signal)
                raise Base("clean-up")

        await asyncio.gather(strand("a"), strand("b"))

    async with Environment(registry=own) as env:
        for _ in range(3):
            await env.start(bad)
        assert cleaned == []

    assert sorted(cleaned) == ["a", "a", "a", "b", "b", "b"]


async def test_an_operation_that_swallows_cancellation_does_not_hold_the_engine(monkeypatch):
    """It is waited for a little, then left behind, and the engine closes."""
    monkeypatch.setattr("resurgam.worker.tasks._CANCEL_TIMEOUT", 0.01)
    own = Registry()
    free = asyncio.Event()
    swallowed = []

    async def stubborn() -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                swallowed.append(1)

    @own.workflow
    async def operates_for_ever(ctx: Context) -> None:
        await ctx.run(stubborn)

    env = Environment(registry=own, grace=0, patience=0.01)
    await env.__aenter__()
    await env.start(operates_for_ever)
    leaving = asyncio.ensure_future(env.__aexit__(None, None, None))
    left, _ = await asyncio.wait({leaving}, timeout=HANGS)
    free.set()
    await leaving

    assert left == {leaving}
    assert swallowed != []


def with_exits(registry):
    """Return a workflow whose handlers call exit(), except for one."""

    @registry.workflow
    async def talk(ctx: Context) -> str:
        @ctx.on_query("exit")
        def leave() -> None:
            raise SystemExit(3)

        @ctx.on_query("fine")
        def fine() -> str:
            return "fine"

        @ctx.on_signal("exit")
        async def leave_too() -> None:
            raise SystemExit(3)

        @ctx.on_update("exit")
        async def leave_as_well() -> None:
            raise SystemExit(3)

        await ctx.listen("end")
        return "ended"

    return talk


def test_a_query_whose_handler_exits_leaves_the_worker_alive(tmp_path):
    registry = Registry()
    talk = with_exits(registry)
    url = f"sqlite:///{tmp_path}/x.db"

    async def main() -> str:
        async with Engine(url, registry=registry), Engine(url, registry=Registry(), worker=False) as client:
            handle = await client.start(talk, id="t")
            with pytest.raises(Exception, match="SystemExit"):
                await handle.query("exit", timeout=HANGS)
            return await handle.query("fine", timeout=HANGS)

    try:
        assert asyncio.run(main()) == "fine"
    except SystemExit:
        pytest.fail("the query ended the process of the worker")


async def test_a_signal_whose_handler_exits_fails_the_workflow():
    """As docs/reference/workflow-api.md says of any error that leaves the handler of a signal."""
    registry = Registry()
    talk = with_exits(registry)
    async with Environment(registry=registry) as env:
        handle = await env.start(talk)
        await handle.signal("exit")
        with pytest.raises(errors.WorkflowFailed):
            await env.finish(handle.result(timeout=60))


async def test_an_update_whose_handler_exits_is_answered():
    registry = Registry()
    talk = with_exits(registry)
    async with Environment(registry=registry) as env:
        handle = await env.start(talk)
        with pytest.raises(errors.UpdateRejected):
            await env.finish(handle.update("exit", timeout=60))


def test_a_validator_that_exits_rejects_the_update(tmp_path):
    """The worker lives on; otherwise the update in the inbox would end the next worker too."""
    registry = Registry()

    @registry.workflow
    async def strict(ctx: Context) -> None:
        def leave() -> None:
            raise SystemExit(3)

        @ctx.on_update("put", validator=leave)
        def put() -> None: ...

        await ctx.listen("end")

    async def ask() -> None:
        async with Engine(f"sqlite:///{tmp_path}/x.db", registry=registry) as engine:
            handle = await engine.start(strict, id="s", if_exists="attach")
            with pytest.raises(errors.UpdateRejected):
                await handle.update("put", id="one", timeout=HANGS)

    try:
        asyncio.run(ask())
    except SystemExit:
        pytest.fail("the validator ended the process of the worker")
