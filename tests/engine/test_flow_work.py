"""Work items of flows, as workers run them: retries, memoized results, scripts, late results, compensation."""

import asyncio
from collections import Counter
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.errors import NonRetryable, RetryAfter
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.flows import model as m
from resurgam.flows.steps import Input, Meta
from support.engines import Engines
from support.flow_worlds import FlowWorld, flow_world, result_of

AT_ONCE = RetryPolicy(max_attempts=3, initial_interval=0, jitter=0)


async def test_an_attempt_that_fails_is_recorded_and_made_again(engines: Engines) -> None:
    async with flow_world(engines) as world:
        calls: list[int] = []

        @world.step(retry=AT_ONCE)
        async def total(price: int) -> int:
            calls.append(price)
            if len(calls) < 3:
                raise ConnectionError("not now")
            return price * 2

        async with world.worker():
            await world.start(["total"], {"price": 4})
            state = await world.ended()
        assert result_of(state) == {"total": 8}
        assert [kind for kind in await world.types() if kind != "work_started"] == [
            *("flow_started", "flow_activated", "step_started"),
            *("work_not_completed", "retry_scheduled") * 2,
            *("work_succeeded", "attribute_set", "step_completed"),
            *("flow_completed", "flow_digest_updated", "flow_deactivated"),
        ]


@pytest.mark.parametrize("error", [NonRetryable("never"), ConnectionError("not now")], ids=["at once", "at last"])
async def test_a_permanent_error_and_the_last_attempt_fail_the_work_item(engines: Engines, error: Exception) -> None:
    async with flow_world(engines) as world:
        calls: list[int] = []

        @world.step(retry=AT_ONCE)
        async def total() -> int:
            calls.append(1)
            raise error

        async with world.worker():
            await world.start(["total"])
            state = await world.ended()
        attempts = 1 if isinstance(error, NonRetryable) else 3
        kinds = Counter(await world.types())
        assert len(calls) == attempts
        assert (kinds["work_not_completed"], kinds["retry_scheduled"], kinds["work_failed"]) == (
            *(attempts - 1, attempts - 1),
            1,
        )
        assert state.failure is not None
        assert str(error) in state.failure.message
        found = await world.instance()
        assert (found.status, found.failure) == (Status.FAILED, type(error).__name__)


async def test_the_activity_may_say_when_it_is_attempted_again(engines: Engines) -> None:
    async with flow_world(engines) as world:
        calls: list[int] = []

        @world.step
        async def total() -> int:
            calls.append(1)
            if len(calls) == 1:
                raise RetryAfter(60)
            return 1

        async with world.worker() as worker:
            await world.start(["total"])
            await world.settle(worker)
            [retry] = [entry for entry in await world.log() if isinstance(entry, fe.RetryScheduled)]
            assert retry.next_retry_at == world.clock.now() + 60_000
            assert calls == [1]
            world.clock.move_to(retry.next_retry_at)
            assert result_of(await world.ended()) == {"total": 1}


async def test_of_several_workers_one_makes_each_attempt(engines: Engines) -> None:
    """Also after a retry whose time has come for all of them, and after one has started anew."""
    async with flow_world(engines) as world:
        calls: list[int] = []
        may_end = asyncio.Event()

        @world.step(parallelism=4, retry=RetryPolicy(max_attempts=2, initial_interval=10, jitter=0))
        async def square(n: Annotated[int, Input(for_each=True)]) -> int:
            calls.append(n)
            if calls.count(n) == 1:
                raise ConnectionError("not now")
            await may_end.wait()
            return n * n

        async with world.worker() as first, world.worker() as second:
            await world.start(["square"], {"n": [1, 2, 3, 4]})
            await world.settle(first)
            await world.settle(second)
            assert sorted(calls) == [1, 2, 3, 4]
            world.clock.move_to(world.clock.now() + 10_000)
            await world.settle(first)
            await world.settle(second)
            async with world.worker() as third:
                await world.settle(third)
                assert sorted(calls) == [1, 1, 2, 2, 3, 3, 4, 4]
                may_end.set()
                state = await world.ended()
        assert result_of(state) == {"square": [{"n": n, "square": n * n} for n in (1, 2, 3, 4)]}
        assert len(calls) == 8
        attempts = Counter(entry.item for entry in await world.log() if isinstance(entry, fe.WorkStarted))
        assert attempts == dict.fromkeys((1, 2, 3, 4), 2)


