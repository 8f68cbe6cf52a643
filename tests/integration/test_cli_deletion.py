"""`resurgam delete` and `resurgam deletions`: what they delete, print, ask and refuse."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from resurgam import Context, Engine, Registry
from resurgam.cli import deletion
from resurgam.cli.main import main

registry = Registry()


@registry.workflow
async def leaf(ctx: Context) -> None:
    return


@registry.workflow
async def root(ctx: Context) -> None:
    await ctx.workflow(leaf, id="o-1-leaf")


@pytest.fixture(autouse=True)
def url(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/shop.db?synchronous=off"
    monkeypatch.setenv("RESURGAM_STORE", url)

    async def fill():
        async with Engine(url, registry=registry) as engine:
            await engine.execute(root, id="o-1")
            await engine.execute(leaf, id="o-2")

    asyncio.run(fill())
    return url


def resurgam(*arguments, given=None):
    return CliRunner().invoke(main, arguments, input=given, prog_name="resurgam")


def ok(*arguments):
    done = resurgam(*arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def ids():
    return sorted(one["entity_id"] for one in json.loads(ok("list", "--json"))["instances"])


def test_delete_removes_a_workflow_and_says_so():
    assert ok("delete", "o-2", "--yes") == "deleted 1 execution of o-2\n"
    assert ids() == ["o-1", "o-1-leaf"]
    assert ok("delete", "o-1", "--tree", "--yes") == "deleted 2 executions of o-1 and its descendants\n"
    assert ids() == []


def test_deletions_are_listed_with_reason_and_user(monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")
    done = json.loads(ok("delete", "o-1", "--tree", "--reason", "request 7", "--yes", "--json"))
    assert done == {"entity_id": "o-1", "executions": 2, "archived": 0, "tree": True}
    [one] = json.loads(ok("deletions", "--json"))["deletions"]
    assert (one["entity_id"], one["reason"], one["executions"], one["archived"], one["tree"]) == (
        *("o-1", "request 7", 2, 0),
        True,
    )
    assert one["by"].startswith("ada@")
    assert one["requested_at"] <= one["deleted_at"]
    headings, row = ok("deletions").splitlines()
    assert headings.split() == ["REQUESTED", "DELETED", "ID", "EXECUTIONS", "ARCHIVED", "BY", "REASON"]
    assert "o-1 (tree)  2           0         ada@" in row
    assert row.endswith("request 7")


@pytest.mark.parametrize(("answer", "left"), [("n", 3), ("y", 2)])
def test_delete_asks_on_a_terminal(answer, left, monkeypatch):
    monkeypatch.setattr(deletion, "is_terminal", lambda: True)
    done = resurgam("delete", "o-2", given=answer)
    assert "Delete everything about o-2 from sqlite:///" in done.stderr
    assert done.exit_code == (0 if answer == "y" else 1)
    assert len(ids()) == left


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_delete_removes_nothing_where_it_cannot_ask(json_too):
    done = resurgam("delete", "o-2", *json_too)
    assert done.exit_code == 2
    assert "delete needs a confirmation; give --yes to confirm" in done.stderr
    assert len(ids()) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (
            ["delete", "gone", "--yes"],
            1,
            "Error: there is no workflow with id 'gone'\n",
        ),
        (["delete", "catalog", "--yes"], 1, "Error: the catalog of steps cannot be deleted"),
        (["delete", "", "--yes"], 2, "must not be empty"),
        (["delete", "o-2", "--yes", "--store", "sqlite:///gone.db"], 1, "there is no file"),
        (["deletions", "--store", "sqlite:///gone.db"], 1, "there is no file"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments, code, text):
    done = resurgam(*arguments)
    assert (done.exit_code, done.stderr.count("\n")) == (code, 1)
    assert text in done.stderr


def test_a_workflow_that_is_not_in_the_archive_either_is_one_line(tmp_path):
    done = resurgam("delete", "gone", "--yes", "--archive", str(tmp_path / "archive"))
    assert (done.exit_code, done.stderr) == (1, "Error: there is no workflow with id 'gone'\n")
