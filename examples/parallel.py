"""Concurrency with plain asyncio: gather and TaskGroup work as usual and are replayed exactly.

Watch for: every task has locations of its own, `{1, 1}` and `{2, 1}`, whichever finishes first.
"""

import asyncio

from resurgam import Context, Engine, activity, workflow


@activity
async def price(item: str) -> int:
    return len(item) * 100


@activity
async def tax(cents: int) -> int:
    return cents // 5


@workflow
async def basket(ctx: Context, items: list[str]) -> int:
    async def with_tax(item: str) -> int:
        cents = await ctx.activity(price, item)
        return cents + await ctx.activity(tax, cents)

    return sum(await asyncio.gather(*(with_tax(item) for item in items)))


async def main() -> None:
    async with Engine() as engine:
        handle = await engine.start(basket, ["apple", "pear"])
        print("total:", await handle.result())
        for event in await handle.history():
            if event.location is not None:
                print(event.location, event.type, event.name or "")


if __name__ == "__main__":
    asyncio.run(main())
