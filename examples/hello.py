"""The smallest complete program: one workflow, two activities, and the recorded history.

Watch for: each durable call is an event with a location, `{1}`, `{2}`; answers refer to commands by number.
"""

import asyncio

from resurgam import Context, Engine, activity, workflow


@activity
async def fetch_name(user_id: int) -> str:
    return {1: "Ada", 2: "Grace"}.get(user_id, "stranger")


@activity
def greet(name: str) -> str:  # a plain function runs in a thread
    return f"Hello, {name}!"


@workflow
async def hello(ctx: Context, user_id: int) -> str:
    name = await ctx.activity(fetch_name, user_id)
    await ctx.sleep(0.1)
    return await ctx.activity(greet, name)


async def main() -> None:
    async with Engine("memory://") as engine:
        handle = await engine.start(hello, 1, id="hello-1")
        print(await handle.result())
        print()
        for event in await handle.history():
            place = str(event.location or "")
            print(f"{event.seq:3} {event.type:22} {place:6} {event.name or ''}")


if __name__ == "__main__":
    asyncio.run(main())
