"""The rows of a memory store with partitions: work is claimed in the order of each, the partitions in rotation."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

from resurgam.core.clock import Clock
from resurgam.core.identity import route_of
from resurgam.store.memory.rows import ActivityRow, Row
from resurgam.store.memory.table import Table

PARTITIONS: Final = 16


class PartitionedTable(Table):
    """Rows of which each partition has an order of its own; older work of another holds up no eager claim."""

    def __init__(self, clock: Clock, *, lease: int) -> None:
        super().__init__(clock, lease=lease)
        self._turns = count()

    def claimable(self, worker: str, queues: Sequence[str]) -> Iterator[Row]:
        """Yield the instances that a worker may claim, those of the partition whose turn it is first."""
        turn = next(self._turns)
        found = list(super().claimable(worker, queues))
        return iter(sorted(found, key=lambda row: _distance(turn, row.instance.entity_id)))

    def claimable_activities(self, queues: Sequence[str]) -> Iterator[ActivityRow]:
        """Yield the activities that may be claimed, those of the partition whose turn it is first."""
        turn = next(self._turns)
        found = list(super().claimable_activities(queues))
        return iter(sorted(found, key=lambda one: _distance(turn, self.rows[one.execution_id].instance.entity_id)))

    def older(self, row: Row) -> Iterator[Row]:
        """Yield the instances that are ready in the queue and the partition of another."""
        partition = partition_of(row.instance.entity_id)
        return (other for other in super().older(row) if partition_of(other.instance.entity_id) == partition)

    def older_activities(self, row: Row, queues: Sequence[str]) -> Iterator[ActivityRow]:
        """Yield the activities of the partition of an instance that wait in these queues."""
        partition = partition_of(row.instance.entity_id)
        return (
            activity
            for activity in super().claimable_activities(queues)
            if partition_of(self.rows[activity.execution_id].instance.entity_id) == partition
        )


def partition_of(entity_id: str) -> int:
    """Return the partition of an entity."""
    return partition_of_route(route_of(entity_id))


def partition_of_route(route: str) -> int:
    """Return the partition that a route leads to."""
    return int(route, 16) % PARTITIONS


def _distance(turn: int, entity_id: str) -> int:
    return (partition_of(entity_id) - turn) % PARTITIONS
