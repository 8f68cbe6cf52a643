"""The Redis store on the server that the system has installed, beside the one of the tests' own package."""

import atexit
import functools
import itertools
import shutil
from pathlib import Path

import pytest

from contract.test_redis import TestRedis as OneServer
from resurgam.dev.redis import Server
from support.redis import temporary_folder

PROGRAM = shutil.which("redis-server")

_stores = itertools.count(1)


@functools.cache
def installed_server() -> Server:
    """Return the server of the system, started for this process."""
    server = Server(temporary_folder(), program=Path(PROGRAM)).start()
    atexit.register(server.kill)
    return server


if PROGRAM is not None:

    @pytest.mark.long
    class TestInstalledRedis(OneServer):
        def url(self):
            return f"{installed_server().url}?prefix=t{next(_stores)}"
