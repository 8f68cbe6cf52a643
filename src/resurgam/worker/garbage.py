"""The garbage collector of a process that only serves. A program that has an engine inside decides for itself."""

import gc
from typing import Final

_USUAL: Final = gc.get_threshold()
"""As Python sets it; read when this module is imported, before code of the user runs."""

_RARELY: Final = (20_000, 10, 20)
"""Most objects of a workflow are freed without the collector. With Python's own thresholds it takes a quarter of the
processor time of a busy server, and holds requests up for tens of milliseconds."""


def collect_rarely() -> None:
    """Let the collector run less often, and never look at what was imported; keep thresholds that a module has set."""
    if gc.get_threshold() != _USUAL:
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_RARELY)
