"""Lost connections, restarts, failover and clusters: what becomes of calls to a Redis store."""

import asyncio
import contextlib

import pytest

from resurgam.core.errors import StoreError
from resurgam.dev.redis import Cluster, Sentinel, Server, free_port, start_replica
from resurgam.runtime.system import SystemClock
from resurgam.store.redis import node as nodes
from resurgam.store.redis import subscriptions
from resurgam.store.redis.discovery import slot_of, tag_of
from resurgam.store.redis.link import Link
from resurgam.store.redis.subscriptions import Subscriptions
from resurgam.store.redis.url import parse
from support.lua import library
from support.redis import fresh_cluster_url, fresh_url, shared_cluster, shared_server, temporary_folder

__all__ = ["library"]
pytestmark = pytest.mark.usefixtures("library")

PATIENT = 60
"""Seconds within which what must come has come, on a busy machine."""


@contextlib.asynccontextmanager
async def linked(url):
    link = Link(parse(url), SystemClock(), name="test", lease=1000)
    try:
        yield link
    finally:
        await link.close()


@contextlib.contextmanager
def running(server):
    try:
        yield server.start()
    finally:
        server.kill()


async def until_answered(link, partition=0, part="back"):
    """Ask until a call is answered; return the errors that came before."""
    errors = []
    async with asyncio.timeout(PATIENT):
        while True:
            try:
                assert await link.ask(partition, "echo", part) == part.encode()
            except StoreError as error:
                errors.append(error)
            else:
                return errors


async def until_noticed(link):
    """Wait until the link knows that a connection is lost: what is sent before has an unknown outcome."""
    async with asyncio.timeout(PATIENT):
        while not any(node.is_lost for node in link.nodes):
            await asyncio.sleep(0.001)


FOREVER = "while true do end"
"""A script that runs until it is killed."""


async def until_busy(server):
    """Wait until a script runs for so long that the server refuses other commands."""
    async with asyncio.timeout(PATIENT):
        while True:
            try:
                await asyncio.to_thread(server.ask, "PING")
            except Exception as error:
                if "BUSY" in str(error):
                    return
            await asyncio.sleep(0.001)


async def until_asked(link):
    """Wait until a call has been made, and has gone as far as it can."""
    before = link.flights
    async with asyncio.timeout(PATIENT):
        while not link.is_busy:
            await asyncio.sleep(0)
        while link.flights == before and not any(node.is_lost for node in link.nodes):
            await asyncio.sleep(0)


# One server.


async def test_calls_that_wait_survive_a_restart():
    with running(Server(temporary_folder())) as server:
        async with linked(server.url) as link:
            await link.ask(0, "echo", "opened")
            server.kill()
            await until_noticed(link)
            waiting = asyncio.create_task(link.ask(0, "echo", "again"))
            await until_asked(link)
            server.start()
            assert await waiting == b"again"


async def test_a_call_under_way_when_the_connection_ends_has_an_unknown_outcome():
    with running(Server(temporary_folder())) as server:
        async with linked(server.url) as link:
            await link.ask(0, "echo", "opened")
            server.pause()
            under_way = asyncio.create_task(link.ask(0, "count", 0))
            await until_asked(link)
            flights = link.flights
            waiting = asyncio.create_task(link.ask(0, "echo", "waited"))
            await asyncio.sleep(0)
            assert link.flights == flights
            server.kill()
            with pytest.raises(StoreError, match="it is unknown whether 'count' was done"):
                await under_way
            server.start()
            assert await waiting == b"waited"


async def test_a_call_under_way_is_never_sent_twice():
    with running(Server(temporary_folder(), "--appendonly", "yes", "--appendfsync", "always")) as server:
        async with linked(server.url) as link:
            await link.ask(0, "echo", "opened")
            failed = 0
            for _ in range(3):
                calls = [asyncio.create_task(link.ask(0, "count", 0)) for _ in range(100)]
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                server.kill()
                answers = await asyncio.gather(*calls, return_exceptions=True)
                failed += sum(isinstance(answer, StoreError) for answer in answers)
                server.start()
                await until_answered(link)
            counted = int(server.ask("GET", f"{link.keys[0]}count") or 0)
            assert 300 - failed <= counted <= 300


