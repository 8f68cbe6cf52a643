"""How stores of several processes take turns at writing: in the order in which they began to wait, without a thread."""

import asyncio
import errno
import os
import sqlite3
import threading

import pytest

from resurgam.core.errors import StoreError
from resurgam.store import records as r
from resurgam.store.sqlite.peers import Peers
from resurgam.store.sqlite.store import SqliteStore
from resurgam.testing import ManualClock
from support.limits import HANGS

NAMES = ("one", "two", "three")
EXECUTION = r.ExecutionRef(entity_id="x", execution_id="x")
NEVER = 3600.0


@pytest.fixture
def tries_only_when_told(monkeypatch):
    monkeypatch.setattr("resurgam.store.sqlite.turns._RETRY", NEVER)


@pytest.fixture
async def stores(tmp_path):
    """Stores of one file that listen, as those of workers do."""
    clock = ManualClock()
    found = [SqliteStore(tmp_path / "a.db", clock, name=name, synchronous="OFF") for name in NAMES]
    for store in found:
        store._peers.listen()
    yield found
    for store in found:
        await store.close()


@pytest.fixture
def other(tmp_path, stores):
    """Return a connection of another program, which knows nothing of turns."""
    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    yield connection
    connection.close()


def write(store) -> "asyncio.Future[object]":
    return asyncio.ensure_future(store.purge([EXECUTION]))


async def until_it_waits(store) -> None:
    while store._writer._turn is None:
        await asyncio.sleep(0)


@pytest.mark.usefixtures("tries_only_when_told")
@pytest.mark.parametrize("patience", [0, 10**20], ids=["lets_them_past", "overtakes_them"])
async def test_the_store_that_has_waited_longest_is_told_first_whether_it_was_overtaken_or_not(
    stores, other, monkeypatch, patience
):
    monkeypatch.setattr("resurgam.store.sqlite.turns._PATIENCE", patience)
    one, two, three = stores
    ended: list[str] = []
    waiting = []
    other.execute("BEGIN IMMEDIATE")
    for store, name in ((three, "three"), (two, "two")):
        waiting.append(write(store))
        waiting[-1].add_done_callback(lambda _, name=name: ended.append(name))
        await until_it_waits(store)
    other.execute("ROLLBACK")

    while not one._writer._turns.wanted:  # it hears that the others wait
        await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*waiting, write(one)), HANGS)

    assert ended == ["three", "two"]
    assert all(store._peers.others()[0].waits_since() == 0 for store in stores)


@pytest.mark.usefixtures("tries_only_when_told")
async def test_what_comes_while_a_store_waits_goes_into_the_same_transaction(stores, other):
    two = stores[1]
    begun: list[str] = []
    other.execute("BEGIN IMMEDIATE")
    writes = [write(two)]
    await until_it_waits(two)
    writes += [write(two) for _ in range(5)]
    await asyncio.sleep(0)
    two._database._writing.set_trace_callback(begun.append)
    other.execute("ROLLBACK")
    two._writer._turns._come()

    await asyncio.wait_for(asyncio.gather(*writes), HANGS)
    assert begun.count("BEGIN IMMEDIATE") == 1
    assert begun.count("COMMIT") == 1


async def test_a_store_that_is_not_told_tries_by_itself(stores, other):
    """The other program died, or ended its transaction and said nothing."""
    other.execute("BEGIN IMMEDIATE")
    writing = write(stores[0])
    await until_it_waits(stores[0])
    other.execute("ROLLBACK")
    assert len(await asyncio.wait_for(writing, HANGS)) == 1


async def test_a_piece_that_waits_too_long_fails_and_later_ones_wait_on(stores, other, monkeypatch):
    store = stores[0]
    other.execute("BEGIN IMMEDIATE")
    early = write(store)
    await until_it_waits(store)
    late = write(store)
    await asyncio.sleep(0)
    store._writer._deadline = 0.0
    with pytest.raises(StoreError, match="database is locked"):
        await asyncio.wait_for(early, HANGS)
    assert not late.done()
    other.execute("ROLLBACK")
    assert len(await asyncio.wait_for(late, HANGS)) == 1


@pytest.mark.parametrize("listens", [True, False])
async def test_patience_begins_anew_with_each_wait(tmp_path, other, stores, listens):
    store = stores[0]
    if not listens:
        store._peers.close()
    for _ in range(2):
        other.execute("BEGIN IMMEDIATE")
        writing = write(store)
        await until_it_waits(store)
        other.execute("ROLLBACK")
        await asyncio.wait_for(writing, HANGS)
        assert store._writer._patient == 0


@pytest.mark.usefixtures("tries_only_when_told")
async def test_a_store_lets_one_past_that_has_waited_long_but_only_once(stores, monkeypatch):
    """The one that waits is stopped, say, so it never comes: the other loses one turn, not all."""
    monkeypatch.setattr("resurgam.store.sqlite.turns._PATIENCE", 0)
    one, two, _ = stores
    two._peers.note_waiting(1)
    one._writer._turns._note_wanted()

    writing = write(one)
    await until_it_waits(one)
    assert not writing.done()
    one._writer._turns._come()
    await asyncio.wait_for(writing, HANGS)

    assert not one._writer._turns.let_past()
    two._peers.note_waiting(2)
    assert one._writer._turns.let_past()


