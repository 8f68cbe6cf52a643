"""Code that is missing when the engine starts again: its records can still be read, and other runs go on."""

import importlib
import sys
from types import SimpleNamespace

import pytest

from resurgam import Context, Registry, RetryPolicy, errors
from resurgam.testing import Environment, ManualClock

MODULE = "shop_of_yesterday"
SOURCE = """
from dataclasses import dataclass

class OutOfStock(Exception):
    def __init__(self, item: str, left: int) -> None:
        super().__init__(f"{left} of {item} left")
        self.item, self.left = item, left

@dataclass
class Order:
    item: str
    pieces: int

def reserve(item: str) -> None:
    raise OutOfStock(item, 2) from KeyError(item)
"""
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def yesterday(tmp_path, monkeypatch):
    """The module that will be gone, and what makes it so."""
    (tmp_path / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module(MODULE)

    def remove():
        (tmp_path / f"{MODULE}.py").unlink()
        sys.modules.pop(MODULE)
        importlib.invalidate_caches()
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(MODULE)

    yield SimpleNamespace(module=module, remove=remove, clock=ManualClock(), store=f"sqlite:///{tmp_path}/shop.db")
    sys.modules.pop(MODULE, None)


def world(yesterday, registry):
    return Environment(store=yesterday.store, clock=yesterday.clock, registry=registry)


def add_neighbour(registry):
    """Register a workflow that has nothing to do with any of this."""

    @registry.activity
    async def echo(value: int) -> int:
        return value

    @registry.workflow
    async def neighbour(ctx: Context, value: int) -> int:
        return await ctx.activity(echo, value) + await ctx.listen("more", type=int)

    return registry


def check_remote(error):
    """Check that everything is there that was recorded of the exception, under its own name."""
    assert type(error) is errors.RemoteError
    assert (error.type_name, error.message, str(error)) == (f"{MODULE}.OutOfStock", "2 of tea left", "2 of tea left")
    assert "Traceback (most recent call last)" in error.traceback
    assert f"{MODULE}.py" in error.traceback
    assert "in reserve" in error.traceback
    assert type(error.__cause__) is KeyError


# Exceptions.


async def test_a_workflow_that_failed_with_an_exception_that_is_gone_still_tells_of_it(yesterday):
    before = Registry()

    @before.workflow
    async def sell(ctx: Context, item: str) -> None:
        yesterday.module.reserve(item)

    async with world(yesterday, before) as env:
        handle = await env.start(sell, "tea", id="sold")
        with pytest.raises(errors.WorkflowFailed) as known:
            await env.finish(handle.result())
        assert type(known.value.cause) is yesterday.module.OutOfStock
    yesterday.remove()

    async with world(yesterday, Registry()) as env:
        with pytest.raises(errors.WorkflowFailed) as found:
            await env.engine.handle("sold").result()
        check_remote(found.value.cause)
        check_remote((await env.engine.handle("sold").describe()).error)
    assert str(found.value) == "workflow 'sell' (sold) failed: shop_of_yesterday.OutOfStock: 2 of tea left"


def selling(reserve, *, by):
    """Return the same workflow, whatever its activity or operation does."""
    registry = add_neighbour(Registry())
    reserving = registry.activity(retry=ONCE)(reserve)

    @registry.workflow
    async def sell(ctx: Context, item: str) -> list[str]:
        try:
            await (ctx.activity(reserving, item) if by == "activity" else ctx.run(reserve, item))
        except (errors.ActivityFailed, errors.OperationFailed) as failed:
            heard.append(failed.cause)
            await ctx.listen("go")
            return [str(failed), str(failed.cause)]
        return []

    heard: list[BaseException | None] = []
    return registry, heard


@pytest.mark.parametrize("by", ["activity", "operation"])
async def test_a_run_that_handles_an_exception_that_is_gone_replays_and_goes_on(yesterday, by):
    """Its code hears of the same failure, under a type that stands for the one that is gone."""
    before, known = selling(yesterday.module.reserve, by=by)
    async with world(yesterday, before) as env:
        await env.start("sell", "tea", id="sold")
        await env.start("neighbour", 1, id="neighbour")
    assert type(known[0]) is yesterday.module.OutOfStock
    yesterday.remove()

    def reserve(item: str) -> None:
        raise AssertionError("it is recorded and not run again")

    after, heard = selling(reserve, by=by)
    async with world(yesterday, after) as env:
        await env.engine.handle("sold").signal("go")
        await env.engine.handle("neighbour").signal("more", 2)
        result = await env.finish(env.engine.handle("sold").result())
        assert await env.finish(env.engine.handle("neighbour").result()) == 3

    check_remote(heard[0])
    assert result[0].endswith("shop_of_yesterday.OutOfStock: 2 of tea left")
    assert result[1] == "2 of tea left"


# Values.


def ordering(order_type, *, by):
    """Return the same workflow, with a type of its own for what it is given, or is answered."""
    registry = add_neighbour(Registry())

    async def place(item: str) -> order_type:
        return order_type(item, 3)

    placing = registry.activity(place)

    given = order_type if by == "argument" else str

    async def sell(ctx: Context, order: given) -> str:
        if by != "argument":
            order = await (ctx.activity(placing, order) if by == "activity" else ctx.run(place, order))
        await ctx.sleep(3600)
        return f"{order.pieces} of {order.item}"

    registry.workflow(sell)
    return registry


def order_of(fields):
    """Return a dataclass that has the name of the one that is gone, and these fields."""
    names: dict[str, object] = {}
    lines = "\n".join(f"    {field}" for field in fields)
    exec(f"from dataclasses import dataclass\n@dataclass\nclass Order:\n{lines}", names)
    return names["Order"]


BY = ["argument", "activity", "operation"]


async def begin(yesterday, by):
    """Let runs come to where they wait, then take the module away."""
    async with world(yesterday, ordering(yesterday.module.Order, by=by)) as env:
        given = yesterday.module.Order("tea", 3) if by == "argument" else "tea"
        await env.start("sell", given, id="sold")
        await env.start("neighbour", 1, id="neighbour")
    yesterday.remove()


@pytest.mark.parametrize("by", BY)
async def test_values_are_told_by_their_fields_whatever_their_class_is_called_now(yesterday, by):
    """A class that has moved, and can hold what was recorded, takes the place of the one that is gone."""
    await begin(yesterday, by)

    moved = order_of(["item: str", "pieces: int", "gift: bool = False"])
    async with world(yesterday, ordering(moved, by=by)) as env:
        assert await env.finish(env.engine.handle("sold").result()) == "3 of tea"


PATHS = {
    "argument": "workflow 'sell', argument 'order'",
    "activity": "result of 'place'",
    "operation": "result of 'place'",
}


@pytest.mark.parametrize("by", BY)
async def test_a_value_that_can_no_longer_be_read_parks_its_run_only(yesterday, by, caplog):
    """The diagnosis names the value and the field that is missing; code that can read it takes the run up again."""
    await begin(yesterday, by)

    caplog.clear()
    async with world(yesterday, ordering(order_of(["item: str", "crates: int"]), by=by)) as env:
        await env.advance(2 * 3600)  # it is taken up when its timer fires
        parked = await env.engine.handle("sold").describe()
        await env.engine.handle("neighbour").signal("more", 2)
        assert await env.finish(env.engine.handle("neighbour").result()) == 3
        with pytest.raises(errors.ResultTimeout, match=r"it is diverged: .*crates"):
            await env.engine.handle("sold").result(timeout=0)

    assert parked.status == "diverged"
    assert PATHS[by] in str(parked.error)
    assert "missing required field crates" in str(parked.error)
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"workflow 'sell' (sold) diverged: {parked.error}"]

    async with world(yesterday, ordering(order_of(["item: str", "pieces: int"]), by=by)) as env:
        assert await env.finish(env.engine.handle("sold").result()) == "3 of tea"


