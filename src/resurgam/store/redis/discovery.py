"""Find the servers that take writes: by the list in the URL, by sentinels, or by the slots of a cluster."""

import binascii
from collections.abc import Iterable, Sequence
from typing import Any, Final

from resurgam.core.errors import StoreError
from resurgam.store.redis.connection import Connection, ConnectionLost, ReplyError, connect
from resurgam.store.redis.url import Address, Endpoint, Topology, text_of

_SLOTS: Final = 16384


def slot_of(tag: str) -> int:
    """Return the slot of all keys with this hash tag."""
    return binascii.crc_hqx(tag.encode(), 0) % _SLOTS


def tag_of(partition: int) -> str:
    """Return the hash tag of a partition."""
    return f"p{partition:02d}"


async def find_primaries(address: Address, known: Iterable[Endpoint] = ()) -> Sequence[Endpoint]:
    """Return the primary of each partition; *known* are servers that may know more than those of the URL."""
    match address.topology:
        case Topology.SINGLE:
            endpoint = await _find_primary(address, address.endpoints)
        case Topology.SENTINEL:
            endpoint = await _ask_sentinels(address)
        case Topology.CLUSTER:
            return await _ask_cluster(address, [*dict.fromkeys([*known, *address.endpoints])])
    return [endpoint] * address.partitions


async def _find_primary(address: Address, endpoints: Sequence[Endpoint]) -> Endpoint:
    """Return the first server that is no replica."""
    failures: list[StoreError] = []
    for endpoint in endpoints:
        try:
            connection = await connect(address, endpoint)
            try:
                if await _takes_writes(connection):
                    return endpoint
                failures.append(_read_only(address, endpoint))
            finally:
                connection.close()
        except StoreError as error:
            failures.append(error)
    raise _most_telling(failures)


async def _takes_writes(connection: Connection) -> bool:
    """Whether a server is a primary; one that does not say is taken for one."""
    try:
        role = await connection.ask("ROLE")
    except ReplyError:
        return True
    return bool(role[0] == b"master")


def _read_only(address: Address, endpoint: Endpoint) -> StoreError:
    return StoreError(
        f"{address}: {text_of(endpoint)} is a read-only replica; name its primary, or all servers with commas between them"
    )


async def _ask_sentinels(address: Address) -> Endpoint:
    failures: list[StoreError] = []
    for sentinel in address.endpoints:
        try:
            connection = await connect(address, sentinel, sentinel=True)
            try:
                found = await connection.ask("SENTINEL", "get-master-addr-by-name", address.primary or "")
            finally:
                connection.close()
            if found is None:
                failures.append(StoreError(f"{address}: the sentinel {text_of(sentinel)} knows no {address.primary!r}"))
                continue
            return await _find_primary(address, [(found[0].decode(), int(found[1]))])
        except ReplyError as error:
            failures.append(StoreError(f"{address}: {text_of(sentinel)} is no sentinel: {error}"))
        except StoreError as error:
            failures.append(error)
    raise _most_telling(failures)


async def _ask_cluster(address: Address, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
    failures: list[StoreError] = []
    for endpoint in endpoints:
        try:
            connection = await connect(address, endpoint)
            try:
                slots = await connection.ask("CLUSTER", "SLOTS")
            finally:
                connection.close()
            return _primaries(address, endpoint, slots)
        except ReplyError as error:
            if "cluster support disabled" in str(error):
                raise StoreError(
                    f"{address}: {text_of(endpoint)} is no cluster; use redis:// for a single server"
                ) from None
            failures.append(StoreError(f"{address}: {error}"))
        except StoreError as error:
            failures.append(error)
    raise _most_telling(failures)


def _primaries(address: Address, asked: Endpoint, slots: Sequence[Any]) -> Sequence[Endpoint]:
    owners: list[Endpoint] = []
    for partition in range(address.partitions):
        slot = slot_of(tag_of(partition))
        primary = next((servers[0] for first, last, *servers in slots if first <= slot <= last), None)
        if primary is None:
            raise ConnectionLost(f"{address}: no server of the cluster has slot {slot}; is it down?")
        host = (primary[0] or b"").decode()
        owners.append((host or asked[0], int(primary[1])))
    return owners


def _most_telling(failures: Sequence[StoreError]) -> StoreError:
    """Return a refusal rather than a lost connection: it says what is wrong with the URL."""
    return next((error for error in failures if not isinstance(error, ConnectionLost)), failures[-1])
