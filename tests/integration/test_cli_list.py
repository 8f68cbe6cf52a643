"""The command `resurgam list`: its rows for people and for programs, its filters, and how it refuses."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from resurgam import Context, Engine, Registry, RetryPolicy
from resurgam.cli import output
from resurgam.cli.main import main
from resurgam.flows import ScriptStep
from resurgam.runtime.system import SystemClock
from resurgam.store.records import Lease, Release

LONG = "orders/" + "0123456789" * 20
registry = Registry()


@registry.workflow
async def greet(ctx: Context) -> str:
    return "Hello!"


@registry.workflow(retry=RetryPolicy(max_attempts=2, initial_interval=0.001))
async def look_up(ctx: Context) -> None:
    raise LookupError("nothing there")


@pytest.fixture
def url(tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("RESURGAM_STORE", f"sqlite:///{tmp_path}/shop.db")
    url = f"sqlite:///{tmp_path}/shop.db"

    async def work() -> None:
        async with Engine(url, registry=registry) as engine:
            for workflow, name in ((greet, "g-1"), (look_up, "l-1"), (greet, LONG)):
                handle = await engine.start(workflow, id=name, tags={"shop": "b"})
                await asyncio.gather(handle.result(30), return_exceptions=True)

    asyncio.run(work())
    return url


def resurgam(*arguments):
    return CliRunner().invoke(main, ["list", *arguments], prog_name="resurgam")


def ok(*arguments):
    done = resurgam(*arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def listed(*arguments):
    return [one["entity_id"] for one in json.loads(ok(*arguments, "--json"))["instances"]]


def test_each_id_has_one_row_unless_all_executions_are_asked_for(url):
    assert listed() == [LONG, "l-1", "g-1"]
    assert listed("--all") == [LONG, "l-1", "l-1", "g-1"]
    assert listed("--limit", "2") == [LONG, "l-1"]


def test_failures_are_listed_by_their_type(url):
    assert listed("--failure", "LookupError") == ["l-1"]
    assert listed("--failure", "ValueError") == []
    [found] = json.loads(ok("--status", "failed", "--json"))["instances"]
    assert found["failure"] == "LookupError"
    assert "failed (LookupError)" in ok("--name", "look_up")


def test_a_list_is_limited_to_a_time(url):
    now = datetime.fromtimestamp(SystemClock().now() / 1000, UTC) + timedelta(seconds=1)
    tomorrow = (now + timedelta(days=1)).date().isoformat()
    for arguments, count in (
        (("--since", "2h"), 3),
        (("--since", "1.5d", "--until", tomorrow), 3),
        (("--until", "2h"), 0),
        (("--since", tomorrow), 0),
        (("--until", now.isoformat()), 3),
        (("--until", now.replace(tzinfo=None).isoformat()), 3),
    ):
        assert len(listed(*arguments)) == count


def test_one_long_id_does_not_widen_the_others(url):
    heading, longest, *rows = ok().splitlines()
    assert longest.startswith(f"{LONG[:20]}…{LONG[-19:]}  greet")
    assert heading.index("NAME") == 42
    assert len(rows) == 2
    assert LONG in listed()


def test_kinds_are_shown_once_a_page_has_a_flow(url):
    assert "KIND" not in ok()

    async def start() -> None:
        async with Engine(url, registry=Registry(), worker=False) as engine:
            await engine.register_step(ScriptStep("one", "return {x = 1}", outputs={"x": int}))
            await engine.start_flow(["one"], id="f-1")

    asyncio.run(start())
    heading, *rows = [line.split() for line in ok().splitlines()]
    assert heading[:3] == ["ID", "KIND", "NAME"]
    assert [row[1:3] for row in rows] == [["flow", "one"]] + [
        ["workflow", name] for name in ("greet", "look_up", "greet")
    ]
    assert listed("--kind", "flow") == ["f-1"]
    assert listed("--kind", "workflow") == [LONG, "l-1", "g-1"]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_rows_fit_the_terminal(url, width):
    page = json.loads(ok("--json"))["instances"]
    rows = [[one["entity_id"], one["name"], "failed (LookupError)", "default", *["2026-01-01 00:00:00Z"] * 2, "shop=b"] for one in page]  # fmt: skip
    headings, fitted = output._fitted(
        output._LIST, [[output.cut_middle(cell, 40) for cell in row] for row in rows], width
    )

    for row in fitted:
        assert sum(max(map(len, column)) + 2 for column in zip(headings, *fitted, strict=True)) - 2 <= width
        assert len(row) == len(headings)
    assert headings[:3] == ["ID", "NAME", "STATUS"]
    assert ("CLOSED" in headings) is (width > 80)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--since", "2x"), "'2x' must be an age such as 90s, 15m, 2h, 7d or 4w, or a time such as 2026-01-31T14:00Z"),
        (("--until", "99999999999w"), "'99999999999w' must be an age such as"),
        (("--failure", "shop.OutOfStock"), "must be the name of a type without its module; use 'OutOfStock'"),
        (("--failure", ""), "must not be empty"),
    ],
)
def test_a_filter_that_cannot_match_is_one_line(url, arguments, text):
    done = resurgam(*arguments)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert text in done.stderr


def test_dead_letters_are_marked(url):
    """A run that no worker gets any more, and one with such an activity."""

    async def bury() -> None:
        async with Engine(url, registry=registry, worker=False) as client:
            await client.start("greet", id="dead")
            [claim] = await client.store.claim("w", ["default"], 1)
            lease = Lease(entity_id="dead", execution_id=claim.instance.execution_id, epoch=claim.epoch)
            await client.store.release([Release(lease=lease, failed="too large", final=True)])

    asyncio.run(bury())
    [dead] = [line for line in ok().splitlines() if line.startswith("dead ")]
    assert "running (dead letter)" in dead
