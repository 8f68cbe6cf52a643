"""Who asks for a history sees what is active; who asks for the forgotten sees that too, and can tell which it is."""

import asyncio
import json
import sqlite3
from contextlib import closing

import pytest
from click.testing import CliRunner

from resurgam import Context, Engine, Registry, SyncEngine
from resurgam.cli.main import main
from resurgam.core.location import Location
from resurgam.testing import replay

registry = Registry()


@registry.workflow
async def count(ctx: Context, steps: int) -> int:
    for step in range(steps):
        ctx.set("step", step)
    return steps


@pytest.fixture
def url(tmp_path) -> str:
    """A store with a workflow of seven entries, the third and the fourth of which are forgotten."""
    url = f"sqlite:///{tmp_path}/shop.db"

    async def run() -> None:
        async with Engine(url, registry=registry) as engine:
            assert await engine.execute(count, 4, id="c") == 4

    asyncio.run(run())
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        place = Location.parse("{2, 5}").key()
        connection.execute("UPDATE events SET forgotten = ? WHERE seq IN (3, 4)", (place,))
        connection.commit()
    return url


def seqs(history):
    return [entry.seq for entry in history]


def printed(url, *options):
    done = CliRunner().invoke(main, ["history", "c", "--store", url, *options], prog_name="resurgam")
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_handle_gives_the_active_history_or_all_that_is_kept(url):
    async def ask() -> tuple[list[int], list[int]]:
        async with Engine(url, worker=False) as engine:
            handle = engine.handle("c")
            return seqs(await handle.history()), seqs(await handle.history(forgotten=True))

    assert asyncio.run(ask()) == ([1, 2, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7])


def test_so_does_a_handle_that_waits(url):
    with SyncEngine(url, worker=False) as engine:
        assert seqs(engine.handle("c").history()) == [1, 2, 5, 6, 7]
        assert seqs(engine.handle("c").history(forgotten=True)) == [1, 2, 3, 4, 5, 6, 7]


def test_the_command_prints_the_active_history(url):
    assert [line.split()[0] for line in printed(url)] == ["SEQ", "1", "2", "5", "6", "7"]
    assert [json.loads(line)["seq"] for line in printed(url, "--json")] == [1, 2, 5, 6, 7]
    assert all("active" not in json.loads(line) for line in printed(url, "--json"))


def test_the_command_prints_the_forgotten_too_and_marks_it(url):
    heading, *rows = printed(url, "--forgotten")
    assert heading.split() == ["SEQ", "TIME", "TYPE", "LOCATION", "NAME", "VALUE", "KEPT"]
    kept = [(row.split()[0], row.split()[-1]) for row in rows]
    assert kept == [(str(seq), "forgotten" if seq in (3, 4) else "active") for seq in range(1, 8)]


def test_the_command_marks_the_forgotten_for_programs_too(url):
    lines = [json.loads(line) for line in printed(url, "--forgotten", "--json")]
    assert [(line["seq"], line["active"]) for line in lines] == [(seq, seq not in (3, 4)) for seq in range(1, 8)]
    plain = [json.loads(line) for line in printed(url, "--json")]
    assert [{**line, "active": True} for line in plain] == [line for line in lines if line["active"]]


def test_a_printed_history_of_which_nothing_is_forgotten_can_be_replayed(url, tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("UPDATE events SET forgotten = NULL")
        connection.commit()
    report = asyncio.run(replay(count, "\n".join(printed(url, "--forgotten", "--json"))))
    assert (report.result, report.diverged) == (4, None)


def test_the_forgotten_entries_of_an_unknown_workflow_are_an_error(url):
    done = CliRunner().invoke(main, ["history", "x", "--forgotten", "--store", url], prog_name="resurgam")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "there is no workflow with id 'x'" in done.stderr
