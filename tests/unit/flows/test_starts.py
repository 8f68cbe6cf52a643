"""A flow records when attempts of its work items begin, each once, and those whose workers were lost."""

import msgspec
import pytest
from msgspec import Raw

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core import lifecycle
from resurgam.core.outcome import Entry
from resurgam.flows.brain import LiveFlow
from resurgam.flows.catalog import Catalog
from resurgam.flows.planner import plan
from resurgam.flows.requests import activity_request
from resurgam.flows.state import LOST, FlowInput, FlowState
from resurgam.flows.wiring import encode_plan
from support.flow_runs import Equality, described
from support.flow_steps import step

FAILURE = events.Failure(type="E", message="no")


class Served:
    """A flow with one step, advanced entry by entry, with its log."""

    def __init__(self, made=None):
        made = made or step("pack: > parcel")
        planned = plan(Catalog([made]), ["pack"], {}, "strict", Equality().matches)
        first = fe.FlowStarted(
            seq=1,
            at=1,
            name="pack",
            queue="default",
            entity_id="f",
            execution_id="f-1",
            run_id="r",
            tree_id="r",
            input=Raw(msgspec.json.encode(FlowInput(encode_plan(planned)))),
        )
        self.log = [first]
        self.live = LiveFlow(self.log, Equality())
        self.now = 10
        self.outcome = self.take()

    def take(self, *inbox):
        self.now += 1
        entries = [Entry(number, event) for number, event in enumerate(inbox, 1)]
        outcome = self.live.advance(entries, self.now)
        assert outcome.consumed == tuple(entry.id for entry in entries)
        self.log += outcome.events
        assert self.live.last_seq == self.log[-1].seq == len(self.log)
        assert described(FlowState(self.log)) == described(self.live._state)
        return outcome

    @property
    def attempts(self):
        return [
            entry.attempt if isinstance(entry, fe.WorkStarted) else entry.type.removeprefix("work_")
            for entry in self.log
            if entry.type.startswith("work_")
        ]


def began(delivery):
    return fe.WorkStarted(item=1, step="pack", attempt=delivery)


def retried():
    return events.ActivityRetryScheduled(ref=1, attempt=1, next_at=20, failure=FAILURE)


def completed():
    return events.ActivityCompleted(ref=1, result=Raw(b'{"parcel":1}'))


def test_the_request_of_a_work_item_has_the_entry_that_a_claim_puts_into_the_inbox():
    [request] = Served().outcome.activities
    assert request.starts == fe.WorkStarted(item=1, step="pack")


def test_the_request_of_a_compensation_has_no_entry_for_its_claim():
    made = step("pack: > parcel")
    flow = Served(msgspec.structs.replace(made, python=msgspec.structs.replace(made.python, compensate="unpack")))
    state = flow.live._state
    state.compensations[2], state.items[1].outputs = 1, Raw(b"{}")
    request = activity_request(state, 2)
    assert (request.name, request.starts) == ("unpack", None)


def test_what_a_commit_claims_begins_with_it():
    flow = Served()
    flow.log += flow.live.begin([1])
    assert flow.attempts == [1]
    assert flow.live.begin([]) == []
    flow.take(completed())
    assert flow.attempts == [1, "succeeded"]


def test_a_delivery_that_the_commit_has_recorded_is_not_recorded_again():
    flow = Served()
    flow.log += flow.live.begin([1])
    flow.take(began(1), completed())
    assert flow.attempts == [1, "succeeded"]


def test_an_attempt_is_lost_when_a_later_one_begins_without_an_answer():
    flow = Served()
    flow.take(began(1), began(2))
    assert flow.attempts == [1, "not_completed", 2]
    lost = flow.log[-2]
    assert (lost.ref, lost.failure) == (1, LOST)
    flow.take(began(3), completed())
    assert flow.attempts == [1, "not_completed", 2, "not_completed", 3, "succeeded"]


def test_attempts_are_counted_on_after_a_retry():
    flow = Served()
    flow.log += flow.live.begin([1])
    flow.take(began(2), retried(), began(1))
    assert flow.attempts == [1, "not_completed", 2, "not_completed", 3]
    flow.take(began(2), completed())
    assert flow.attempts[5:] == ["not_completed", 4, "succeeded"]


def test_a_retry_that_begins_after_the_end_of_its_flow_is_an_attempt_too():
    """It is withdrawn, unless a worker was faster."""
    flow = Served()
    flow.log += flow.live.begin([1])
    flow.take(lifecycle.CancelRequested(at=15))
    flow.take(retried())
    flow.take(began(1))
    flow.take(began(2), completed())
    assert flow.attempts == [1, "not_completed", 2, "not_completed", 3, "succeeded"]


def test_deliveries_that_begin_anew_are_further_attempts():
    flow = Served()
    flow.take(*(began(number) for number in range(1, 4)))
    flow.take(began(1), began(2), completed())
    assert [one for one in flow.attempts if isinstance(one, int)] == [1, 2, 3, 4, 5]
    assert flow.attempts[-1] == "succeeded"


@pytest.mark.parametrize("entry", [began(2), fe.WorkStarted(item=9, step="pack")], ids=["answered", "unknown"])
def test_a_start_of_an_item_that_does_not_wait_is_consumed_and_not_recorded(entry):
    flow = Served()
    flow.take(began(1), completed())
    written = len(flow.log)
    flow.take(entry)
    assert len(flow.log) == written


def test_a_start_leads_to_nothing_else():
    flow = Served()
    outcome = flow.take(began(1))
    assert [entry.type for entry in outcome.events] == ["work_started"]
    assert outcome.activities == outcome.withdrawals == ()
