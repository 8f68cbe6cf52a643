"""Measure how busy this process is, by the processor times that the system counts: nothing is added to the event loop."""

import os
import time

from resurgam.store.records import WorkerLoad


class LoadMeter:
    """Measures the time between two readings. All readings are made in the thread of the event loop."""

    def __init__(self) -> None:
        self._last: tuple[float, float, float] | None = None

    def read(self) -> WorkerLoad:
        """Return the load since the last reading."""
        now = (time.monotonic(), time.thread_time(), time.process_time())
        loop = process = None
        if self._last is not None and (passed := now[0] - self._last[0]) > 0:
            loop = round(min(1.0, (now[1] - self._last[1]) / passed), 3)
            process = round((now[2] - self._last[2]) / passed, 3)
        self._last = now
        return WorkerLoad(loop=loop, process=process, machine=_load_average(), processors=os.cpu_count() or 1)


def _load_average() -> float | None:
    """Return the load average of the last minute; None on systems that do not count it."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None
