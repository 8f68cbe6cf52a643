"""The folder of an archive: files are written whole and durably, and errors name the file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from resurgam.archive import folder as folder_module
from resurgam.archive.archive import Archive, base_of, name_in, name_of
from resurgam.archive.folder import ArchiveBusy, Folder, open_files
from resurgam.core.errors import StoreError


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "größe a" / "archive")


def test_a_file_comes_back_as_it_was_written(folder):
    assert folder.read("trees/ab/x.zst") is None
    folder.write("trees/ab/x.zst", [b"one", b"two"])
    folder.write("runs/00/y.zst", [])
    assert folder.read("trees/ab/x.zst") == b"onetwo"
    assert folder.read("trees/ab/x.zst", 4) == b"onet"
    assert folder.read("trees/ab/x.zst", 100) == b"onetwo"
    assert list(folder.names()) == ["runs/00/y.zst", "trees/ab/x.zst"]
    folder.delete("trees/ab/x.zst")
    folder.delete("trees/ab/x.zst")
    folder.delete("other/zz/none")
    assert list(folder.names()) == ["runs/00/y.zst"]


def test_files_that_are_not_of_the_archive_are_left_alone(folder, tmp_path):
    """A disk of its own has a folder that other users cannot read; NFS keeps deleted files that are still open."""
    folder.write("trees/ab/x.jsonl.zst", [b"x"])
    root = tmp_path / "größe a" / "archive"
    for name in ("lost+found/ab/y.jsonl.zst", "trees/ab/.nfs0001"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"y")
    assert Archive(folder)._names() == ["trees/ab/x.jsonl.zst"]


def test_a_write_that_fails_leaves_the_file_before_and_no_other(folder):
    folder.write("trees/ab/x", [b"before"])

    def content():
        yield b"half"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        folder.write("trees/ab/x", content())
    assert folder.read("trees/ab/x") == b"before"
    assert [*folder.names()] == ["trees/ab/x"]


@pytest.fixture
def synced(monkeypatch):
    """Return a list of the paths that are synced, and of the renames, in order."""
    done = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    replace = Path.replace

    def replaced(self, target):
        done.append("replace")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replaced)
    return done


def test_a_write_is_on_disk_before_it_takes_its_place(folder, tmp_path, synced):
    folder.write("trees/ab/x", [b"1"])
    archive = tmp_path / "größe a" / "archive"
    part, *rest = synced[-3:]
    assert (part.parent, part.suffix) == (archive, ".part")
    assert rest == ["replace", archive / "trees" / "ab"]
    assert {tmp_path, archive.parent, archive, archive / "trees"} <= {*synced[:-3]}  # each has a folder that was made


def test_a_process_syncs_folders_that_another_one_has_made(folder, tmp_path, synced):
    """That one may have died before it synced them; the first write of a process is as durable as if it had made them."""
    folder.write("trees/ab/x", [b"1"])
    first = {*synced[:-3]}
    synced.clear()
    Folder(tmp_path / "größe a" / "archive").write("trees/ab/y", [b"2"])
    assert {*synced[:-3]} == first
    synced.clear()
    folder.write("trees/ab/z", [b"3"])
    assert len(synced) == 3


def test_a_file_that_is_there_is_made_durable(folder, tmp_path, synced):
    folder.write("trees/ab/x", [b"1"])
    synced.clear()
    Folder(tmp_path / "größe a" / "archive").sync("trees/ab/x")
    archive = tmp_path / "größe a" / "archive"
    assert synced[-2:] == [archive / "trees" / "ab" / "x", archive / "trees" / "ab"]
    assert {tmp_path, archive.parent, archive, archive / "trees"} <= {*synced}
    with pytest.raises(StoreError, match=r"/trees/ab/none cannot be synced to disk: No such file"):
        folder.sync("trees/ab/none")


def test_folders_above_the_archive_need_not_be_readable(tmp_path, monkeypatch):
    sync = folder_module._sync

    def refuse(path):
        if path in refused:
            raise PermissionError(13, "Permission denied")
        sync(path)

    monkeypatch.setattr(folder_module, "_sync", refuse)
    refused = [tmp_path]
    Folder(tmp_path / "archive").write("trees/ab/x", [b"1"])
    refused = [tmp_path / "archive"]
    with pytest.raises(StoreError, match="cannot be written: Permission denied"):
        Folder(tmp_path / "archive").write("trees/ab/y", [b"1"])


def test_a_killed_write_leaves_no_file_and_nothing_once_the_folder_is_locked_again(folder, tmp_path):
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom resurgam.archive.folder import Folder\n"
        "def content():\n    yield b'half' * 100_000\n    os._exit(9)\n"
        "with Folder(Path(sys.argv[1])).exclusive() as _:\n"
        "    Folder(Path(sys.argv[1])).write('trees/ab/x', content())\n"
    )
    path = tmp_path / "größe a" / "archive"
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == 9
    assert list(folder.names()) == []
    [left] = [one for one in path.rglob("*") if one.is_file() and one.name != ".lock"]
    with folder.exclusive():
        assert not left.exists()


def test_an_error_of_the_disk_names_the_file(tmp_path):
    (tmp_path / "file").write_text("in the way")
    folder = Folder(tmp_path / "file")
    with pytest.raises(StoreError, match=r"the archive file .*/file/trees/ab/x cannot be written: "):
        folder.write("trees/ab/x", [b"1"])
    with pytest.raises(StoreError, match="cannot be read: Not a directory"):
        folder.read("trees/ab/x")


@pytest.mark.parametrize("given", ["s3://bucket/x", "file://host/x", "file:", "file:///", "", 7, None, "file:///a?b=c"])
def test_other_urls_are_refused(given):
    with pytest.raises(ValueError, match="archive must be the URL of a folder, such as file:///srv/archive, got"):
        open_files(given)


@pytest.mark.parametrize("given", ["relative/path", Path("relative/path"), "file:///tmp/relative/path"])
def test_a_folder_is_named_by_a_path_or_a_url(given, monkeypatch):
    monkeypatch.chdir("/tmp")
    assert open_files(given).url == "file:///tmp/relative/path/"
    assert open_files("/a b/ü").url == "file:///a%20b/%C3%BC/"


@pytest.mark.parametrize("id", ["01M7KNW9S2QEEMTZCAWA7TJC55", "a/b", "..", "größe", "x" * 500, ""])
def test_every_id_gives_a_plain_name_that_its_url_leads_back_to(id):
    name = name_of("trees", id)
    kind, two, last = name.split("/")
    assert (kind, len(two)) == ("trees", 2)
    assert last.endswith(".jsonl.zst")
    assert last.isascii()
    assert ".." not in last
    url = f"file:///srv/gr%C3%B6%C3%9Fe/{name}"
    assert (name_in(url), base_of(url)) == (name, "file:///srv/gr%C3%B6%C3%9Fe/")


def test_only_one_process_changes_files_at_a_time(folder, tmp_path):
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom resurgam.archive.folder import Folder\n"
        "with Folder(Path(sys.argv[1])).exclusive():\n    print('in', flush=True)\n    sys.stdin.readline()\n"
    )
    path = tmp_path / "größe a" / "archive"
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "in\n"
        with pytest.raises(ArchiveBusy, match="another process is writing files of the archive"), folder.exclusive():
            pass
        other.kill()  # the kernel lets go for it
        other.wait(60)
    with folder.exclusive():
        pass


def test_a_stamp_changes_with_the_file(folder):
    stamps = [folder.stamp("trees/ab/x")]
    for content in (b"1", b"2"):
        folder.write("trees/ab/x", [content])
        stamps.append(folder.stamp("trees/ab/x"))
    assert stamps[0] is None
    assert len(set(stamps)) == 3


def test_only_this_user_can_read_an_archive(folder):
    """As with the file of a SQLite store, whatever the umask says."""
    before = os.umask(0)
    try:
        folder.write("trees/ab/x", [b"1"])
        with folder.exclusive():
            pass
    finally:
        os.umask(before)
    root = folder._path
    modes = {path.relative_to(root).as_posix(): path.stat().st_mode & 0o777 for path in root.rglob("*")}
    assert modes == {"trees": 0o700, "trees/ab": 0o700, "trees/ab/x": 0o600, ".lock": 0o600}
    assert root.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(folder, monkeypatch):
    folder.write("trees/ab/x", [b"1"])
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("ab"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StoreError, match="trees/ab cannot be read: Permission denied"):
        list(folder.names())
    monkeypatch.setattr(Path, "stat", lambda *_, **__: refuse("ab"))
    with pytest.raises(StoreError, match="trees/ab/x cannot be read: Permission denied"):
        folder.stamp("trees/ab/x")
