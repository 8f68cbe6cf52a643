"""Beginning anew: a poller that runs for years ends each generation after a few rounds, and goes on with a fresh history.

Watch for: signals that were not taken come along, and whoever waits for the result waits for the last generation. A
workflow that fails is tried again as a new attempt, which need not repeat the activities that its run has done already.
"""

import asyncio

from resurgam import Context, Engine, RetryPolicy, activity, workflow

troubles = ["the network is down"]


def trouble() -> str:
    return troubles.pop() if troubles else ""


@activity
async def look(number: int) -> str:
    print(f"  looking, round {number}")
    return "done" if number >= 7 else "nothing yet"


@workflow(retry=RetryPolicy(max_attempts=3, initial_interval=0.01))
async def poller(ctx: Context, first: int) -> str:
    for number in range(first, first + 3):
        if await ctx.activity(look, number) == "done":
            who = await ctx.listen("tell", type=str)
            return f"told {who} in generation {ctx.info.generation}, attempt {ctx.info.attempt}"
        if number == 5 and (what := await ctx.run(trouble)):
            raise ConnectionError(what)
    return ctx.continue_as_new(first + 3)


async def main() -> None:
    async with Engine() as engine:
        handle = await engine.start(poller, 1)
        await handle.signal("tell", "Alex")
        print(await handle.result())


if __name__ == "__main__":
    asyncio.run(main())
