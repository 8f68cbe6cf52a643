"""`resurgam workers`: the list of workers, one of them with what it holds, and workers that are silent or older."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner, Result

from resurgam import Context, Engine, Registry
from resurgam.cli import output, workers
from resurgam.cli.main import main
from resurgam.store.records import HeldAttempt, HeldRun, HeldWork, WorkerLoad
from resurgam.testing.contract.live_workers import TTL, live, worker
from resurgam.worker.build import build_of
from support.limits import HANGS

HEADINGS = ["WORKER", "HOST", "PID", "QUEUES", "BUILD", "SLOTS", "INSTANCES", "LOAD", "MACHINE", "STARTED", "SEEN"]
LOAD = WorkerLoad(loop=0.25, process=1.5, machine=0.84, processors=2)


@pytest.fixture
def url(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESURGAM_STORE", f"sqlite:///{tmp_path}/shop.db")
    return f"sqlite:///{tmp_path}/shop.db"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["workers", *arguments], prog_name="resurgam")


async def ok(*arguments: str) -> str:
    """Return what the command prints, as another process would: the workers of this one go on meanwhile."""
    done = await asyncio.to_thread(invoke, *arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


@asynccontextmanager
async def announced(url, *told):
    """Announce workers, and keep the store open: the workers of a process that has ended are removed."""
    async with Engine(url, worker=False) as engine:
        for one in told:
            await engine.store.workers.announce(one, TTL)
        yield engine


def shop(gate: asyncio.Event) -> Registry:
    registry = Registry()

    @registry.activity
    async def charge() -> str:
        await gate.wait()
        return "paid"

    @registry.workflow
    async def checkout(ctx: Context) -> str:
        return await ctx.activity(charge)

    return registry


async def test_a_worker_is_listed_with_its_build_its_load_and_what_it_holds(url):
    """And shown alone with the ids of its instances and activities, by a beginning of its id."""
    gate = asyncio.Event()
    registry = shop(gate)
    async with Engine(url, registry=registry, name="desk", max_activities=7, lease=0.1) as engine:
        handles = [await engine.start("checkout", id=f"o-{number}") for number in range(3)]
        async with asyncio.timeout(HANGS):
            while (told := (await engine.workers())[:1]) == [] or told[0].slots_in_use < 3 or told[0].load.loop is None:
                await asyncio.sleep(0)
        heading, row = (await ok()).splitlines()
        page = (await ok("desk")).splitlines()
        [listed] = json.loads(await ok("--json"))["workers"]
        shown = json.loads(await ok("desk-", "--json"))
        gate.set()
        assert [await handle.result() for handle in handles] == ["paid"] * 3

    cells = dict(zip(HEADINGS, row.split(), strict=False))
    assert heading.split() == HEADINGS
    assert (cells["BUILD"], cells["SLOTS"], cells["INSTANCES"]) == (build_of(registry), "3/7", "3")
    assert cells["LOAD"].endswith("%")
    assert row.endswith(" s ago")
    for number, handle in enumerate(handles):
        assert [f"o-{number}", "checkout"] in [line.split()[:2] for line in page]
        assert [f"{handle.run_id}/1", f"o-{number}", "charge", "1"] in [line.split()[:4] for line in page]
    assert [one["entity_id"] for one in listed["held"]["oldest_instances"]] == ["o-0", "o-1", "o-2"]
    [activity, *_] = shown["held"]["oldest_activities"]
    assert activity.pop("since").endswith("Z")
    ids = {"entity_id": f"{handles[0].run_id}/1", "workflow_id": "o-0"}
    assert activity == {**ids, "name": "charge", "attempt": 1}
    assert shown["load"]["processors"] == listed["load"]["processors"]


async def test_a_long_list_of_held_work_says_how_much_more_there_is(url):
    held = HeldWork(
        instances=30,
        activities=1,
        oldest_instances=(HeldRun(entity_id="o-1", name="checkout", since=0),),
        oldest_activities=(HeldAttempt(entity_id="r/1", workflow_id="o-1", name="charge", attempt=2, since=0),),
    )
    async with announced(url, worker("one", load=LOAD, held=held)):
        page = (await ok("one")).splitlines()

    assert "instances  30 held" in page
    assert "load       event loop 25%, process 1.50 processors, machine 0.84 on 2 processors" in page
    assert page.count("and 29 more, claimed later") == 1
    assert page[-1].split()[:4] == ["r/1", "o-1", "charge", "2"]


async def test_an_older_worker_that_tells_less_is_listed_all_the_same(url):
    async with announced(url, worker("old", slots_in_use=1)):
        _, row = (await ok()).splitlines()
        page = (await ok("old")).splitlines()
        [listed] = json.loads(await ok("--json"))["workers"]

    assert row.startswith("old     h     7    default, gpu  1.0    1/4 ")
    assert "instances  unknown" in page
    assert not any(line.startswith("load") for line in page)
    assert (listed["load"], listed["held"]) == (None, None)


async def test_a_worker_that_holds_nothing_has_no_lists(url):
    async with announced(url, worker("idle", held=HeldWork())):
        assert (await ok("idle")).splitlines()[-1] == "instances  0 held"


async def test_a_store_without_workers_has_an_empty_list(url):
    async with announced(url):
        assert (await ok()).split() == HEADINGS
        assert json.loads(await ok("--json")) == {"workers": []}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("x", "there is no worker 'x'; resurgam workers lists those that serve the store"),
        ("shop", "'shop' is the beginning of 2 ids; give more of one of them: shop-1, shop-10"),
    ],
)
async def test_a_worker_that_is_unknown_or_ambiguous_is_refused_in_one_line(url, wanted, message):
    async with announced(url, worker("shop-1"), worker("shop-10")):
        done = await asyncio.to_thread(invoke, wanted)

    assert (done.exit_code, done.stderr) == (1, f"Error: {message}\n")


async def test_a_whole_id_is_not_ambiguous_though_another_begins_so(url):
    async with announced(url, worker("shop-1"), worker("shop-10")):
        assert json.loads(await ok("shop-1", "--json"))["worker_id"] == "shop-1"


async def test_an_error_names_only_the_first_of_many_workers(url):
    async with announced(url, *(worker(f"shop-{number}") for number in range(9))):
        done = await asyncio.to_thread(invoke, "shop-")

    assert done.stderr.endswith("shop-0, shop-1, shop-2, shop-3, shop-4, ...\n")


def test_an_empty_id_is_refused(url):
    done = invoke("")
    assert (done.exit_code, "must not be empty" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s ago"), (0, "0 s ago"), (12, "12 s ago"), (119, "1 min ago"), (7200, "2 h ago"), (200_000, "2 d ago")],
)
def test_a_last_sign_of_life_is_told_by_its_age(seconds, text):
    """A clock that is a little behind makes none negative."""
    [*_, seen] = workers._row(live("one", started_at=0, seen_at=1_000_000), 1_000_000 + 1000 * seconds)
    assert seen == text


@pytest.mark.parametrize(
    ("width", "shown"), [(200, HEADINGS), (70, [*HEADINGS[:2], *HEADINGS[3:4], *HEADINGS[5:8], HEADINGS[10]])]
)
def test_a_narrow_terminal_shows_the_columns_that_matter_most(width, shown):
    told = live("desk-4711-ABCDEF", started_at=0, seen_at=0, load=LOAD, held=HeldWork(instances=3))
    headings, _ = output._fitted(workers._LIST, [workers._row(told, 0)], width, workers._DISPENSABLE)
    assert headings == shown
