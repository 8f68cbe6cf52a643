"""Test a workflow that takes two months in milliseconds, and kill it after every event that it records.

Watch for: nothing sleeps, and the activity is mocked.
"""

import asyncio
from datetime import timedelta

from resurgam import Context, activity, workflow
from resurgam.testing import Environment, crash_everywhere


@activity
async def send_invoice(customer: str) -> str:
    raise RuntimeError("never called in a test")


@workflow
async def subscription(ctx: Context, customer: str, months: int) -> list[str]:
    invoices = []
    for _ in range(months):
        invoices.append(await ctx.activity(send_invoice, customer))
        await ctx.sleep(timedelta(days=30))
    return invoices


async def main() -> None:
    async with Environment() as env:
        env.mock(send_invoice, returns="sent")
        handle = await env.start(subscription, "Ada", 2)
        before = env.now()
        await env.advance(timedelta(days=61))
        print(await handle.result(), "after", env.now() - before)

    crashes = await crash_everywhere(subscription, "Ada", 2, mocks={send_invoice: "sent"})
    print(f"killed at {crashes.points} points, same outcome")


if __name__ == "__main__":
    asyncio.run(main())
