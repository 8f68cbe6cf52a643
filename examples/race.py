"""The first of several wins: the winner is recorded, and the losers are cancelled.

Watch for: `race_decided` in the history, and `activity_cancelled` for the slow one.
"""

import asyncio

from resurgam import Context, Engine, activity, workflow


@activity
async def ask(mirror: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    return mirror


@workflow
async def fastest(ctx: Context) -> str:
    _, mirror = await ctx.race(
        ctx.activity(ask, "near", 0.05),
        ctx.activity(ask, "far", 5.0),
    )
    return mirror


async def main() -> None:
    async with Engine(grace=0) as engine:
        handle = await engine.start(fastest)
        print("fastest:", await handle.result())
        print([event.type for event in await handle.history()])


if __name__ == "__main__":
    asyncio.run(main())
