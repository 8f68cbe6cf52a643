import asyncio
import contextlib
import logging

import hiredis
import pytest

from resurgam import Context, Engine, Registry
from resurgam.core.errors import StoreError
from resurgam.dev.redis import Server, free_port, start_replica
from resurgam.runtime.system import SystemClock
from resurgam.store.redis.link import Link
from resurgam.store.redis.opening import Server as Described
from resurgam.store.redis.opening import describe_persistence, possible_losses
from resurgam.store.redis.url import parse
from support.redis import durable_url, fresh_cluster_url, fresh_url, shared_cluster, shared_server, temporary_folder

registry = Registry()


@registry.workflow
async def greet(ctx: Context, name: str) -> str:
    return f"Hello, {name}!"


USER = ("--user", "worker", "on", ">right", "~*", "&*", "+@all")


async def open_(url):
    link = Link(parse(url), SystemClock(), name="test", lease=1000)
    try:
        await link.any_primary()
        return link.store_id
    finally:
        await link.close()


async def refusal(url):
    """Return the error of an opening: one line, without the password."""
    with pytest.raises(StoreError) as refused:
        await open_(url)
    text = str(refused.value)
    assert "\n" not in text
    assert "s3cret" not in text
    return text


async def test_a_store_keeps_its_id():
    url = fresh_url()
    assert await open_(url) == await open_(url) != ""


async def test_stores_opened_at_the_same_time_agree_on_the_id():
    url = fresh_url()
    assert len(set(await asyncio.gather(*(open_(url) for _ in range(5))))) == 1


async def test_a_server_that_is_not_there_is_named():
    port = free_port()
    assert f"cannot connect to 127.0.0.1:{port}: Connection refused" in await refusal(
        f"redis://me:s3cret@127.0.0.1:{port}"
    )


async def test_a_host_that_is_not_there_is_named():
    assert "cannot connect to nowhere.invalid:1" in await refusal("redis://nowhere.invalid:1")


@pytest.fixture
def guarded():
    server = Server(temporary_folder(), *USER, password="right")
    yield server.start()
    server.kill()


async def test_a_wrong_password_is_refused(guarded):
    host = guarded.url.removeprefix("redis://")
    assert "refuses this user and password" in await refusal(f"redis://:s3cret@{host}")
    assert "refuses this user and password" in await refusal(f"redis://worker:s3cret@{host}")
    assert "wants a password" in await refusal(f"redis://{host}")


async def test_a_user_with_a_password_may_open(guarded):
    assert await open_(guarded.url.replace("redis://", "redis://worker:right@"))
    assert await open_(guarded.url.replace("redis://", "redis://:right@") + "?prefix=other")


async def test_a_cluster_url_needs_a_cluster():
    assert "is no cluster; use redis://" in await refusal(fresh_url().replace("redis://", "redis+cluster://"))


async def test_a_server_of_a_cluster_needs_a_cluster_url():
    one = shared_cluster().servers[0]
    assert "belongs to a cluster; use redis+cluster://" in await refusal(one.url)


async def test_the_number_of_partitions_cannot_change():
    url = fresh_url()
    await open_(url)
    text = await refusal(f"{url}&partitions=8")
    assert "created with 16 partitions, and the URL says 8" in text
    assert "?partitions=16" in text


async def test_the_number_of_partitions_is_chosen_when_the_store_is_created():
    url = fresh_url("partitions=3")
    assert await open_(url) == await open_(url)
    assert "created with 3 partitions" in await refusal(url.replace("partitions=3", "partitions=16"))


async def test_data_of_another_format_is_refused():
    url = fresh_url()
    await open_(url)
    prefix = url.rpartition("prefix=")[2]
    shared_server().ask("HSET", f"{prefix}:{{p00}}:meta", "format", "1")
    assert "the data has format 1, and this version of Resurgam reads format 2" in await refusal(url)


@pytest.mark.parametrize("fresh", [fresh_url, fresh_cluster_url], ids=["single", "cluster"])
async def test_keys_of_others_under_the_prefix_are_found(fresh):
    url = fresh()
    address = parse(url)
    servers = shared_cluster().servers if fresh is fresh_cluster_url else [shared_server()]
    for server in servers:
        for number in range(20):
            with contextlib.suppress(hiredis.ReplyError):  # another server of the cluster has the slot
                server.ask("SET", f"{address.prefix}session-{number}", "x")
    assert f"not Resurgam's, such as '{address.prefix}session-" in await refusal(url)


async def test_a_store_opens_again_after_its_server_was_emptied_under_it():
    with contextlib.ExitStack() as stack:
        server = Server(temporary_folder()).start()
        stack.callback(server.kill)
        assert await open_(server.url)
        server.ask("FLUSHALL")
        server.ask("SET", "resurgam:{p03}:feed", "of an engine that still runs")
        assert await open_(server.url)


async def test_a_prefix_with_a_star_is_no_pattern():
    shared_server().ask("SET", "star-x:", "somebody's")
    assert await open_(f"{shared_server().url}?prefix=star*x")


@pytest.fixture
def evicting():
    server = Server(temporary_folder(), "--maxmemory-policy", "allkeys-lru").start()
    yield server
    server.kill()


