"""`resurgam archive`, and the commands that read an archive: what they move, print and refuse."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys

import pytest
from click.testing import CliRunner

from resurgam import Context, Engine, Registry
from resurgam.cli.main import main

registry = Registry()
DAY = 86_400_000


@registry.workflow
async def parcel(ctx: Context, text: str) -> str:
    return text


@registry.workflow
async def order(ctx: Context, text: str) -> str:
    ctx.tag(stage="paid")
    return await ctx.workflow(parcel, text, id=f"parcel of {ctx.info.entity_id}")


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Have three orders with a parcel each in a store, two of them old, and return the path of an archive."""
    url = f"sqlite:///{tmp_path}/shop.db?synchronous=off"
    monkeypatch.setenv("RESURGAM_STORE", url)
    monkeypatch.delenv("RESURGAM_ARCHIVE", raising=False)

    async def fill():
        async with Engine(url, registry=registry) as engine:
            await asyncio.gather(*(engine.execute(order, "x" * 20_000, id=f"o-{n}") for n in range(3)))

    asyncio.run(fill())
    sqlite = sqlite3.connect(tmp_path / "shop.db")
    with sqlite:
        sqlite.execute("UPDATE instances SET closed_at = closed_at - ? WHERE entity_id NOT LIKE '%o-0'", [31 * DAY])
    sqlite.close()
    return tmp_path / "the archive"


def resurgam(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)), prog_name="resurgam")