@pytest.mark.usefixtures("tries_only_when_told")
async def test_one_that_was_told_and_does_not_come_does_not_keep_the_next_waiting(stores, other):
    """The one that has waited longest is stopped."""
    one, two, three = stores
    two._peers.note_waiting(1)
    other.execute("BEGIN IMMEDIATE")
    waiting = write(three)
    await until_it_waits(three)
    other.execute("ROLLBACK")
    one._writer._turns._note_wanted()
    one._writer._turns.pass_on()
    assert not waiting.done()
    one._writer._turns.pass_on()
    await asyncio.wait_for(waiting, HANGS)


@pytest.mark.usefixtures("tries_only_when_told")
async def test_a_store_that_was_told_and_overtaken_is_told_again(stores, other):
    one, two, _ = stores
    other.execute("BEGIN IMMEDIATE")
    waiting = write(two)
    await until_it_waits(two)
    one._writer._turns.pass_on()
    for _ in range(2):  # it tries in vain, and waits on
        turn = two._writer._turn
        while two._writer._turn is turn:
            await asyncio.sleep(0)
        one._writer._turns.pass_on()
    other.execute("ROLLBACK")
    one._writer._turns.pass_on()
    await asyncio.wait_for(waiting, HANGS)


async def test_a_store_writes_though_the_disk_has_no_room_for_its_note(stores, other, monkeypatch):
    def full(*_) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    other.execute("BEGIN IMMEDIATE")
    writing = write(stores[0])
    await until_it_waits(stores[0])
    other.execute("ROLLBACK")
    assert len(await asyncio.wait_for(writing, HANGS)) == 1


@pytest.mark.parametrize("call", ["listdir", "open", "pread"])
async def test_a_process_without_a_free_file_writes_all_the_same_and_finds_its_peers_later(stores, monkeypatch, call):
    one, two, _ = stores

    def fail(*_, **__) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    two._peers.note_waiting(1)
    one._writer._turns._note_wanted()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        assert len(await asyncio.wait_for(write(one), HANGS)) == 1
    assert {peer.waits_since() for peer in one._peers.others()} == {0, 1}


async def test_one_that_waits_a_moment_may_be_overtaken(stores, monkeypatch):
    monkeypatch.setattr("resurgam.store.sqlite.turns._PATIENCE", 10**20)
    one, two, _ = stores
    two._peers.note_waiting(1)
    one._writer._turns._note_wanted()
    assert not one._writer._turns.let_past()


async def test_a_store_that_never_met_another_looks_for_none(tmp_path, monkeypatch):
    """What several processes need costs one process nothing."""
    store = SqliteStore(tmp_path / "a.db", ManualClock(), name="one", synchronous="OFF")
    monkeypatch.setattr(Peers, "others", lambda _: pytest.fail("looked"))
    try:
        store._peers.listen()
        for _ in range(5):
            await write(store)
    finally:
        monkeypatch.undo()
        await store.close()


async def test_no_store_is_looked_for_when_none_has_waited_lately(stores, other, monkeypatch):
    one = stores[0]
    other.execute("BEGIN IMMEDIATE")
    writing = write(one)
    await until_it_waits(one)
    other.execute("ROLLBACK")
    await writing
    assert one._writer._turns.wanted
    one._writer._turns._wanted_until = 0
    await write(one)
    assert not one._writer._turns.wanted


async def test_no_thread_waits_for_the_lock(stores, other):
    other.execute("BEGIN IMMEDIATE")
    writing = write(stores[0])
    await until_it_waits(stores[0])
    assert not any(thread.name.startswith("resurgam-writer") for thread in threading.enumerate())
    other.execute("ROLLBACK")
    await writing


async def test_a_newcomer_is_found_and_one_that_left_is_forgotten(stores, tmp_path):
    one, two, _ = stores
    assert {peer.name for peer in one._peers.others()} == {"two", "three"}
    await two.close()
    assert {peer.name for peer in one._peers.others()} == {"three"}
    four = SqliteStore(tmp_path / "a.db", ManualClock(), name="four", synchronous="OFF")
    four._peers.listen()
    try:
        assert {peer.name for peer in one._peers.others()} == {"three", "four"}
    finally:
        await four.close()


async def test_the_folder_is_listed_again_only_after_it_has_changed(stores, monkeypatch):
    one = stores[0]
    folder = one._owner.folder
    monkeypatch.setattr("resurgam.store.sqlite.peers._TICK", -1)  # the last change was long ago
    first = one._peers.others()[0]
    assert one._peers.others()[0] is first
    (folder / "~new").touch()
    assert one._peers.others()[0] is not first
    (folder / "~new").unlink()


async def test_a_peer_that_died_does_not_end_this_process(stores):
    """Its pipe stays until it is reaped; nobody reads from it."""
    one, two, _ = stores
    [peer] = [peer for peer in one._peers.others() if peer.name == "two"]
    asyncio.get_running_loop().remove_reader(two._peers._pipe)
    os.close(two._peers._pipe)
    two._peers._pipe = None
    for _ in range(100_000):  # more than a pipe holds
        peer.tell(b".")
