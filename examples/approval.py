"""Wait for a person: a signal with a deadline, and a reminder when it expires.

Watch for: a signal may be sent before the workflow listens; signals queue in order.
"""

import asyncio

from resurgam import Context, Engine, SignalTimeout, activity, workflow


@activity
async def remind(who: str) -> None:
    print(f"reminder sent to {who}")


@workflow
async def approval(ctx: Context, who: str) -> str:
    for _ in range(3):
        try:
            approved = await ctx.listen("decision", type=bool, timeout=0.2)
        except SignalTimeout:
            await ctx.activity(remind, who)
        else:
            return "approved" if approved else "refused"
    return "no answer"


async def main() -> None:
    async with Engine() as engine:
        silent = await engine.start(approval, "Sam")
        answered = await engine.start(approval, "Alex")
        await answered.signal("decision", True)
        print("Alex:", await answered.result())
        print("Sam:", await silent.result())


if __name__ == "__main__":
    asyncio.run(main())