class Undone:
    """Items that are charged one by one; *bad* ones fail."""

    def __init__(self, world: FlowWorld, bad: set[str], *, fails_undoing: int = 0) -> None:
        self.undone: list[Any] = []
        self.tried = 0
        self.may_fail = asyncio.Event()

        async def refund(what: dict[str, Any]) -> None:
            self.tried += 1
            if self.tried <= fails_undoing:
                raise RetryAfter(0)
            self.undone.append(what)

        @world.step(parallelism=5, compensate=refund)
        async def charge(item: Annotated[str, Input(for_each=True)], user: Annotated[str, Meta("user")]) -> str:
            if item in bad:
                await self.may_fail.wait()
                raise NonRetryable(f"no {item}")
            return f"charged {item}"


async def test_what_a_failed_step_has_done_is_undone_after_the_flow_has_failed(engines: Engines) -> None:
    async with flow_world(engines) as world:
        charged = Undone(world, {"b"}, fails_undoing=1)
        async with world.worker() as worker:
            await world.start(["charge"], {"item": ["a", "b", "c"]}, metadata={"user": "ada"})
            await world.settle(worker)
            charged.may_fail.set()
            state = await world.ended()
        assert state.status == "failed"
        assert sorted(charged.undone, key=str) == [
            {"input": {"item": item, "user": "ada"}, "output": {"charge": f"charged {item}"}} for item in "ac"
        ]
        kinds = await world.types()
        assert (kinds.count("comp_retry_scheduled"), kinds.count("comp_succeeded")) == (1, 2)
        assert kinds.index("flow_failed") < kinds.index("comp_succeeded")
        assert kinds[-1] == "flow_deactivated"


async def test_a_compensation_survives_the_worker_that_began_it(engines: Engines) -> None:
    async with flow_world(engines) as world:
        began, may_end = asyncio.Event(), asyncio.Event()
        undone: list[str] = []

        async def refund(what: dict[str, Any]) -> None:
            began.set()
            await may_end.wait()
            undone.append(what["output"]["charge"])

        @world.step(parallelism=2, compensate=refund)
        async def charge(item: Annotated[str, Input(for_each=True)]) -> str:
            if item == "b":
                raise NonRetryable("no")
            return item

        async with world.worker():
            await world.start(["charge"], {"item": ["a", "b"]})
            await began.wait()
        may_end.set()
        async with world.worker():
            await world.ended()
        assert undone == ["a"]
        assert (await world.types())[-2:] == ["comp_succeeded", "flow_deactivated"]


async def test_what_succeeds_after_its_step_has_failed_is_undone_too(engines: Engines) -> None:
    async with flow_world(engines) as world:
        may_end, undone = asyncio.Event(), list[str]()

        async def refund(what: dict[str, Any]) -> None:
            undone.append(what["output"]["charge"])

        @world.step(parallelism=2, compensate=refund)
        async def charge(item: Annotated[str, Input(for_each=True)]) -> str:
            if item == "b":
                raise NonRetryable("no")
            await may_end.wait()
            return item

        async with world.worker():
            await world.start(["charge"], {"item": ["a", "b"]})
            await world.until(Status.FAILED)
            assert undone == []
            may_end.set()
            await world.ended()
        assert undone == ["a"]
        assert (await world.types())[-4:] == ["work_succeeded", "comp_started", "comp_succeeded", "flow_deactivated"]


async def test_a_compensation_goes_on_when_its_flow_is_terminated(engines: Engines) -> None:
    async with flow_world(engines) as world:
        began, may_end = asyncio.Event(), asyncio.Event()

        async def refund(what: dict[str, Any]) -> None:
            began.set()
            await may_end.wait()

        @world.step(parallelism=2, compensate=refund)
        async def charge(item: Annotated[str, Input(for_each=True)]) -> str:
            if item == "b":
                raise NonRetryable("no")
            return item

        @world.step
        async def wait() -> int:
            await may_end.wait()
            return 1

        @world.step
        async def ship(wait: int, charge: Annotated[list[str], Input(collect="some")] = []) -> int:  # noqa: B006 -- a default of JSON
            return wait

        async with world.worker():
            await world.start(["ship"], {"item": ["a", "b"]})
            await began.wait()
            await world.send(events.WorkflowTerminated())
            await world.until(Status.TERMINATED)
            may_end.set()
            state = await world.ended()
        assert state.status == "terminated"
        assert (await world.types()).count("comp_succeeded") == 1


