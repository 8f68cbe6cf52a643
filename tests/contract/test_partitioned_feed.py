"""The cases of the feed, on a store whose feed has two partitions."""

from contextlib import asynccontextmanager

from resurgam.testing.contract import LEASE
from resurgam.testing.contract.feed import FeedCases
from support.partitioned_feed import PartitionedFeedStore, partition_of


class TestPartitionedFeed(FeedCases):
    @asynccontextmanager
    async def open_store(self, clock):
        yield PartitionedFeedStore(clock, lease=LEASE)


def test_the_entities_of_the_cases_are_in_both_partitions():
    assert {partition_of(f"order-{number}") for number in range(5)} == {0, 1}
    assert {partition_of(entity_id) for entity_id in ("one", "two")} == {0, 1}
