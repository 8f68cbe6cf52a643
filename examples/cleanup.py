"""Cancel a workflow: its code gets `asyncio.CancelledError` and can clean up with further durable calls.

Watch for: the workflow's status is `cancelled`, and `release` has run.
"""

import asyncio

from resurgam import Context, Engine, activity, workflow
from resurgam.errors import WorkflowCancelled


@activity
async def reserve(seat: str) -> str:
    return f"ticket for {seat}"


@activity
async def release(ticket: str) -> None:
    print("released:", ticket)


@workflow
async def booking(ctx: Context, seat: str) -> str:
    ticket = await ctx.activity(reserve, seat)
    try:
        await ctx.listen("paid")
    except asyncio.CancelledError:
        await ctx.activity(release, ticket)
        raise
    return ticket


async def main() -> None:
    async with Engine() as engine:
        handle = await engine.start(booking, "12A", id="booking-12A")
        await asyncio.sleep(0.1)  # until the seat is reserved
        await handle.cancel("the customer left")
        try:
            await handle.result()
        except WorkflowCancelled as error:
            print(error)
        print("status:", (await handle.describe()).status)


if __name__ == "__main__":
    asyncio.run(main())
