"""Engines that run while their Redis server dies and comes back, or another one takes over."""

from resurgam.dev.redis import Cluster, Server
from support.chains import Kill, Restart, Run
from support.redis import temporary_folder


async def test_an_engine_survives_restarts_of_its_server():
    server = Server(temporary_folder(), "--appendonly", "yes", "--appendfsync", "always").start()
    try:
        await Run().through(server.url, Restart(server))
    finally:
        server.kill()


async def test_an_engine_survives_the_failover_of_a_cluster():
    cluster = Cluster(temporary_folder(), replicas=1).start()
    try:
        await Run().through(cluster.url, Kill(cluster.primaries[1]))
    finally:
        cluster.kill()
