"""The Redis store on a cluster of three servers, under the suite that every store must pass."""

from contract.test_redis import TestRedis as OneServer
from support.redis import fresh_cluster_url


class TestRedisCluster(OneServer):
    def url(self):
        return fresh_cluster_url()
