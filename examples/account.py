"""A long-lived entity: an account that processes orders in a durable loop.

Watch for: the loop gets its data from its state and from signals, and shares no variable with the code around it. Orders
older than `forget_every` iterations are not read again, however long the account lives.
"""

import asyncio

from resurgam import Break, Context, Continue, Engine, activity, workflow


@activity
async def receipt(balance: int) -> str:
    return f"the balance is {balance}"


async def next_order(ctx: Context, balance: int) -> Continue[int] | Break[int]:
    name, cents = await ctx.listen("deposit", "withdraw", "close", type=int)
    if name == "close":
        return Break(balance)
    balance += cents if name == "deposit" else -cents
    ctx.set("balance", balance)
    ctx.set("receipt", await ctx.activity(receipt, balance))
    return Continue(balance)


@workflow
async def account(ctx: Context) -> int:
    return await ctx.loop(next_order, 0, forget_every=5)


async def main() -> None:
    async with Engine() as engine:
        mine = await engine.start(account, id="account-1")
        for cents in range(1, 101):
            await mine.signal("deposit", cents)
        await mine.signal("withdraw", 50)
        await mine.signal("close", 0)
        print("closed with", await mine.result())
        print("last receipt:", await mine.state("receipt"))
        print("events read on replay:", len(await mine.history()))
        print("events kept for tools:", len(await mine.history(forgotten=True)))


if __name__ == "__main__":
    asyncio.run(main())
