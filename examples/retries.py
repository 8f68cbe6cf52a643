"""Failed activities are retried with growing intervals; some failures are final.

Watch for: the warnings with the time of the next attempt, and `activity_retry_scheduled` in the history.
"""

import asyncio

from resurgam import Context, Engine, NonRetryable, RetryPolicy, activity, workflow
from resurgam.errors import ActivityFailed


@activity(retry=RetryPolicy(max_attempts=5, initial_interval=0.05, backoff=2))
async def flaky() -> str:
    attempt = activity.info().attempt
    if attempt < 3:
        raise ConnectionError(f"attempt {attempt} was refused")
    return f"worked at attempt {attempt}"


@activity
async def hopeless(card: str) -> str:
    raise NonRetryable(f"card {card} is stolen")


@workflow
async def payment(ctx: Context) -> str:
    outcome = await ctx.activity(flaky)
    try:
        await ctx.activity(hopeless, "4711")
    except ActivityFailed as error:
        outcome += f"; {error}"
    return outcome


async def main() -> None:
    async with Engine() as engine:
        handle = await engine.start(payment)
        print(await handle.result())
        print([event.type for event in await handle.history()])


if __name__ == "__main__":
    asyncio.run(main())
