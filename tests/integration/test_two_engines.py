"""Two engines on one SQLite file, as two processes would have it: what one publishes, asks or settles, the other hears."""

import asyncio

from resurgam import Context, Engine, Registry
from support.limits import HANGS

registry = Registry()


@registry.workflow
async def tell(ctx: Context, count: int) -> list[str]:
    asked = ctx.promise("go", type=str)
    ctx.set("id", asked.promise_id)

    @ctx.on_query("count")
    def how_many() -> int:
        return count

    @ctx.on_update("twice")
    def twice(text: str) -> str:
        return text * 2

    got = [await asked, await ctx.listen("more", type=str)]
    for number in range(count):
        await ctx.publish("news", number)
    return got


async def test_a_client_without_the_code_talks_to_another_engines_workflow(tmp_path):
    url = f"sqlite:///{tmp_path}/talk.db?synchronous=off"
    async with (
        Engine(url, registry=registry) as serving,
        Engine(url, registry=Registry(), worker=False) as other,
        other.subscribe("news") as far,
        serving.subscribe("news") as near,
    ):
        handle = await other.start("tell", 20)
        assert await asyncio.wait_for(handle.query("count"), HANGS) == 20
        assert await asyncio.wait_for(handle.update("twice", "ab"), HANGS) == "abab"
        assert await other.resolve(await handle.state("id"), "first") is True
        assert await serving.resolve(await handle.state("id"), "second") is False
        await handle.signal("more", "more")
        assert await asyncio.wait_for(handle.result(), HANGS) == ["first", "more"]
        for subscription in (far, near):
            heard = [await asyncio.wait_for(anext(subscription), HANGS) for _ in range(20)]
            assert heard == list(range(20))
