"""End the leases of a dead owner in every partition, list by list."""

import asyncio
from itertools import product

from resurgam.store.redis.link import Link


async def reap(link: Link, owner: str) -> None:
    """End the leases of an owner."""
    await asyncio.gather(*(_reap(link, partition, owner) for partition in range(link.partitions)))


async def _reap(link: Link, partition: int, owner: str) -> None:
    queues = await link.ask(partition, "reap", [owner])
    lists = [("by-status-paused", b""), *product(("ready-", "parked-", "activities-"), queues)]
    for kind, queue in lists:
        position = None
        while True:
            part = [owner, kind, queue.decode(), position]
            if (found := await link.ask(partition, "reap_list", part)) is None:
                break
            score, member = found
            position = [score, member.decode()]