def ok(*arguments):
    done = resurgam(*arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def refused(*arguments):
    done = resurgam(*arguments)
    assert done.exit_code != 0
    assert done.stdout == ""
    return done.stderr


def test_archive_moves_what_is_older_and_says_how_much(archive):
    assert ok("archive", "--older-than", "30d", "--archive", archive, "--dry-run").startswith(
        f"would archive 4 executions in 2 files of file://{str(archive).replace(' ', '%20')}/"
    )
    assert not archive.exists()
    done = json.loads(ok("archive", "--older-than", "30d", "--archive", archive, "--json"))
    assert (done["executions"], done["files"], done["failed"], done["dry_run"]) == (4, 2, 0, False)
    assert len([*archive.glob("trees/*/*.jsonl.zst")]) == 2
    assert ok("archive", "--older-than", "30d", "--archive", archive).startswith("archived 0 executions in 0 files")
    listed = json.loads(ok("list", "--tag", "stage=paid", "--json"))["instances"]
    assert sorted((one["entity_id"], one["archived"] is not None) for one in listed)[:3] == [
        ("o-0", False),
        ("o-1", True),
        ("o-2", True),
    ]


def test_the_store_shrinks_to_a_row_for_each_execution(archive, tmp_path):
    def rows():
        sqlite = sqlite3.connect(tmp_path / "shop.db")
        tables = [name for (name,) in sqlite.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        old = "SELECT execution_id FROM instances WHERE entity_id NOT LIKE '%o-0'"
        columns = {name: [one[1] for one in sqlite.execute(f"PRAGMA table_info({name})")] for name in tables}
        found = {
            name: sqlite.execute(f"SELECT count(*) FROM {name} WHERE execution_id IN ({old})").fetchone()[0]
            for name in tables
            if "execution_id" in columns[name]
        }
        sqlite.close()
        return {name: count for name, count in found.items() if count}

    assert rows()["events"] == 20
    before = (tmp_path / "shop.db").stat().st_size
    ok("archive", "--older-than", "30d", "--archive", archive)
    assert rows() == {"instances": 4, "instance_tags": 4, "answers": 2}  # of the parcels, for an order that is retried
    ok("vacuum")
    assert (tmp_path / "shop.db").stat().st_size < before * 0.7


def test_show_and_history_read_the_archive(archive):
    before = ok("history", "o-1", "--json").splitlines()
    ok("archive", "--older-than", "30d", "--archive", archive)
    row = ok("show", "o-1")
    assert "archived   in file://" in row
    assert "--archived reads it" in row
    assert "input" not in row
    shown = json.loads(ok("show", "o-1", "--archived", "--json"))
    assert (shown["status"], len(shown["result"])) == ("completed", 20_000)
    assert "parcel at {2}" in ok("show", "o-1", "--tree", "--archived")
    assert ok("history", "o-1", "--archived", "--json").splitlines()[:-1] == before
    assert "workflow_archiving" in ok("history", "o-1", "--archived")
    assert "is archived in file://" in refused("history", "o-1")


def test_an_archive_that_was_moved_is_read_where_it_is_now(archive, tmp_path, monkeypatch):
    ok("archive", "--older-than", "30d", "--archive", archive)
    archive.rename(tmp_path / "elsewhere")
    assert "there is no archive file file://" in refused("show", "o-1", "--archived")
    assert "completed" in ok("show", "o-1", "--archived", "--archive", tmp_path / "elsewhere")
    monkeypatch.setenv("RESURGAM_ARCHIVE", str(tmp_path / "elsewhere"))
    assert "completed" in ok("show", "o-1", "--archived")


def test_an_archive_outlives_the_rows_of_the_store(archive):
    ok("archive", "--older-than", "30d", "--archive", archive)
    ok("purge", "--older-than", "30d", "--yes")
    assert "there is no workflow" in refused("show", "o-1")
    assert "completed" in ok("show", "o-1", "--archived", "--archive", archive)
    assert "imported o-1" in ok("import", "--archived", "o-1", "--archive", archive)
    assert "completed" in ok("show", "o-1")


def test_import_brings_a_tree_back(archive):
    ok("archive", "--older-than", "30d", "--archive", archive)
    assert ok("import", "--archived", "o-1").count("imported") == 2
    assert len(json.loads(ok("show", "o-1", "--json"))["result"]) == 20_000
    [file] = [one for one in archive.glob("trees/*/*") if "o-2" in one.name] or [
        one for one in archive.glob("trees/*/*") if "exists already" not in ok("import", one)
    ]
    assert "exists already; left unchanged" in ok("import", file)
    assert len(json.loads(ok("show", "o-2", "--json"))["result"]) == 20_000


def test_the_lines_of_a_file_are_those_of_an_export(archive):
    ok("archive", "--older-than", "30d", "--archive", archive)
    ok("import", "--archived", "o-1")
    exported = ok("export", "o-1").splitlines()
    import zstandard

    texts = [
        zstandard.ZstdDecompressor().stream_reader(one.read_bytes(), read_across_frames=True).read().decode()
        for one in archive.glob("trees/*/*")
    ]
    assert any(all(line in text for line in exported) for text in texts)


def test_delete_reaches_the_archive(archive):
    ok("archive", "--older-than", "30d", "--archive", archive)
    moved = archive.rename(archive.parent / "moved")
    for options in ([], ["--archive", archive], ["--archive", archive.parent / "typo"]):
        said = refused("delete", "o-1", "--tree", "--yes", *options)
        assert said.startswith(
            f"Error: histories of this store are in the archive {archive.as_uri()}/, which is not there;"
        )
        assert said.count("\n") == 1
    assert sorted(path.name for path in archive.parent.glob("*/.lock")) == [".lock"]
    said = ok("delete", "o-1", "--tree", "--yes", "--archive", moved)
    assert said == "deleted 2 executions of o-1 and its descendants (2 in the archive)\n"
    assert len([*moved.glob("trees/*/*.jsonl.zst")]) == 1
    assert "nothing of 'o-1' is in an archive" in refused("show", "o-1", "--archived", "--archive", moved)
    ok("delete", "o-2", "--tree", "--yes")  # the store knows the new place by now
    assert not [*moved.glob("trees/*/*.jsonl.zst")]


def test_delete_counts_what_only_the_archive_has(archive):
    ok("archive", "--older-than", "30d", "--archive", archive)
    ok("purge", "--older-than", "30d", "--yes")
    said = ok("delete", "parcel of o-1", "--yes")
    assert said == "deleted 1 execution of parcel of o-1 (1 in the archive)\n"
    done = json.loads(ok("delete", "o-2", "--tree", "--yes", "--archive", archive, "--json"))
    assert (done["executions"], done["archived"]) == (2, 2)
    headings, *rows = ok("deletions").splitlines()
    at = headings.index("ARCHIVED")
    assert [row[at:].split()[0] for row in rows] == ["1", "2"]


@pytest.mark.parametrize("command", [["worker", "x.py"], ["serve"]])
@pytest.mark.usefixtures("archive")
def test_workers_and_servers_check_the_ages_of_archive_and_retention_together(command):
    assert "--archive-after needs --archive; give both" in refused(*command, "--archive-after", "1d")
    said = refused(*command, "--archive", "a", "--archive-after", "3d", "--retain", "1d")
    assert "--retain must be longer than --archive-after, got 1 day, 0:00:00 and 3 days, 0:00:00" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["archive", "--older-than", "30d"], "the archive is missing: give --archive URL or set RESURGAM_ARCHIVE"),
        (["archive", "--older-than", "30d", "--archive", "s3://x"], "archive must be the URL of a folder"),
        (["archive", "--archive", "x"], "Missing option '--older-than'"),
        (["show", "o-0", "--archived"], "nothing of 'o-0' is in an archive; leave out --archived"),
        (["import"], "give FILE, or --archived ID"),
        (["show", "o-0", "--archive", "x"], "--archive needs --archived; give both"),
    ],
)
@pytest.mark.usefixtures("archive")
def test_mistakes_are_one_line(arguments, error):
    said = refused(*arguments)
    assert error in said
    assert said.count("\n") == 1


def test_a_worker_archives_beside_its_work(archive, tmp_path):
    module = tmp_path / "shop.py"
    module.write_text(
        "from resurgam import Context, workflow\n\n@workflow\nasync def brief(ctx: Context) -> int:\n    return 1\n"
    )
    command = [sys.executable, "-m", "resurgam", "worker", str(module), f"--archive={archive}", "--archive-after=0.3s"]
    worker = subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE, text=True)
    try:
        assert worker.stderr is not None
        for line in worker.stderr:
            if "archived" in line:
                break
    finally:
        worker.terminate()
        worker.communicate()
    assert [*archive.glob("trees/*/*.jsonl.zst")]
