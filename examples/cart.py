"""Messages to a workflow: a shopping cart with queries, updates that may be rejected, and a promise.

Watch for: an update is recorded, run once and answered. A query records nothing, and a closed cart still answers it. The
handlers keep their data in the durable state, so that the loop beside them can forget, and the cart can live for ever.
"""

import asyncio

from resurgam import Break, Context, Continue, Engine, errors, workflow


async def until_paid(ctx: Context, reminders: int) -> Continue[int] | Break[str]:
    order, _ = await ctx.listen("remind", "pay")
    return Break(f"paid after {reminders} reminders") if order == "pay" else Continue(reminders + 1)


@workflow
async def cart(ctx: Context) -> str:
    ctx.set("items", {})
    address = ctx.promise("address", type=str)

    def enough(item: str, count: int) -> None:
        if count < 1:
            raise ValueError(f"{count} pieces of {item} are too few")

    @ctx.on_update("put", validator=enough)
    def put(item: str, count: int) -> int:
        ctx.set("items", {**ctx.get("items"), item: count})
        return sum(ctx.get("items").values())

    @ctx.on_query("items")
    def items() -> dict[str, int]:
        return dict(ctx.get("items"))

    paid = await ctx.loop(until_paid, 0, forget_every=10)
    return f"{paid}, sent to {await address}"


async def main() -> None:
    async with Engine() as engine:
        mine = await engine.start(cart, id="cart-1")
        print("pieces:", await mine.update("put", "apple", 3))
        print("pieces:", await mine.update("put", "pear", 2))
        try:
            await mine.update("put", "plum", 0)
        except errors.UpdateRejected as refused:
            print("refused:", refused.cause)
        for _ in range(50):
            await mine.signal("remind")
        await mine.signal("pay")
        print("address accepted:", await mine.resolve("address", "Penny Lane 7"))
        print(await mine.result())
        print("items:", await mine.query("items"))


if __name__ == "__main__":
    asyncio.run(main())