async def test_a_server_that_does_not_come_back_is_an_error_in_time(monkeypatch):
    monkeypatch.setattr(nodes, "PATIENCE", 0.2)
    with running(Server(temporary_folder())) as server:
        async with linked(server.url) as link:
            await link.ask(0, "echo", "opened")
            server.kill()
            await until_noticed(link)
            with pytest.raises(StoreError, match="cannot connect"):
                await asyncio.wait_for(link.ask(0, "echo", "a"), PATIENT)
            server.start()
            await until_answered(link)


async def test_a_server_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(nodes, "_ANSWER", 0.2)
    with running(Server(temporary_folder())) as server:
        async with linked(server.url) as link:
            await link.ask(0, "echo", "opened")
            server.pause()
            with pytest.raises(StoreError, match=r"no answer .*; it is unknown whether 'echo' was done"):
                await asyncio.wait_for(link.ask(0, "echo", "a"), PATIENT)
            server.resume()
            await until_answered(link)


async def test_a_function_is_waited_for_as_long_as_it_runs(monkeypatch):
    monkeypatch.setattr(nodes, "_ANSWER", 0.2)
    probes, runs_function = [], nodes.runs_function

    async def runs_function_noting(address, endpoint, _):
        probes.append(await runs_function(address, endpoint, PATIENT))
        return probes[-1]

    monkeypatch.setattr(nodes, "runs_function", runs_function_noting)
    with running(Server(temporary_folder(), "--busy-reply-threshold", "1")) as server:
        async with linked(f"{server.url}/1") as link:
            await link.ask(0, "echo", "opened")
            runs = asyncio.create_task(link.ask(0, "spin", 0))
            async with asyncio.timeout(PATIENT):
                while len(probes) < 3 and not runs.done():
                    await asyncio.sleep(0.001)
            assert not runs.done()
            assert all(probes)
            server.ask("FUNCTION", "KILL")
            with pytest.raises(StoreError, match="FUNCTION KILL"):
                await asyncio.wait_for(runs, PATIENT)


async def test_functions_that_were_flushed_are_loaded_again():
    url = fresh_url()
    async with linked(url) as link:
        await link.ask(0, "echo", "opened")
        shared_server().ask("FUNCTION", "FLUSH")
        answers = await asyncio.gather(*(link.ask(n, "echo", n) for n in range(16)))
        assert answers == list(range(16))


async def test_calls_wait_while_a_script_of_others_runs():
    with running(Server(temporary_folder(), "--busy-reply-threshold", "1")) as server:
        async with linked(server.url) as link:
            await link.ask(0, "echo", "opened")
            script = "local t = redis.call('TIME')[1] while redis.call('TIME')[1] - t < 0 do end local n = 0 for i = 1, 3e7 do n = n + i end"
            busy = asyncio.create_task(asyncio.to_thread(server.ask, "EVAL", script, 0))
            while not busy.done():
                assert await link.ask(0, "echo", "a") == b"a"
            await busy