async def test_a_value_that_comes_when_it_can_no_longer_be_read_parks_its_run_too(yesterday):
    """It is in the inbox when the new code comes, and stays known for code that can read it."""

    def asking(order_type):
        registry = Registry()

        async def place(item: str) -> order_type:
            return order_type(item, 3)

        placing = registry.activity(queue="elsewhere")(place)

        @registry.workflow
        async def sell(ctx: Context, item: str) -> int:
            return (await ctx.activity(placing, item)).pieces

        return registry

    async with world(yesterday, asking(yesterday.module.Order)) as env:
        await env.start("sell", "tea", id="sold")
    options = {"store": yesterday.store, "clock": yesterday.clock, "queues": ["elsewhere"]}
    async with Environment(registry=asking(yesterday.module.Order), **options) as env:
        await env.settle()
    yesterday.remove()

    async with world(yesterday, asking(order_of(["item: str", "crates: int"]))) as env:
        await env.settle()
        parked = await env.engine.handle("sold").describe()
    assert parked.status == "diverged"
    assert "result of 'place'" in str(parked.error)
    assert "missing required field crates" in str(parked.error)

    async with world(yesterday, asking(order_of(["item: str", "pieces: int"]))) as env:
        assert await env.finish(env.engine.handle("sold").result()) == 3


async def test_a_result_that_can_no_longer_be_read_is_an_error_of_the_caller(yesterday):
    """The run has ended, and stays so: only the asker's type does not fit."""

    def packing(order_type):
        registry = Registry()

        async def pack(ctx: Context) -> order_type:
            return order_type("tea", 3)

        registry.workflow(pack)
        return registry

    async with world(yesterday, packing(yesterday.module.Order)) as env:
        handle = await env.start("pack", id="packed")
        await env.finish(handle.result())
    yesterday.remove()

    async with world(yesterday, packing(order_of(["item: str", "crates: int"]))) as env:
        with pytest.raises(
            errors.SerializationError, match="result of workflow 'pack': Object missing required field crates"
        ):
            await env.engine.handle("packed").result()
        assert (await env.engine.handle("packed").describe()).status == "completed"
    async with world(yesterday, Registry()) as env:
        assert await env.engine.handle("packed").result() == {"item": "tea", "pieces": 3}