async def test_a_retry_that_waits_is_withdrawn_at_the_end(engines: Engines) -> None:
    async with flow_world(engines) as world:

        @world.step
        async def slow() -> int:
            raise RetryAfter(3600)

        async with world.worker() as worker:
            await world.start(["slow"])
            await world.settle(worker)
            await world.send(events.CancelRequested())
            await world.ended()
        assert (await world.types())[-6:] == [
            *("retry_scheduled", "cancel_requested", "flow_cancelled", "flow_digest_updated"),
            *("work_cancelled", "flow_deactivated"),
        ]


async def test_a_terminated_flow_records_what_still_runs_and_is_deactivated_then(engines: Engines) -> None:
    async with flow_world(engines) as world:
        may_end = asyncio.Event()

        @world.step
        async def slow() -> int:
            await may_end.wait()
            return 1

        @world.step
        async def after(slow: int) -> int:
            raise AssertionError("a terminated flow starts nothing")

        async with world.worker() as worker:
            await world.start(["after"])
            await world.settle(worker)
            await world.send(events.WorkflowTerminated(reason="enough"))
            await world.settle(worker)
            found = await world.instance()
            assert (found.status, found.deactivated) == (Status.TERMINATED, False)
            may_end.set()
            await world.ended()
        kinds = [kind for kind in await world.types() if kind != "work_started"]
        assert kinds == [
            *("flow_started", "flow_activated", "step_started", "workflow_terminated", "flow_digest_updated"),
            *("work_succeeded", "attribute_set", "step_completed", "flow_deactivated"),
        ]


async def test_an_attempt_that_fails_after_the_end_is_not_made_again(engines: Engines) -> None:
    async with flow_world(engines) as world:
        may_end, calls = asyncio.Event(), list[int]()

        @world.step(retry=AT_ONCE)
        async def slow() -> int:
            calls.append(1)
            await may_end.wait()
            raise ConnectionError("not now")

        async with world.worker() as worker:
            await world.start(["slow"])
            await world.settle(worker)
            await world.send(events.CancelRequested())
            await world.until(Status.CANCELLED)
            may_end.set()
            state = await world.ended()
        assert (state.status, calls) == ("cancelled", [1])
        kinds = await world.types()
        assert "retry_scheduled" not in kinds
        assert kinds[-3:] == ["work_not_completed", "work_cancelled", "flow_deactivated"]


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_work_that_no_worker_has_begun_is_withdrawn_at_the_end(engines: Engines, how: str) -> None:
    async with flow_world(engines) as world:

        @world.step(queue="elsewhere")
        async def slow() -> int:
            return 1

        async with world.worker() as worker:
            await world.start(["slow"])
            await world.settle(worker)
            await world.send(events.CancelRequested() if how == "cancel" else events.WorkflowTerminated())
            await world.ended()
        ends = ["cancel_requested", "flow_cancelled"] if how == "cancel" else ["workflow_terminated"]
        assert (await world.types())[3:] == [*ends, "flow_digest_updated", "work_cancelled", "flow_deactivated"]


async def test_a_paused_flow_starts_nothing_and_goes_on_when_it_is_resumed(engines: Engines) -> None:
    async with flow_world(engines) as world:
        may_end, calls = asyncio.Event(), list[str]()

        @world.step
        async def first() -> int:
            calls.append("first")
            await may_end.wait()
            return 1

        @world.step
        async def second(first: int) -> int:
            calls.append("second")
            return first + 1

        async with world.worker() as worker:
            await world.start(["second"])
            await world.settle(worker)
            await world.send(events.WorkflowPaused())
            await world.settle(worker)
            may_end.set()
            await world.settle(worker)
            assert calls == ["first"]
            assert (await world.instance()).status is Status.PAUSED
            await world.send(events.WorkflowResumed())
            assert result_of(await world.ended()) == {"second": 2}


async def test_a_memoized_result_is_used_by_every_flow_until_its_time_is_over(engines: Engines) -> None:
    async with flow_world(engines) as world:
        calls: list[int] = []

        @world.step(memoize=60)
        async def rate(currency: str) -> int:
            calls.append(1)
            return len(calls)

        async with world.worker():
            for number, (currency, result) in enumerate([("eur", 1), ("eur", 1), ("usd", 2), ("eur", 1)]):
                await world.start(["rate"], {"currency": currency}, f"f{number}")
                assert result_of(await world.ended(f"f{number}")) == {"rate": result}
            world.clock.move_to(world.clock.now() + 60_000)
            await world.start(["rate"], {"currency": "eur"}, "later")
            assert result_of(await world.ended("later")) == {"rate": 3}


