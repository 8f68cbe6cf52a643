"""No event loop: `SyncEngine` has the same methods for scripts, notebooks and Django, and threads may share it.

Watch for: only the workflow uses `await`, and leaving the `with` block drains the worker as usual.
"""

from concurrent.futures import ThreadPoolExecutor

from resurgam import Context, SyncEngine, activity, workflow


@activity
def total(cents: list[int]) -> int:
    return sum(cents)


@workflow
async def checkout(ctx: Context, cents: list[int]) -> str:
    due = await ctx.activity(total, cents)
    approved = await ctx.listen("approve", type=bool)
    return f"paid {due / 100:.2f}" if approved else "refused"


def main() -> None:
    with SyncEngine("memory://") as engine:

        def request(number: int) -> str:
            handle = engine.start(checkout, [100 * number, 99], id=f"order-{number}")
            handle.signal("approve", number != 2)
            return handle.result(timeout=5)

        with ThreadPoolExecutor(3) as threads:
            print(list(threads.map(request, [1, 2, 3])))
        print([event.type for event in engine.handle("order-1").history()])


if __name__ == "__main__":
    main()
