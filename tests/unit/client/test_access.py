"""The definition that belongs to an instance is found by its kind and its name."""

from resurgam import Context, Registry
from resurgam.client.access import Access
from resurgam.store.memory.store import MemoryStore
from resurgam.store.records import Instance
from resurgam.testing import ManualClock
from support.counter import Rule, start_counter

registry = Registry()


@registry.workflow
async def tally(ctx: Context) -> None: ...


def found(**fields: str) -> object:
    clock = ManualClock()
    started = start_counter("c", clock.now(), Rule(1, 1, 1), **fields)
    access = Access(MemoryStore(clock), registry, clock)
    assert access.workflow_of(started) is access.workflow_of(Instance.of(started))
    return access.workflow_of(started)


def test_the_workflow_of_an_instance_is_the_registered_one_of_its_name():
    assert found(kind="workflow") is registry.workflows.find("tally")
    assert found(kind="workflow", name="unknown") is None


def test_an_instance_of_another_kind_has_no_workflow():
    assert found(kind="counter") is None
