"""Resurgam ("I shall rise again"): durable workflows for Python.

Write ordinary async functions. Their steps are recorded, so that they resume exactly where they were after a crash or a
deployment.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resurgam import errors
    from resurgam.client.handle import Handle
    from resurgam.client.update import UpdateHandle
    from resurgam.core.errors import NonRetryable, RetryAfter, SignalTimeout
    from resurgam.core.event import Event
    from resurgam.core.location import Location
    from resurgam.core.retry import RetryPolicy
    from resurgam.core.state import Status
    from resurgam.engine import Engine
    from resurgam.flows.http.outbound import Outbound
    from resurgam.runtime.context.context import Context
    from resurgam.runtime.context.durable_loop import Break, Continue
    from resurgam.runtime.registry import Registry, activity, workflow
    from resurgam.store.retention_rules import Retain
    from resurgam.sync import SyncEngine, SyncHandle
else:
    # The same imports, each made when its name is first used: `resurgam --help` and a module that only defines
    # activities need few of them. Not seen by static checkers, which would accept every name after a `__getattr__`.
    from importlib import import_module

    _MODULES = {
        "Break": "resurgam.runtime.context.durable_loop",
        "Context": "resurgam.runtime.context.context",
        "Continue": "resurgam.runtime.context.durable_loop",
        "Engine": "resurgam.engine",
        "Event": "resurgam.core.event",
        "Handle": "resurgam.client.handle",
        "Location": "resurgam.core.location",
        "NonRetryable": "resurgam.core.errors",
        "Outbound": "resurgam.flows.http.outbound",
        "Registry": "resurgam.runtime.registry",
        "Retain": "resurgam.store.retention_rules",
        "RetryAfter": "resurgam.core.errors",
        "RetryPolicy": "resurgam.core.retry",
        "SignalTimeout": "resurgam.core.errors",
        "Status": "resurgam.core.state",
        "SyncEngine": "resurgam.sync",
        "SyncHandle": "resurgam.sync",
        "UpdateHandle": "resurgam.client.update",
        "activity": "resurgam.runtime.registry",
        "workflow": "resurgam.runtime.registry",
    }

    def __getattr__(name: str) -> object:
        if name == "errors":
            return import_module("resurgam.errors")
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "Break",
    "Context",
    "Continue",
    "Engine",
    "Event",
    "Handle",
    "Location",
    "NonRetryable",
    "Outbound",
    "Registry",
    "Retain",
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