async def test_a_full_memory_is_an_error_with_a_remedy():
    with running(Server(temporary_folder())) as server:
        async with linked(server.url) as link:
            await link.ask(0, "echo", "opened")
            server.ask("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(StoreError, match=r"OOM .*; give the server more memory"):
                await link.ask(0, "count", 0)


# Replicas.


async def test_wait_asks_for_the_acknowledgement_of_replicas():
    with running(Server(temporary_folder())) as primary:
        replica = start_replica(temporary_folder(), primary)
        try:
            async with linked(f"{primary.url}?wait=1") as link:
                assert await link.ask(0, "count", 0) == 1
                replica.pause()
                with pytest.raises(StoreError, match=r"0 of 1 replicas acknowledged a write .* it was done"):
                    await link.ask(0, "count", 0)
                replica.resume()
                async with asyncio.timeout(PATIENT):
                    while True:
                        with contextlib.suppress(StoreError):
                            assert await link.ask(0, "count", 0) > 2
                            break
        finally:
            replica.resume()
            replica.kill()


async def test_a_replica_that_is_promoted_is_found_among_the_servers_of_the_url():
    with running(Server(temporary_folder())) as primary:
        replica = start_replica(temporary_folder(), primary)
        try:
            async with linked(f"{replica.url},127.0.0.1:{primary.port}") as link:
                assert await link.ask(0, "count", 0) == 1
                await until_replicated(primary, replica)
                primary.kill()
                await until_noticed(link)
                replica.ask("REPLICAOF", "NO", "ONE")
                assert await link.ask(0, "count", 0) == 2
        finally:
            replica.kill()


async def test_a_primary_that_becomes_a_replica_is_left():
    with running(Server(temporary_folder())) as primary:
        replica = start_replica(temporary_folder(), primary)
        try:
            async with linked(f"{primary.url},127.0.0.1:{replica.port}") as link:
                assert await link.ask(0, "count", 0) == 1
                await until_replicated(primary, replica)
                replica.ask("REPLICAOF", "NO", "ONE")
                primary.ask("REPLICAOF", "127.0.0.1", replica.port)
                assert await link.ask(0, "count", 0) == 2
                assert int(replica.ask("GET", f"{link.keys[0]}count")) == 2
        finally:
            replica.kill()


async def until_replicated(primary, replica):
    async with asyncio.timeout(PATIENT):
        while primary.ask("ROLE")[1] != replica.ask("ROLE")[4]:
            await asyncio.sleep(0.001)


async def test_a_failover_by_a_sentinel_is_followed():
    with running(Server(temporary_folder())) as primary:
        replica = start_replica(temporary_folder(), primary)
        try:
            with running(Sentinel(temporary_folder(), primary)) as sentinel:
                async with asyncio.timeout(PATIENT):
                    while len(sentinel.ask("SENTINEL", "replicas", "primary")) == 0:
                        await asyncio.sleep(0.001)
                async with linked(sentinel.url) as link:
                    assert await link.ask(0, "count", 0) == 1
                    await until_replicated(primary, replica)
                    primary.kill()
                    await until_answered(link)
                    assert await link.ask(0, "count", 0) == 2
                    assert replica.ask("ROLE")[0] == b"master"
        finally:
            replica.kill()


async def test_a_sentinel_that_does_not_know_the_name_is_named():
    with running(Server(temporary_folder())) as primary, running(Sentinel(temporary_folder(), primary)) as sentinel:
        async with linked(sentinel.url.replace("/primary", "/other")) as link:
            with pytest.raises(StoreError, match="knows no 'other'"):
                await link.ask(0, "echo", "a")


async def test_a_server_is_no_sentinel():
    url = shared_server().url.replace("redis://", "redis+sentinel://")
    async with linked(
        f"redis+sentinel://127.0.0.1:{free_port()},{url.removeprefix('redis+sentinel://')}/primary"
    ) as link:
        with pytest.raises(StoreError, match="is no sentinel"):
            await link.ask(0, "echo", "a")


# Clusters.


async def test_the_partitions_are_spread_over_the_cluster():
    async with linked(fresh_cluster_url()) as link:
        assert await link.ask_all("count", 0) == [1] * 16
        counts = [len(server.ask("KEYS", f"{link.address.prefix}*count")) for server in shared_cluster().primaries]
        assert sum(counts) == 16
        assert min(counts) >= 0.2 * 16
        assert link.flights == 3


async def test_one_flight_for_each_server_of_a_cluster():
    async with linked(fresh_cluster_url()) as link:
        await link.ask(0, "echo", "opened")
        before = link.flights
        await asyncio.gather(*(link.ask(n % 16, "count", 0) for n in range(160)))
        assert link.flights == before + 3


def move_slot(cluster, slot, target):
    """Begin to move a slot; return a function that ends the move."""
    source = next(server for server in cluster.primaries if owns(server, slot))
    assert source is not target
    source_id, target_id = source.ask("CLUSTER", "MYID"), target.ask("CLUSTER", "MYID")
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)

    def finish():
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        for server in (target, source, *cluster.primaries):
            server.ask("CLUSTER", "SETSLOT", slot, "NODE", target_id)

    return finish


