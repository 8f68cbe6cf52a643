"""What is acknowledged is on the disk: at synchronous=full no acknowledgement comes before its sync."""

import re
import shutil
import subprocess

import pytest

from support.cluster import Cluster
from support.limits import HANGS

ACKS = 25

# Writes down every write and sync of the process, as strace does.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void tell(const char *what, int fd) {
    char link[64], path[4096], line[4300];
    static int file = -1;
    if (file < 0) file = open(getenv("SHIM_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    int size = snprintf(line, sizeof line, "1 %s(%d<%s>, ...) = 0\n", what, fd, path);
    syscall(SYS_write, file, line, size);
}

int fsync(int fd) { int r = syscall(SYS_fsync, fd); tell("fsync", fd); return r; }
int fdatasync(int fd) { int r = syscall(SYS_fdatasync, fd); tell("fdatasync", fd); return r; }
ssize_t write(int fd, const void *b, size_t n) { tell("write", fd); return syscall(SYS_write, fd, b, n); }
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t o) { tell("pwrite64", fd); return syscall(SYS_pwrite64, fd, b, n, o); }
ssize_t pwrite(int fd, const void *b, size_t n, off_t o) { tell("pwrite64", fd); return syscall(SYS_pwrite64, fd, b, n, o); }
"""

CALL = re.compile(r"^\d+\s+(fsync|fdatasync|write|pwrite64)\(\d+<([^>]*)>", re.MULTILINE)


def _with_strace(cluster, arguments, trace) -> None:
    calls = "trace=fsync,fdatasync,write,pwrite64"
    process = cluster.spawn(
        ["strace", "-f", "-y", "-s", "0", "-e", calls, "-o", str(trace), *cluster.command(*arguments)]
    )
    assert process.wait(HANGS) == 0, cluster.said(process)


def _with_shim(cluster, arguments, trace) -> None:
    source, library = cluster.folder / "shim.c", cluster.folder / "shim.so"
    source.write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    process = cluster.spawn(cluster.command(*arguments), LD_PRELOAD=str(library), SHIM_LOG=str(trace))
    assert process.wait(HANGS) == 0, cluster.said(process)


def _calls(cluster, *arguments: str) -> list[tuple[str, str]]:
    """Run a shop and return its writes and syncs: what, and to which file."""
    trace = cluster.folder / "calls.txt"
    if shutil.which("strace"):
        _with_strace(cluster, arguments, trace)
    elif shutil.which("cc"):
        _with_shim(cluster, arguments, trace)
    else:
        pytest.fail("neither strace nor a C compiler (cc) is installed; without one of them syncs cannot be seen")
    return CALL.findall(trace.read_text())


def _town(tmp_path, level: str) -> Cluster:
    folder = tmp_path / level
    folder.mkdir()
    return Cluster(folder, options=f"?synchronous={level}")


def _syncs(calls) -> int:
    """Count the syncs of the WAL; making a new file has some of its own."""
    return sum(what in {"fsync", "fdatasync"} and path.endswith("-wal") for what, path in calls)


def _commits(cluster) -> int:
    """Count the transactions in the WAL; the shop leaves it there."""
    wal = cluster.file.with_name("shop.db-wal").read_bytes()
    frame = 24 + int.from_bytes(wal[8:12], "big")
    return sum(wal[begin + 4 : begin + 8] != bytes(4) for begin in range(32, len(wal) - frame + 1, frame))


def _early(cluster, calls) -> tuple[int, int]:
    """Return how many acknowledgements there were, and how many of them while the WAL was not synced."""
    acks = early = dirty = 0
    for what, path in calls:
        if path.endswith("shop.db-wal"):
            dirty = what in {"write", "pwrite64"}
        elif path == str(cluster.effects_file) and what == "write":
            acks += 1
            early += dirty
    return acks, early


def test_no_acknowledgement_before_its_sync(tmp_path):
    full, off = _town(tmp_path, "full"), _town(tmp_path, "off")
    try:
        calls = _calls(full, "--acks", str(ACKS))
        assert _early(full, calls) == (ACKS, 0)
        assert _syncs(calls) >= _commits(full) > ACKS
        lazy = _calls(off, "--acks", str(ACKS))
        assert _early(off, lazy) == (ACKS, ACKS)  # so it can be told apart
        assert _syncs(lazy) * 5 < _syncs(calls)
        print(f"{_commits(full)} commits, {_syncs(calls)} syncs; off: {_syncs(lazy)}")
    finally:
        full.close()
        off.close()


def test_a_worker_syncs_each_of_its_commits(tmp_path):
    full, off = _town(tmp_path, "full"), _town(tmp_path, "off")
    try:
        calls, lazy = _calls(full, "--once"), _calls(off, "--once")
        assert _syncs(calls) >= _commits(full) >= 4
        assert _syncs(lazy) * 5 < _syncs(calls)
        print(f"{_commits(full)} commits, {_syncs(calls)} syncs; off: {_syncs(lazy)}")
    finally:
        full.close()
        off.close()
