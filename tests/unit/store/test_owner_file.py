import os
import signal
import subprocess
import sys

import pytest

from resurgam.store.owner_file import OwnerFile

HOLD = """
import sys
from pathlib import Path
from resurgam.store.owner_file import OwnerFile
lock = OwnerFile(Path(sys.argv[1]), sys.argv[2])
print("locked", flush=True)
sys.stdin.read()
"""


def hold(folder, name):
    """Start a process that holds the lock of an owner."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"locked\n"
    return child


def kill(child):
    child.send_signal(signal.SIGKILL)
    child.communicate()


def test_an_owner_is_dead_once_its_process_is(tmp_path):
    lock, child = OwnerFile(tmp_path, "me"), hold(tmp_path, "an/other")
    assert lock.dead() == []
    kill(child)
    assert lock.dead() == ["an/other"]
    lock.remove("an/other")
    assert lock.dead() == []
    lock.close()
    assert not tmp_path.exists()


def test_an_owner_that_has_closed_is_not_dead(tmp_path):
    lock, other = OwnerFile(tmp_path, "me"), OwnerFile(tmp_path, "other")
    other.close()
    assert lock.dead() == []
    lock.close()


def test_a_fork_does_not_hold_the_lock_of_its_parent(tmp_path):
    lock, other = OwnerFile(tmp_path, "me"), OwnerFile(tmp_path, "other")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        other.leave_behind()
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(other._file)  # the parent dies, and the child lives on
    os.close(reading)
    try:
        while lock.dead() != ["other"]:  # until the child has left it behind
            os.sched_yield()
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        lock.remove("other")
        lock.close()


def test_a_name_is_used_once(tmp_path):
    lock = OwnerFile(tmp_path, "me")
    with pytest.raises(FileExistsError):
        OwnerFile(tmp_path, "me")
    assert [file.name for file in tmp_path.iterdir()] == ["me"]
    lock.close()
