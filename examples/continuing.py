"""Continue as new: a poller that runs for years starts each generation with an empty history.

Watch for: unread signals are carried over, and `handle.result()` waits for the last generation. A workflow that fails is
retried as a new attempt, which does not repeat the activities that earlier attempts completed.
"""

import asyncio

from resurgam import Context, Engine, RetryPolicy, activity, workflow

outages = ["the network is down"]


def next_outage() -> str:
    return outages.pop() if outages else ""


@activity
async def look(number: int) -> str:
    print(f"  looking, round {number}")
    return "done" if number >= 7 else "nothing yet"


@workflow(retry=RetryPolicy(max_attempts=3, initial_interval=0.01))
async def poller(ctx: Context, first: int) -> str:
    for number in range(first, first + 3):
        if await ctx.activity(look, number) == "done":
            recipient = await ctx.listen("notify", type=str)
            return f"notified {recipient} in generation {ctx.info.generation}, attempt {ctx.info.attempt}"
        if number == 5 and (outage := await ctx.run(next_outage)):
            raise ConnectionError(outage)
    return ctx.continue_as_new(first + 3)


async def main() -> None:
    async with Engine() as engine:
        handle = await engine.start(poller, 1)
        await handle.signal("notify", "Alex")
        print(await handle.result())


if __name__ == "__main__":
    asyncio.run(main())
