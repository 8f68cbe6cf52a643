"""A saga: book a flight, a hotel and a car; if one booking fails, cancel the earlier ones.

Watch for: the compensation of a step is recorded before the step runs, so that no crash can lose it. Each booking and each
cancellation is an activity with its own retries, and the last booking is cancelled first.
"""

import asyncio

from resurgam import Context, Engine, NonRetryable, activity, errors, workflow


@activity
async def book(what: str, whose: str) -> str:
    if what == "car" and whose == "Sam":
        raise NonRetryable("no car is left")
    print(f"  booked the {what} for {whose}")
    return f"{what} of {whose}"


@activity
async def cancel(booking: str) -> None:
    print(f"  cancelled the {booking}")


@workflow
async def trip(ctx: Context, whose: str) -> list[str]:
    async with ctx.saga() as saga:
        return [await saga.step(book, what, whose, undo=cancel) for what in ("flight", "hotel", "car")]


async def main() -> None:
    async with Engine() as engine:
        print("Alex:", await engine.execute(trip, "Alex"))
        try:
            await engine.execute(trip, "Sam")
        except errors.WorkflowFailed as failed:
            print("Sam:", failed.cause)


if __name__ == "__main__":
    asyncio.run(main())