async def test_a_server_that_drops_keys_is_refused(evicting):
    assert "maxmemory-policy allkeys-lru" in await refusal(evicting.url)
    evicting.ask("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    assert await open_(evicting.url)


@pytest.fixture
def old():
    server = Server(temporary_folder(), "--rename-command", "FCALL", "").start()
    yield server
    server.kill()


async def test_a_server_without_functions_is_too_old(old):
    assert "is too old: it has no FCALL; Redis 7.0 or Valkey is needed" in await refusal(old.url)


async def test_a_replica_is_refused():
    replica = start_replica(temporary_folder(), shared_server())
    try:
        assert f"127.0.0.1:{replica.port} is a read-only replica" in await refusal(replica.url)
    finally:
        replica.kill()


async def test_a_user_needs_the_keys_and_channels_of_the_prefix_and_no_dangerous_commands():
    rights = ("~shop:*", "&shop:*", "+@all", "-@dangerous", "-@admin")
    server = Server(temporary_folder(), "--user", "worker", "on", ">right", *rights).start()
    try:
        url = server.url.replace("redis://", "redis://worker:right@")
        async with Engine(f"{url}?prefix=shop", registry=registry) as engine:
            assert await engine.execute(greet, "Ada") == "Hello, Ada!"
        assert "NOPERM" in await refusal(f"{url}?prefix=other")
    finally:
        server.kill()


async def test_an_engine_with_a_worker_fails_at_its_start():
    with pytest.raises(StoreError, match="cannot connect") as refused:
        async with Engine(f"redis://me:s3cret@127.0.0.1:{free_port()}", registry=registry):
            pass
    assert "s3cret" not in str(refused.value)


async def test_a_user_who_may_not_load_functions_is_told():
    server = Server(temporary_folder(), "--user", "reader", "on", ">right", "~*", "&*", "+@all", "-function").start()
    try:
        text = await refusal(server.url.replace("redis://", "redis://reader:right@"))
        assert "NOPERM" in text
        assert "the user of the URL needs" in text
    finally:
        server.kill()


async def test_a_host_that_is_no_redis_server_is_told():
    async def talk(_, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert "not that of a Redis server" in await refusal(f"redis://127.0.0.1:{port}")


async def test_every_call_raises_the_error_of_the_opening():
    link = Link(parse(f"redis://127.0.0.1:{free_port()}"), SystemClock(), name="test", lease=1000)
    try:
        errors = await asyncio.gather(*(link.ask(n, "read", []) for n in range(3)), return_exceptions=True)
        assert all(isinstance(error, StoreError) for error in errors)
        with pytest.raises(StoreError, match="cannot connect"):
            await link.ask(0, "read", [])
    finally:
        await link.close()


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_store_that_starts_or_runs_work_warns_once_of_what_can_be_lost(caplog):
    url = fresh_url()
    async with Engine(url, registry=registry) as engine:
        assert await engine.execute(greet, "Ada") == "Hello, Ada!"
        [warning] = warnings_in(caplog)
    assert "memory only" in warning
    assert "a restart of the server loses everything" in warning
    caplog.clear()
    async with Engine(url, registry=registry, worker=False) as engine:
        await engine.start(greet, "Eve")
        await engine.start(greet, "Ida")
        assert warnings_in(caplog) == [warning]


async def test_a_store_that_is_only_looked_at_does_not_warn(caplog):
    url = fresh_url()
    async with Engine(url, registry=registry, worker=False) as engine:
        assert not (await engine.list()).instances
    assert warnings_in(caplog) == []


async def test_what_was_found_is_logged_at_the_opening(caplog):
    caplog.set_level(logging.INFO, "resurgam.store")
    await open_(durable_url())
    assert "append-only file, appendfsync always" in caplog.text


def described(aof="1", fsync="always", save="", replicas="0"):
    return Described("here", {"aof_enabled": aof, "connected_slaves": replicas}, {"appendfsync": fsync, "save": save})


@pytest.mark.parametrize(
    ("server", "url", "found", "loss"),
    [
        (described(), "redis://h", "append-only file, appendfsync always", None),
        (described(fsync="everysec"), "redis://h", "append-only file, appendfsync everysec", "up to two seconds"),
        (described(fsync="no"), "redis://h", "append-only file, appendfsync no", "has not written"),
        (described(aof="0", save="3600 1"), "redis://h", "no append-only file, snapshots only", "last snapshot"),
        (described(aof="0"), "redis://h", "memory only", "loses everything"),
        (described(replicas="1"), "redis://h", "append-only file, appendfsync always", "a failover loses"),
        (described(replicas="1"), "redis://h?wait=1", "append-only file, appendfsync always", None),
        (
            described(),
            "redis://h?wait=2",
            "append-only file, appendfsync always",
            "wait=2 cannot be fulfilled with 0 replicas",
        ),
        (described(), "redis+sentinel://h/p", "append-only file, appendfsync always", "a failover loses"),
        (Described("here", {}, {}), "redis://h", "does not say", None),
    ],
)
def test_the_ways_to_lose_acknowledged_work_are_named(server, url, found, loss):
    assert found in describe_persistence(server)
    losses = possible_losses(parse(url), [server])
    assert (losses == []) if loss is None else (loss in losses[0])
