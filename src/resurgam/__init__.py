"""Resurgam ("I shall rise again"): durable workflows for Python.

Write ordinary async functions. Their steps are recorded, so that they resume exactly where they were after a crash or a
deployment.
"""

from resurgam import errors
from resurgam.client.handle import Handle
from resurgam.client.update import UpdateHandle
from resurgam.core.errors import NonRetryable, RetryAfter, SignalTimeout
from resurgam.core.event import Event
from resurgam.core.location import Location
from resurgam.core.retry import RetryPolicy
from resurgam.core.state import Status
from resurgam.engine import Engine
from resurgam.runtime.context.context import Context
from resurgam.runtime.context.durable_loop import Break, Continue
from resurgam.runtime.registry import Registry, default_registry
from resurgam.sync import SyncEngine, SyncHandle

activity = default_registry.activity
workflow = default_registry.workflow

__all__ = [
    "Break",
    "Context",
    "Continue",
    "Engine",
    "Event",
    "Handle",
    "Location",
    "NonRetryable",
    "Registry",
    "RetryAfter",
    "RetryPolicy",
    "SignalTimeout",
    "Status",
    "SyncEngine",
    "SyncHandle",
    "UpdateHandle",
    "activity",
    "errors",
    "workflow",
]
