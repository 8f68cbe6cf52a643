"""Instances that were released and are kept in memory for their next claim."""

import logging
from collections import OrderedDict

from resurgam.core.brain import LiveInstance
from resurgam.store.records import Instance
from resurgam.worker.watchdog import TickTooLong, Watchdog

logger = logging.getLogger("resurgam.worker")


class InstanceCache:
    """The instances that advanced last, at most *size* of them. Every method is called outside of any task."""

    def __init__(self, watchdog: Watchdog, *, size: int) -> None:
        self._watchdog = watchdog
        self._size = size
        self._kept: OrderedDict[str, LiveInstance] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, instance: Instance) -> LiveInstance | None:
        """Take out the instance if it stands where the store's log ends."""
        kept = self._kept.pop(instance.execution_id, None)
        if kept is None or (kept.last_seq == instance.last_seq and not kept.closed):
            return kept
        self.close(kept)
        return None

    def put(self, execution_id: str, live: LiveInstance) -> None:
        """Keep an instance, and close the one that has waited longest."""
        if self._size == 0:
            self.close(live)
            return
        # While the store answered, the next claim of this instance may have been served already.
        replaced = self._kept.pop(execution_id, None)
        if replaced is not None:
            self.close(replaced)
        self._kept[execution_id] = live
        while len(self._kept) > self._size:
            _, oldest = self._kept.popitem(last=False)
            self.close(oldest)

    def close(self, live: LiveInstance | None) -> None:
        """Close an instance under watch: its clean-up is user code, and may not return."""
        if live is None or live.closed:
            return
        try:
            self._watchdog.run(live, live.close)
        except TickTooLong as error:
            logger.error("evicting workflow %s: %s", live.started.entity_id, error)  # noqa: TRY400 -- reported

    def clear(self) -> None:
        """Close all."""
        while self._kept:
            _, live = self._kept.popitem()
            self.close(live)
