"""Wrong arguments of the calls that came with versions and loops: refused, and nothing is written that cannot be read."""

import pytest

from resurgam import Break, Context, Continue, Registry, RetryPolicy, errors
from resurgam.testing import Environment, replay

registry = Registry()


@registry.activity
async def double(number: int) -> int:
    return 2 * number


async def once(ctx: Context, state: object) -> Break[int]:
    return Break(1)


def not_async(ctx: Context, state: object) -> Break[int]:
    return Break(1)


WRONG = {
    "v(True)": (lambda ctx: ctx.v(True).activity(double, 1), "ctx.v(True): a version is a whole number from 1"),
    "check_version(True)": (lambda ctx: ctx.check_version(True), "check_version(True): a version is a whole number"),
    "a version's name": (lambda ctx: ctx.check_version(2, name=3), "check_version: its name is 3"),
    "forget_every": (lambda ctx: ctx.loop(once, forget_every=True), "forget_every is True; it is a whole number"),
    "keep_forgotten": (lambda ctx: ctx.loop(once, keep_forgotten=False), "keep_forgotten is False; it is a whole"),
    "limit": (lambda ctx: ctx.map(double, [1], limit=True), "limit is True; it is a whole number from 1"),
    "a removed branch": (lambda ctx: ctx.removed.branch(3), "ctx.removed.branch(3): say which, by its name"),
    "a removed listener": (lambda ctx: ctx.removed.listen(3), "ctx.removed.listen(3): say which, by its name"),
    "a removed check": (lambda ctx: ctx.removed.check_version(3), "ctx.removed.check_version(3): say which"),
    "a body that is not async": (lambda ctx: ctx.loop(not_async), "is not async; write async def"),
    "a map by name": (lambda ctx: ctx.map("double", [1]), "ctx.map: 'double' is no activity, and no async function"),
    "a map of nothing": (lambda ctx: ctx.map(None, [1]), "ctx.map: None is no activity, and no async function"),
    "a key by name": (lambda ctx: ctx.map(double, [1], key="id"), "key is 'id'; it is a function of an item"),
}


@registry.workflow
async def wrong(ctx: Context, what: str) -> None:
    await WRONG[what][0](ctx)


@pytest.mark.parametrize("what", WRONG)
async def test_it_is_refused_in_words_and_the_history_can_be_read(what):
    async with Environment(store="sqlite://", registry=registry) as env:
        handle = await env.start(wrong, what)
        with pytest.raises(errors.WorkflowFailed) as failed:
            await handle.result()
        assert WRONG[what][1] in str(failed.value)
        await handle.history()  # can be read


async def four_times(ctx: Context, state: int) -> Break[int] | Continue[int]:
    await ctx.activity(double, state)
    return Continue(state + 1) if state < 3 else Break(state)


@registry.workflow
async def counting(ctx: Context) -> int:
    return await ctx.loop(four_times, 0, forget_every=2, keep_forgotten=3)


async def test_a_history_with_what_it_has_forgotten_is_not_one_with_a_gap():
    async with Environment(registry=registry) as env:
        handle = await env.start(counting)
        assert await handle.result() == 3
        assert (await replay(counting, await handle.history())).diverged is None
        with pytest.raises(
            errors.CorruptHistory, match=r"must not contain forgotten entries, .* without forgotten=True"
        ):
            await replay(counting, await handle.history(forgotten=True))


def test_a_number_of_attempts_is_not_true():
    with pytest.raises(ValueError, match="max_attempts must be None or at least 1, got True"):
        RetryPolicy(max_attempts=True)
