"""The tables that the named programs are put into, and what they have in common. See `programs`."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from resurgam.core import event as events
from resurgam.core.errors import describe
from resurgam.runtime.definitions.definition import Workflow
from resurgam.runtime.registry import Registry

registry = Registry()

PROGRAMS: dict[str, Workflow[..., Any]] = {}
MESSAGES: dict[str, list[events.Event]] = {}
EXPECTED: dict[str, object] = {}
FAILING: set[str] = set()
BOUND_TO_MINOR: dict[str, str] = {}

_ANYTHING = object()


@registry.activity
async def echo(x):
    return x


@registry.activity
async def fail(x):
    raise ValueError(x)


def program(
    *messages: events.Event, expect: object = _ANYTHING, fails: bool = False, bound: str = ""
) -> Callable[[Callable[..., Any]], Workflow[..., Any]]:
    """Put a workflow into the tables. *bound*: why another minor version of Python cannot replay it."""

    def register(function: Callable[..., Any]) -> Workflow[..., Any]:
        name = function.__name__
        PROGRAMS[name] = registry.workflow(function)
        MESSAGES[name] = list(messages)
        if expect is not _ANYTHING:
            EXPECTED[name] = expect
        if fails:
            FAILING.add(name)
        if bound:
            BOUND_TO_MINOR[name] = bound
        return PROGRAMS[name]

    return register


def signal(name: str, value: str) -> events.SignalReceived:
    return events.SignalReceived(name=name, id=f"{name}-{value}", value=Raw(f'"{value}"'.encode()))


CANCEL = events.CancelRequested(reason="enough")


class Notes(list):
    """What happened, in the order in which it happened."""

    async def take(self, ctx, x, activity=echo):
        """Run an activity and note down what came of it."""
        try:
            self.append(await ctx.activity(activity, x))
        except Exception as error:
            self.append(describe(error))
            raise
        except asyncio.CancelledError:
            self.append(f"{x} cancelled")
            raise
        return x
