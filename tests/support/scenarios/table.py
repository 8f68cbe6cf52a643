"""The table of scenarios, and how a story enters it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from resurgam import Registry, RetryPolicy
from support.faults import World
from support.oracle import Verdict

registry = Registry()
activity, workflow = registry.activity, registry.workflow
MINUTE = 60
ONCE = RetryPolicy(max_attempts=1)


@dataclass(frozen=True)
class Scenario:
    """A story, and how the workflows in it must end, and what is *done* on the way; *places* are the queues of engines."""

    name: str
    story: Callable[[World], Awaitable[None]]
    ends: dict[str, str]
    answers: list[str] = field(default_factory=list)
    done: tuple[str, ...] | None = None
    places: tuple[tuple[str, ...], ...] = (("default",),)

    def check(self, found: Verdict) -> None:
        """Check that undisturbed it comes out as it should."""
        ends = {name.strip("<>"): fate["end"][0] for name, fate in found.fates.items()}
        assert ends == self.ends
        assert found.answers == self.answers
        assert self.done is None or self.done == tuple(sorted(effect.key for effect in found.effects.elements()))


SCENARIOS: list[Scenario] = []


def scenario(ends: dict[str, str], **options: Any) -> Callable[[Any], Any]:
    """Make a scenario of a story."""

    def register(story: Any) -> Any:
        SCENARIOS.append(Scenario(story.__name__, story, ends, **options))
        return story

    return register