async def test_a_failure_is_not_memoized_and_another_definition_has_another_result(engines: Engines) -> None:
    async with flow_world(engines) as world:
        calls: list[str] = []

        @world.step(memoize=True)
        async def rate(currency: str) -> int:
            calls.append("rate")
            if len(calls) == 1:
                raise NonRetryable("closed")
            return 1

        @world.step(memoize=True)
        async def fee(currency: str) -> int:
            calls.append("fee")
            return 2

        async with world.worker():
            await world.start(["rate"], {"currency": "eur"}, "failed")
            assert (await world.ended("failed")).status == "failed"
            await world.start(["rate", "fee"], {"currency": "eur"}, "again")
            assert result_of(await world.ended("again")) == {"rate": 1, "fee": 2}
            assert sorted(calls) == ["fee", "rate", "rate"]


async def test_memoized_items_of_the_last_step_complete_the_flow(engines: Engines) -> None:
    """Several items at a time have their results at once."""
    async with flow_world(engines) as world:
        calls: list[int] = []

        @world.step(memoize=True, parallelism=3)
        async def square(n: Annotated[int, Input(for_each=True)]) -> int:
            calls.append(n)
            return n * n

        async with world.worker():
            for name in ("first", "second"):
                await world.start(["square"], {"n": [1, 2, 3, 4]}, name)
                state = await world.ended(name)
                assert result_of(state) == {"square": [{"n": n, "square": n * n} for n in (1, 2, 3, 4)]}
        assert sorted(calls) == [1, 2, 3, 4]


class Point(TypedDict):
    """A result with fields."""

    x: int


async def test_an_argument_that_cannot_be_read_fails_its_step_and_not_the_one_that_gave_it(engines: Engines) -> None:
    async with flow_world(engines) as world:
        calls: list[str] = []

        @world.step
        async def locate() -> Point:
            return {"x": "far"}  # type: ignore[typeddict-item]  # a type that is not kept

        @world.step
        async def move(x: int) -> int:
            calls.append("move")
            return x

        world.step.defined["locate"] = msgspec.structs.replace(
            world.step.defined["locate"],
            attributes={"x": m.Output(output=m.OutputConfig(mapping=m.Mapping(script=cel("'far'"))))},
        )
        world.registry.replace("locate", gives_a_number)
        async with world.worker():
            await world.start(["move"])
            state = await world.ended()
        assert {name: str(step.status) for name, step in state.steps.items()} == {
            "locate": "completed",
            "move": "failed",
        }
        assert (await world.types()).count("work_not_completed") == 0
        assert calls == []


async def gives_a_number() -> Point:
    """Return a point."""
    return {"x": 1}


def cel(script: str) -> m.Expression:
    """Return an expression."""
    return m.Expression(language="cel", script=script)


def lua(step_id: str, script: str, output: str, **fields: Any) -> m.Step:
    """Return a step that is a script with the input n."""
    return m.Step(
        id=step_id,
        name=step_id,
        type="script",
        script=m.Expression(language="lua", script=script),
        attributes={"n": m.Required(), output: m.Output()},
        **fields,
    )


@pytest.mark.parametrize(
    ("script", "output", "result"),
    [("{ double = n * 2 }", "double", 8), ("n * 2", "twice", 8), ("n * 2", "result", 8), ("n == 4", "twice", True)],
)
async def test_a_script_is_a_step(engines: Engines, script: str, output: str, result: object) -> None:
    async with flow_world(engines) as world:
        world.steps.append(lua("twice", script, output))
        async with world.worker():
            await world.start(["twice"], {"n": 4})
            assert result_of(await world.ended()) == {output: result}


async def test_an_error_of_a_script_fails_its_step_at_once_and_no_other_flow(engines: Engines) -> None:
    async with flow_world(engines) as world:
        world.steps.append(lua("invert", "if n == 0 then error('no inverse') end return 1 / n", "invert"))
        async with world.worker():
            await world.start(["invert"], {"n": 0}, "zero")
            await world.start(["invert"], {"n": 2}, "two")
            failed, done = await world.ended("zero"), await world.ended("two")
        assert failed.failure is not None
        assert "no inverse" in failed.failure.message
        assert {"work_failed"} == {*await world.types("zero")} & {"work_failed", "work_not_completed"}
        assert result_of(done) == {"invert": 0.5}


async def test_a_script_can_be_memoized(engines: Engines) -> None:
    async with flow_world(engines) as world:
        world.steps.append(lua("twice", "n * 2", "twice", memoizable=True))
        async with world.worker():
            for name in ("first", "second"):
                await world.start(["twice"], {"n": 4}, name)
                assert result_of(await world.ended(name)) == {"twice": 8}
