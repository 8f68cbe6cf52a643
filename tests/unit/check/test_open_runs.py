"""The runs that ``resurgam check`` replays: those of open workflows, whatever else the store holds."""

import asyncio

from resurgam import Context, Registry
from resurgam.check.open_runs import OpenRuns
from resurgam.store.open import open_store
from resurgam.store.records import Creation
from resurgam.testing import ManualClock
from resurgam.testing.contract.bench import LEASE
from support.counter import Rule, start_counter

registry = Registry()


@registry.workflow
async def tally(ctx: Context, rule: object) -> None:
    await ctx.listen("go")


async def fill(url: str, *kinds: str) -> None:
    clock = ManualClock()
    store = open_store(url, clock, name="check", lease=LEASE)
    started = [start_counter(f"{kind}-{n}", clock.now(), Rule(1, 1, 1), kind=kind) for n, kind in enumerate(kinds)]
    await store.create([Creation(started=entry) for entry in started])
    await store.close()


def test_runs_of_other_kinds_are_neither_listed_nor_counted(tmp_path):
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    asyncio.run(fill(url, "workflow", "counter", "workflow", "counter"))
    runs = OpenRuns(url, registry)
    try:
        assert {run.entity_id for run in runs.runs(None)} == {"workflow-0", "workflow-2"}
        assert (runs.count(None), runs.count(3), runs.count(1)) == (2, 2, 1)
    finally:
        runs.close()
