"""What a worker tells of the work that it holds is bounded, and begins with the oldest."""

import pytest
from msgspec import Raw

from resurgam.core.outcome import ActivityRequest
from resurgam.store.encoding import encode
from resurgam.store.records import ActivityTask, Announcement, Claim, Instance
from resurgam.testing import ManualClock
from resurgam.worker.heartbeat import RunningAttempt
from resurgam.worker.held import HeldInstance
from resurgam.worker.held_work import held_work


def held(number: int, prefix: str = "order-") -> HeldInstance:
    ids = {"entity_id": f"{prefix}{number}", "execution_id": f"x-{number}", "run_id": "r", "tree_id": "t"}
    state = {"kind": "workflow", "name": "checkout", "queue": "default", "status": "running", "created_at": 1}
    instance = Instance(**ids, **state, generation=1, attempt=1)
    found = HeldInstance.of(Claim(instance=instance, epoch=1, wake=0))
    found.since = number
    return found


def attempt(number: int, prefix: str = "order-") -> RunningAttempt:
    request = ActivityRequest(ref=2, name="charge", queue="default", input=Raw(b"[]"), entity_id=f"r-{number}/1")
    task = ActivityTask(
        entity_id=f"{prefix}{number}", execution_id=f"x-{number}", epoch=1, attempt=3, deliveries=0, request=request
    )
    return RunningAttempt(ManualClock(), task, lambda _: None, since=number)


def test_each_is_told_with_its_ids_its_name_and_the_moment_of_its_claim():
    found = held_work([held(1)], [attempt(2)])
    [instance], [activity] = found.oldest_instances, found.oldest_activities
    assert (found.instances, found.activities) == (1, 1)
    assert (instance.entity_id, instance.name, instance.since) == ("order-1", "checkout", 1)
    assert (activity.entity_id, activity.workflow_id) == ("r-2/1", "order-2")
    assert (activity.name, activity.attempt, activity.since) == ("charge", 3, 2)


def test_the_oldest_are_listed_and_all_are_counted():
    found = held_work([held(number) for number in range(100)], [attempt(number) for number in range(1000)])
    assert (found.instances, found.activities) == (100, 1000)
    assert [one.since for one in found.oldest_instances] == list(range(20))
    assert [one.since for one in found.oldest_activities] == list(range(20))


@pytest.mark.parametrize("prefix", ["order-", "x" * 300, "x" * 100_000])
def test_an_announcement_is_small_however_long_the_ids_are(prefix):
    found = held_work(
        [held(number, prefix) for number in range(100)], [attempt(number, prefix) for number in range(100)]
    )
    told = Announcement(worker_id="w", host="h", pid=1, build="b", queues=("q",), slots=1000, held=found)
    assert len(encode(told)) < 6000
    assert found.instances == 100


def test_a_worker_that_holds_nothing_says_so():
    found = held_work([], [])
    assert (found.instances, found.activities, found.oldest_instances, found.oldest_activities) == (0, 0, (), ())