def owns(server, slot):
    own = server.ask("CLUSTER", "MYID")
    return any(
        first <= slot <= last and primary[2] == own for first, last, primary, *_ in server.ask("CLUSTER", "SLOTS")
    )


async def test_a_partition_that_is_moved_is_followed_and_never_seen_by_halves():
    with running(Cluster(temporary_folder())) as cluster:
        async with linked(cluster.url) as link:
            assert await link.ask_all("count", 0) == [1] * 16
            slot = slot_of(tag_of(5))
            target = next(server for server in cluster.primaries if not owns(server, slot))
            finish = move_slot(cluster, slot, target)
            waiting = asyncio.create_task(link.ask(5, "count", 0))
            assert await link.ask(4, "count", 0) == 2
            refused = link.flights
            async with asyncio.timeout(PATIENT):
                while link.flights < refused + 3:
                    await asyncio.sleep(0.001)
            assert not waiting.done()
            finish()
            assert await asyncio.wait_for(waiting, PATIENT) == 2
            assert await link.ask(5, "count", 0) == 3
            assert target.ask("GET", f"{link.keys[5]}count") == b"3"


async def test_a_link_that_knows_only_one_server_finds_the_others():
    cluster = shared_cluster()
    options = fresh_cluster_url().partition("?")[2]
    async with linked(f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{cluster.servers[2].port}?{options}") as link:
        assert await link.ask_all("count", 0) == [1] * 16


async def test_a_failover_in_a_cluster_is_followed():
    with running(Cluster(temporary_folder(), replicas=1)) as cluster:
        async with linked(cluster.url) as link:
            assert await link.ask_all("count", 0) == [1] * 16
            dying = cluster.primaries[0]
            moved = [n for n in range(16) if owns(dying, slot_of(tag_of(n)))]
            await until_replicated(dying, cluster.servers[3])
            dying.kill()
            await until_noticed(link)
            for partition in moved:
                await until_answered(link, partition)
            assert await link.ask_all("count", 0) == [2] * 16


# Channels.


class Heard:
    def __init__(self, link):
        self.messages = asyncio.Queue()
        self.renewed = asyncio.Event()
        self.subscriptions = Subscriptions(link, lambda *message: self.messages.put_nowait(message), self.renewed.set)


@contextlib.asynccontextmanager
async def listening(link):
    heard = Heard(link)
    try:
        yield heard
    finally:
        heard.subscriptions.close()


async def test_messages_arrive_from_any_server_of_a_cluster():
    async with linked(fresh_cluster_url()) as link, listening(link) as heard:
        await heard.subscriptions.hold(["news"])
        for partition in range(16):
            await link.ask(partition, "publish", ["news", str(partition)])
        async with asyncio.timeout(PATIENT):
            got = [await heard.messages.get() for _ in range(16)]
        assert sorted(got, key=lambda message: int(message[1])) == [("news", b"%d" % n) for n in range(16)]


async def test_a_channel_is_released_when_its_last_holder_is_gone():
    async with linked(fresh_url()) as link, listening(link) as heard:
        await asyncio.gather(heard.subscriptions.hold(["a", "b"]), heard.subscriptions.hold(["b"]))
        heard.subscriptions.release(["a", "b"])
        await link.ask(0, "publish", ["b", "1"])
        assert await heard.messages.get() == ("b", b"1")
        heard.subscriptions.release(["b"])
        await heard.subscriptions.hold(["c"])
        counts = shared_server().ask("PUBSUB", "NUMSUB", "a", "b", "c")
        assert counts == [b"a", 0, b"b", 0, b"c", 1]


async def test_channels_are_subscribed_to_again_after_a_restart():
    with running(Server(temporary_folder())) as server:
        async with linked(server.url) as link, listening(link) as heard:
            await heard.subscriptions.hold(["news"])
            server.kill()
            server.start()
            await asyncio.wait_for(heard.renewed.wait(), PATIENT)
            await until_answered(link)
            assert await link.ask(0, "publish", ["news", "again"]) == 1
            assert await heard.messages.get() == ("news", b"again")


async def test_a_server_that_confirms_no_subscription_is_left_for_another(monkeypatch):
    monkeypatch.setattr(subscriptions, "_CONFIRM", 0.1)
    monkeypatch.setattr(subscriptions, "_PING", 10.0 * PATIENT)
    monkeypatch.setattr(subscriptions, "PATIENCE", PATIENT)
    tried, connect = [], subscriptions.connect

    async def connect_noting(address, endpoint, on_push):
        tried.append(endpoint[1])
        return await connect(address, endpoint, on_push)

    monkeypatch.setattr(subscriptions, "connect", connect_noting)
    with running(Cluster(temporary_folder(), "--cluster-node-timeout", "60000")) as cluster:
        async with linked(cluster.url) as link, listening(link) as heard:
            await heard.subscriptions.hold(["first"])
            [hangs] = [server for server in cluster.servers if server.port in tried]
            hangs.pause()
            await heard.subscriptions.hold(["news"])
            [other] = [server for server in cluster.servers if server.port == tried[-1]]
            assert other is not hangs
            assert len(tried) == 2
            assert other.ask("PUBSUB", "NUMSUB", "first", "news") == [b"first", 1, b"news", 1]


async def test_a_hold_waits_while_a_script_of_others_runs(monkeypatch):
    monkeypatch.setattr(subscriptions, "PATIENCE", PATIENT)
    with running(Server(temporary_folder(), "--busy-reply-threshold", "1")) as server:
        async with linked(server.url) as link, listening(link) as heard:
            await heard.subscriptions.hold(["first"])
            busy = asyncio.create_task(asyncio.to_thread(server.ask, "EVAL", FOREVER, 0))
            await until_busy(server)
            holding = asyncio.create_task(heard.subscriptions.hold(["news"]))
            async with asyncio.timeout(PATIENT):
                while heard.subscriptions.hears():  # until the refusal
                    await asyncio.sleep(0.001)
            server.ask("SCRIPT", "KILL")
            await holding
            await asyncio.gather(busy, return_exceptions=True)


async def test_a_hold_without_a_server_is_an_error_in_time(monkeypatch):
    monkeypatch.setattr(subscriptions, "PATIENCE", 0.2)
    with running(Server(temporary_folder())) as server:
        async with linked(server.url) as link, listening(link) as heard:
            await heard.subscriptions.hold(["first"])
            server.kill()
            await until_noticed(link)
            with pytest.raises(StoreError, match="no subscription was confirmed"):
                await asyncio.wait_for(heard.subscriptions.hold(["news"]), PATIENT)
            server.start()
            await asyncio.wait_for(heard.renewed.wait(), PATIENT)
            await heard.subscriptions.hold(["news"])
            assert server.ask("PUBSUB", "NUMSUB", "first", "news") == [b"first", 1, b"news", 1]


async def test_a_hold_that_is_cancelled_holds_nothing():
    async with linked(fresh_url()) as link, listening(link) as heard:
        await heard.subscriptions.hold(["first"])
        holding = asyncio.create_task(heard.subscriptions.hold(["news"]))
        await asyncio.sleep(0)
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        await heard.subscriptions.hold(["last"])
        assert shared_server().ask("PUBSUB", "NUMSUB", "news") == [b"news", 0]


async def test_a_user_who_may_not_subscribe_is_told():
    options = ("--user", "deaf", "on", ">right", "~*", "resetchannels", "+@all")
    with running(Server(temporary_folder(), *options)) as server:
        async with linked(server.url.replace("redis://", "redis://deaf:right@")) as link, listening(link) as heard:
            with pytest.raises(StoreError, match=r"refuses a subscription: NOPERM"):
                await asyncio.wait_for(heard.subscriptions.hold(["news"]), PATIENT)
