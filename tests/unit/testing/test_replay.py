"""Replaying a history from its lines."""

import pytest

from resurgam import Break, Context, Continue, Registry, errors
from resurgam.testing import Environment, replay

registry = Registry()


@registry.activity
async def double(number: int) -> int:
    return 2 * number


async def four_times(ctx: Context, state: int) -> Break[int] | Continue[int]:
    await ctx.activity(double, state)
    return Continue(state + 1) if state < 3 else Break(state)


@registry.workflow
async def counting(ctx: Context) -> int:
    return await ctx.loop(four_times, 0, forget_every=2, keep_forgotten=3)


async def test_a_history_with_its_forgotten_entries_is_refused():
    async with Environment(registry=registry) as env:
        handle = await env.start(counting)
        assert await handle.result() == 3
        assert (await replay(counting, await handle.history())).diverged is None
        with pytest.raises(
            errors.CorruptHistory, match=r"must not contain forgotten entries, .* without forgotten=True"
        ):
            await replay(counting, await handle.history(forgotten=True))


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Divergences are logged; they are expected here."""
    caplog.set_level("CRITICAL", logger="resurgam")


@pytest.mark.parametrize("text", ["a\u2028b", "a\u2029b", "a\x85b", "a\x0cb", "a\x1cb", "a\nb", "a\rb", "plain"])
async def test_lines_are_split_at_newlines_only(text):
    """Other separators that Python's splitlines knows may occur in a string."""
    registry = Registry()

    @registry.workflow
    async def says(ctx: Context, said: str) -> str:
        return await ctx.run(lambda: said, name="say")

    async with Environment(registry=registry) as env:
        handle = await env.start(says, text)
        await env.finish(handle.result())
        history = await handle.history()

    report = await replay(says, "\n".join(entry.to_json() for entry in history))

    assert report.diverged is None
    assert report.result == text
