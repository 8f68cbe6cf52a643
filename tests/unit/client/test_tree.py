"""Which steps of a tree belong to one saga, and what became of it as a whole."""

from resurgam import Context, Registry, RetryPolicy
from resurgam.testing import Environment

registry = Registry()
ONCE = RetryPolicy(max_attempts=1)


@registry.activity
async def book(what: str) -> str:
    return what


@registry.activity
async def unbook(what: str) -> None: ...


@registry.activity(retry=ONCE)
async def refuse(what: str) -> str:
    raise LookupError(what)


@registry.workflow
async def two_sagas(ctx: Context) -> None:
    try:
        async with ctx.saga() as saga:
            await saga.step(book, "flight", undo=unbook)
            await saga.step(book, "hotel", undo=unbook)
            await saga.step(refuse, "car", undo=unbook)
    except Exception:
        pass
    async with ctx.saga() as saga:
        await saga.step(book, "train", undo=unbook)
        async with ctx.saga() as inner:
            await inner.step(book, "bike", undo=unbook)
        await ctx.listen("go")


@registry.workflow
async def not_undone(ctx: Context) -> None:
    async with ctx.saga() as saga:
        await saga.step(book, "flight", undo=refuse)
        await saga.step(refuse, "car")


@registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=1))
async def tried_twice(ctx: Context) -> None:
    async with ctx.saga() as saga:
        await saga.step(book, "flight", undo=unbook)
        if ctx.info.attempt == 1:
            raise LookupError("full")
        await saga.step(book, "hotel", undo=unbook)


def sagas(tree):
    [run] = tree.runs
    return [(step.kind, step.location, step.status, [one.location for one in step.steps]) for step in run.steps]


async def test_steps_are_grouped_by_their_saga():
    async with Environment(registry=registry) as env:
        handle = await env.start(two_sagas)
        assert sagas(await handle.tree()) == [
            ("saga", "{1}", "compensated", ["{1}", "{2}", "{3}"]),
            ("saga", "{4}", "open", ["{4}", "{5}"]),
        ]
        await handle.signal("go")
        await env.settle()
        assert sagas(await handle.tree())[1] == ("saga", "{4}", "completed", ["{4}", "{5}"])


async def test_a_saga_that_could_not_be_taken_back_has_failed():
    async with Environment(registry=registry) as env:
        handle = await env.start(not_undone)
        assert sagas(await handle.tree()) == [("saga", "{1}", "failed", ["{1}", "{2}"])]


async def test_attempts_of_a_workflow_share_their_saga():
    async with Environment(registry=registry) as env:
        handle = await env.start(tried_twice)
        assert sagas(await handle.tree()) == [("saga", "{1}", "compensated", ["{1}"])]
        await env.advance(5)
        assert sagas(await handle.tree()) == [("saga", "{1}", "completed", ["{1}", "{2}"])]
