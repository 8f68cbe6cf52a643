"""Change code while runs are open: find the divergence first, then insert the new step so that open runs can follow.

Watch for: the remedy names the source line, and with it the run that has already been charged continues.
"""

import asyncio

from resurgam import Context, Registry
from resurgam.testing import Environment, replay

yesterday, today, tomorrow = Registry(), Registry(), Registry()


@yesterday.activity
async def charge(order: str) -> str:
    return f"receipt for {order}"


@yesterday.activity
async def ship(order: str) -> str:
    return f"parcel for {order}"


@yesterday.workflow
async def checkout(ctx: Context, order: str) -> str:
    receipt = await ctx.activity(charge, order)
    await ctx.activity(ship, order)
    await ctx.listen("arrived")
    return receipt


@today.workflow(name="checkout")
async def careless(ctx: Context, order: str) -> str:
    receipt = await ctx.activity(charge, order)
    await ctx.activity("look_at", order)
    await ctx.activity(ship, order)
    await ctx.listen("arrived")
    return receipt


@tomorrow.workflow(name="checkout")
async def careful(ctx: Context, order: str) -> str:
    receipt = await ctx.activity(charge, order)
    await ctx.v(2).activity("look_at", order)
    await ctx.activity(ship, order)
    await ctx.listen("arrived")
    return receipt


async def main() -> None:
    async with Environment(registry=yesterday) as env:
        handle = await env.start(checkout, "o-1")
        history = await handle.history()

    report = await replay(careless, history)
    print(f"today: {report.diverged}")
    report = await replay(careful, history)
    print(f"tomorrow: {report.diverged or 'it fits'}, and continues with {[step.name for step in report.new]}")


asyncio.run(main())
