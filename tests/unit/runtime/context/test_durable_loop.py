"""The state of a durable loop: a value that does not round-trip is refused where it is given."""

from dataclasses import dataclass

import pytest

from resurgam import Break, Context, Registry
from resurgam.core import event as events
from resurgam.testing import Simulation

registry = Registry()


@dataclass
class Person:
    name: str


@dataclass
class Author(Person):
    books: int = 0


@registry.workflow
async def count(ctx: Context, kind: str) -> str:
    async def body(ctx: Context, state: Person) -> Break:
        return Break(state.name)

    return await ctx.loop(body, Author("a", 3) if kind == "author" else Person("p"))


@pytest.mark.parametrize("kind", ["person", "author"])
async def test_a_state_that_would_lose_fields_is_refused(kind):
    log = await Simulation(count, kind, registry=registry).run()
    if kind == "person":
        assert isinstance(log[-2], events.WorkflowCompleted)
        return
    failed = log[-2]
    assert isinstance(failed, events.WorkflowFailed)
    assert "the state of a loop: an object of Author comes back as one of Person" in failed.failure.message
