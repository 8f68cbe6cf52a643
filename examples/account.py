"""Something that lives for ever: an account that takes orders one after another, in a loop that forgets.

Watch for: what the loop needs comes to it as its state or by signals; it shares no variable with the code around it. What
was done more than `forget_every` orders ago is not read again, however long the account lives.
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
        print("last heard:", await mine.state("receipt"))
        print("entries to be read again:", len(await mine.history()))
        print("entries kept for tools:", len(await mine.history(forgotten=True)))


if __name__ == "__main__":
    asyncio.run(main())
