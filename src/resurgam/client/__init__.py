"""Start, signal, wait: what callers do with workflows, without running any.

The modules named here are families of rarer verbs. Each is imported when one of its verbs is called, by
``verbs.describe`` where this package is imported as `verbs`: a worker and most clients never need them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resurgam.client import (
        compensation,
        deletion,
        describe,
        flow_survey,
        flows,
        health_checks,
        pause,
        retry,
        tree,
        webhook,
    )
else:
    from importlib import import_module

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")


__all__ = [
    "compensation",
    "deletion",
    "describe",
    "flow_survey",
    "flows",
    "health_checks",
    "pause",
    "retry",
    "tree",
    "webhook",
]
