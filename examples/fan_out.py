"""Children on other queues: a report is split into chapters, each written by a worker that serves its queue.

Watch for: the engines share only the store, so they could be separate processes. A child is a workflow with its own id,
history and retries; `resurgam show report-1 --tree` draws all of them.
"""

import asyncio
import tempfile

from resurgam import Context, Engine, activity, workflow


@activity
async def draft(title: str) -> str:
    return f"{title}: once upon a time"


@workflow
async def chapter(ctx: Context, title: str) -> str:
    return f"{await ctx.activity(draft, title)} (written by {ctx.info.queue})"


@workflow
async def report(ctx: Context, titles: list[str]) -> list[str]:
    queues = ("writers", "night-writers")
    children = [ctx.workflow(chapter, title, queue=queues[n % 2]) for n, title in enumerate(titles)]
    return await asyncio.gather(*children)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/reports.db"
        async with (
            Engine(store) as desk,
            Engine(store, queues=["writers"]),
            Engine(store, queues=["night-writers"]),
        ):
            for line in await desk.execute(report, ["Spring", "Summer", "Autumn"], id="report-1"):
                print(line)
            tree = (await desk.handle("report-1").describe()).tree_id
            page = await desk.list(parent="report-1")
            print(
                "children:",
                len(page.instances),
                "- all in one tree:",
                {one.tree_id for one in page.instances} == {tree},
            )


if __name__ == "__main__":
    asyncio.run(main())
