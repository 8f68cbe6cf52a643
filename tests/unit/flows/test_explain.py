"""Each step of a plan and of a flow is explained: why it is there, what became of it, and what it waits for."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from resurgam.core import flow_event as fe
from resurgam.core import lifecycle
from resurgam.core.entry import Failure
from resurgam.flows import model as m
from resurgam.flows.catalog import Catalog
from resurgam.flows.explain import FlowExplanation, StepExplanation, explain, explain_plan
from resurgam.flows.planner import Mode, Plan, plan
from resurgam.flows.state import FlowInput, FlowState
from support.flow_runs import Equality, FlowRun, Handler, NotNow
from support.flow_steps import changed, step, with_input


def planned(steps: Sequence[m.Step], goals: Sequence[str], mode: Mode = "strict", **given: Any) -> Plan:
    init = {name: [value] for name, value in given.items()}
    return plan(Catalog(steps), goals, init, mode, Equality().matches)


def why(steps: Sequence[m.Step], goals: Sequence[str], mode: Mode = "strict", **given: Any) -> dict[str, list[str]]:
    explained = explain_plan(planned(steps, goals, mode, **given))
    return {one.step: [one.status, *one.why] for one in explained.steps}


def explained(run: FlowRun) -> FlowExplanation:
    return explain(run.state, run.judge, run.now)


def of(run: FlowRun, step_id: str) -> StepExplanation:
    return next(one for one in explained(run).steps if one.step == step_id)


def waits(run: FlowRun, step_id: str) -> list[str]:
    return [one.text for one in of(run, step_id).waits]


def moment(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)


def fails(inputs: object) -> object:
    raise ValueError("no")


def later(inputs: object) -> object:
    raise NotNow("later")


def gives(**outputs: object) -> Handler:
    return lambda _: outputs


def optional(**config: Any) -> m.Attribute:
    return m.Optional(optional=m.OptionalConfig(**config))


def finish(run: FlowRun, step_id: str) -> None:
    run.finish(next(ref for ref in run.state.outstanding if run.state.items[ref].step == step_id))


# Plans.


def test_a_planned_step_says_for_whom_it_is_there():
    steps = [step("A: > a"), step("B: a > b"), step("C: a b > c")]
    assert why(steps, ["B", "C"]) == {
        "A": ["planned", "it provides 'a' for 'B' and 'C'"],
        "B": ["planned", "it is a goal", "it provides 'b' for 'C'"],
        "C": ["planned", "it is a goal"],
    }


def test_the_steps_of_a_plan_are_in_an_order_in_which_they_could_run():
    assert list(why([step("C: > x"), step("B: x > y"), step("A: y > z")], ["A"])) == ["C", "B", "A"]


@pytest.mark.parametrize(
    ("steps", "given", "reason"),
    [
        ([step("P: k > d"), step("Q: > d")], {}, "it needs 'k', not given, and no step that can run provides it"),
        (
            [step("P: k l > d"), step("Q: > d")],
            {},
            "it needs 'k' and 'l', not given, and no step that can run provides them",
        ),
        ([step("P: > d")], {"d": 1}, "everything that it provides is given: 'd'"),
    ],
)
def test_a_step_that_is_left_out_says_why(steps, given, reason):
    assert why([*steps, step("G: d > r")], ["G"], **given)["P"] == ["excluded", reason]


def test_a_goal_that_is_blocked_by_a_given_value_says_so():
    assert why([step("G: d/none > r")], ["G"], d=1) == {
        "G": ["excluded", "it starts only without a value of 'd', and a value is given"]
    }


def test_attributes_that_must_be_given_name_the_steps_that_need_them():
    made = explain_plan(planned([step("A: k > a"), step("B: a k > b")], ["B"], "preview"))
    assert made.missing == {"k": ("A", "B")}


def test_a_step_that_starts_only_without_a_value_does_not_need_it():
    made = explain_plan(planned([step("A: k > a"), step("B: a k/none > b")], ["B"], "preview"))
    assert made.missing == {"k": ("A",)}


def test_attributes_of_a_plan_name_their_providers_and_consumers():
    made = explain_plan(planned([step("A: k > a"), step("B: a > b")], ["B"], k=1))
    assert [(one.attribute, one.providers, one.consumers) for one in made.attributes] == [
        *[("a", ("A",), ("B",)), ("b", ("B",), ()), ("k", (), ("A",))]
    ]


# Steps that wait.


@pytest.mark.parametrize(
    ("consumer", "text"),
    [
        ("G: d > r", "a value of 'd' from 'P' (active) or 'Q' (active)"),
        ("G: d/last > r", "the last value of 'd' from 'P' (active) or 'Q' (active)"),
        ("G: d/some > r", "every value of 'd' from 'P' (active) or 'Q' (active)"),
        ("G: d/all > r", "a value of 'd' of every provider from 'P' (active) or 'Q' (active)"),
        ("G: d/none > r", "the certainty that no value of 'd' comes from 'P' (active) or 'Q' (active)"),
        ("G: d=1 > r", "a value of 'd' that matches 1 from 'P' (active) or 'Q' (active)"),
    ],
)
def test_a_step_waits_for_its_inputs(consumer, text):
    assert waits(FlowRun([step("P: > d"), step("Q: > d"), step(consumer)], ["G"]), "G") == [text]


def test_an_input_is_not_waited_for_once_it_is_there():
    run = FlowRun([step("P: > d"), step("Q: > e"), step("G: d e > r")], ["G"], handlers={"P": gives(d=1)})
    finish(run, "P")
    assert waits(run, "G") == ["a value of 'e' from 'Q' (active)"]


def test_an_optional_input_is_waited_for_until_its_deadline():
    goal = with_input(step("G: d > r"), "o", optional(default="0", deadline=2500))
    run = FlowRun([step("P: > d"), step("Q: > o"), goal], ["G"], handlers={"P": gives(d=1)})
    assert waits(run, "G") == [
        "a value of 'd' from 'P' (active)",
        "a value of 'o' from 'Q' (active), for 2.5 s once its required inputs are there",
    ]
    finish(run, "P")
    (wait,) = of(run, "G").waits
    assert (wait.text, wait.until) == ("a value of 'o' from 'Q' (active)", moment(run.now + 2500))


def test_an_optional_input_without_a_deadline_is_not_waited_for():
    goal = with_input(step("G: d > r"), "o", optional(default="0"))
    run = FlowRun([step("P: > d"), step("Q: > o"), goal], ["G"])
    assert waits(run, "G") == ["a value of 'd' from 'P' (active)"]


def test_a_match_that_fails_is_named_while_the_flow_is_paused():
    run = FlowRun([step("P: > d"), step("G: d=! > r")], ["G"], handlers={"P": gives(d=1)})
    run.take(lifecycle.WorkflowPaused())
    finish(run, "P")
    assert waits(run, "G") == ["the flow to be resumed", "its failure: match of 'd': the expression is wrong"]


def test_a_flow_without_a_plan_says_so():
    first = FlowRun([step("G: > r")], ["G"]).log[0]
    bare = msgspec.structs.replace(first, input=msgspec.Raw(msgspec.json.encode(FlowInput(goals=("G",)))))
    found = explain(FlowState([bare]), Equality(), 0)
    assert (found.goals, found.status, found.steps) == (("G",), "active", ())
    assert found.because == ("it has no plan yet: the first worker that serves it makes one",)


def test_nothing_starts_in_a_paused_flow():
    run = FlowRun([step("P: > d"), step("G: d > r")], ["G"])
    run.take(lifecycle.WorkflowPaused())
    assert (explained(run).status, explained(run).because) == ("paused", ("nothing new starts until it is resumed",))
    assert waits(run, "G") == ["the flow to be resumed", "a value of 'd' from 'P' (active)"]


def test_an_active_step_waits_for_its_work():
    run = FlowRun([step("G: > r")], ["G"])
    assert waits(run, "G") == ["its work, on queue 'default'"]
    run.take(fe.WorkStarted(item=1, step="G", attempt=2))
    assert waits(run, "G") == ["its work, running, attempt 2"]


def test_a_step_waits_for_its_next_attempt_and_says_why():
    run = FlowRun([step("G: > r")], ["G"], handlers={"G": later})
    finish(run, "G")
    (wait,) = of(run, "G").waits
    assert wait.text == "the next attempt of its work, after NotNow: later"
    assert wait.until == moment(run.now + 1)


def test_an_async_step_waits_for_its_answer_until_the_deadline():
    run = FlowRun([step("G: > r")], ["G"])
    run.take(fe.WorkStarted(item=1, step="G", attempt=1))
    run.take(fe.WorkAcknowledged(ref=1, step="G", deadline=9000))
    (wait,) = of(run, "G").waits
    assert wait.text == "the answer to its work, which its service has accepted, attempt 1"
    assert wait.until == moment(9000)
    run.take(fe.WorkNotCompleted(ref=1, step="G", failure=Failure(type="NotCompleted", message="no answer")))
    run.take(fe.RetryScheduled(item=1, step="G", retry_count=1, next_retry_at=9500))
    assert waits(run, "G") == ["the next attempt of its work, after NotCompleted: no answer"]


def test_a_step_that_is_not_sent_yet_says_why():
    run = FlowRun([step("G: > r")], ["G"])
    run.take(fe.WorkStarted(item=1, step="G", attempt=1))
    run.take(fe.DispatchDeferred(ref=1, step="G", next_at=2000, reason="the service is unhealthy (503)"))
    (wait,) = of(run, "G").waits
    assert wait.text == "its work, not sent yet: the service is unhealthy (503)"
    assert wait.until == moment(2000)
    run.take(fe.WorkStarted(item=1, step="G", attempt=1))
    assert waits(run, "G") == ["its work, running, attempt 1"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"type": "flow", "flow": m.FlowConfig(goals=("x",))}, "its work, the flow 'run/1'"),
        ({"type": "workflow", "workflow": m.WorkflowConfig(workflow="w")}, "its work, the workflow 'run/1'"),
    ],
)
def test_a_step_that_is_an_instance_of_its_own_names_it(fields, text):
    run = FlowRun([changed(step("G: > r"), python=None, **fields), step("x: > y")], ["G"])
    assert waits(run, "G") == [text]


def test_work_items_wait_for_their_turn():
    each = m.Required(required=m.RequiredConfig(for_each=True))
    goal = changed(with_input(step("G: > r"), "d", each), work_config=m.WorkConfig(parallelism=2))
    run = FlowRun([goal], ["G"], {"d": [[1, 2, 3, 4]]}, {"G": gives(r=1)})
    run.finish(1)
    assert waits(run, "G") == [
        "work item 2 of 4, on queue 'default'",
        "work item 3 of 4, on queue 'default'",
        "1 more work item, at most 2 at the same time",
    ]


# Steps that are decided.


def because(run: FlowRun, step_id: str) -> list[str]:
    return [of(run, step_id).status, *of(run, step_id).because]


def test_a_completed_step_says_what_it_provided_and_what_not():
    run = FlowRun([step("G: > r s")], ["G"], handlers={"G": gives(r=1)}).run()
    assert because(run, "G") == ["completed", "it provided 'r'", "its result has no 's'"]
    assert waits(run, "G") == []


def test_a_failed_step_says_how_and_its_consumer_why_nothing_can_come():
    run = FlowRun([step("P: > d"), step("G: d > r")], ["G"], handlers={"P": fails}).run()
    assert because(run, "P") == ["failed", "ValueError: no"]
    assert because(run, "G") == ["failed", "no value of 'd' can come any more: 'P' failed (ValueError: no)"]
    reason = "required input no longer available: d (step 'P' failed: no)"
    assert explained(run).because == (f"StepFailed: step 'G' failed: {reason}", "ValueError: no")


def test_the_last_of_several_attempts_is_counted():
    run = FlowRun([step("G: > r")], ["G"], handlers={"G": later}, retries=2).run()
    assert because(run, "G") == ["failed", "NotNow: later", "that was attempt 3"]


def test_a_provider_without_a_value_is_named_with_its_fate():
    skipped = changed(step("P: > d"), predicate=m.Expression(language="cel", script="false"))
    run = FlowRun([skipped, step("Q: > d"), step("G: d > r")], ["G"], handlers={"Q": gives(e=1)}).run()
    assert because(run, "G") == [
        *(
            "failed",
            "no value of 'd' can come any more: 'P' was skipped (predicate returned false), 'Q' completed without it",
        )
    ]


def test_an_input_that_only_an_open_gate_demands_has_no_provider():
    run = FlowRun([step("R: > t"), step("G: t=1 c > r")], ["G"], handlers={"R": gives(t=1)}).run()
    assert because(run, "G") == ["failed", "no value of 'c' can come any more: no step provides it"]


def test_a_skipped_step_says_which_predicate_was_false():
    run = FlowRun([changed(step("G: > r"), predicate=m.Expression(language="cel", script="false"))], ["G"]).run()
    assert because(run, "G") == ["skipped", "its predicate is false: false"]


def test_a_skipped_step_says_which_match_does_not_hold():
    run = FlowRun(
        [step("P: > d"), step("G: d=1 > r"), step("H: d=2 > s")], ["G", "H"], handlers={"P": gives(d=2)}
    ).run()
    assert because(run, "G") == ["skipped", "the match of 'd' does not hold: 1"]


def test_a_skipped_step_says_that_nothing_needs_it():
    run = FlowRun(
        [step("P1: > d"), step("X: > k"), step("P2: k > d"), step("G: d > r")], ["G"], handlers={"P1": gives(d=1)}
    )
    finish(run, "P1")
    assert because(run, "P2") == ["skipped", "no step needs its outputs any more"]


def test_a_skipped_step_says_who_provided_the_value_that_must_not_be_there():
    run = FlowRun([step("P: > d"), step("G: d/none > r"), step("H: > s")], ["G", "H"], handlers={"P": gives(d=1)}).run()
    assert because(run, "G") == ["skipped", "it starts only without a value of 'd', which 'P' provided"]


def test_compensations_are_waited_for_and_counted():
    each = m.Required(required=m.RequiredConfig(for_each=True))
    undoable = changed(
        with_input(step("G: > r"), "d", each), python=m.PythonConfig(activity="G", compensate="G.compensate")
    )

    def second_fails(inputs: Mapping[str, Any]) -> object:
        if inputs["d"] == 2:
            raise ValueError("no")
        return {"r": 1}

    run = FlowRun([undoable], ["G"], {"d": [[1, 2]]}, {"G": second_fails})
    run.finish(1)
    run.finish(2)
    assert waits(run, "G") == ["the compensation of work item 1 of 2"]
    assert "its outcome is decided; 1 work item without a result yet" in explained(run).because
    run.take(
        fe.CompRetryScheduled(ref=3, step="G", retry_count=1, next_retry_at=5000, failure=Failure(type="E", message=""))
    )
    assert of(run, "G").waits[0].until == moment(5000)
    run.take(fe.DispatchDeferred(ref=3, step="G", next_at=6000, reason="unhealthy"))
    assert waits(run, "G") == ["the compensation of work item 1 of 2, not sent yet: unhealthy"]
    lost = FlowRun([undoable], ["G"], {"d": [[1, 2]]}, {"G": second_fails})
    lost.finish(1)
    lost.finish(2)
    lost.take(fe.CompFailed(ref=3, step="G", failure=Failure(type="OSError", message="gone")))
    assert because(lost, "G") == ["failed", "ValueError: no", "a compensation failed: OSError: gone"]
    run.run()
    assert because(run, "G") == ["failed", "ValueError: no", "1 work item compensated"]


def test_a_step_that_had_not_started_says_that_the_flow_ended():
    run = FlowRun([step("P: > d"), step("G: d > r"), step("H: > s")], ["G", "H"], handlers={"H": fails})
    finish(run, "H")
    assert because(run, "G") == ["pending", "the flow ended before it started"]
    assert waits(run, "G") == []
    assert because(run, "P") == ["active", "the flow ended before it was done"]
    assert waits(run, "P") == ["its work, on queue 'default'"]


# Attributes.


def test_attributes_name_the_steps_that_provided_their_values():
    run = FlowRun([step("P: k > d"), step("G: d > r")], ["G"], {"k": [1]}, {"P": gives(d=2)})
    finish(run, "P")
    told = {
        one.attribute: ([(msgspec.json.decode(value.value), value.step) for value in one.values], one.providers)
        for one in explained(run).attributes
    }
    assert told == {"k": ([(1, None)], ()), "d": ([(2, "P")], ("P",)), "r": ([], ("G",))}


def test_an_explanation_is_json():
    run = FlowRun([step("P: k > d"), step("G: d > r")], ["G"], {"k": [1]}, {"P": gives(d=2)}).run()
    decoded = msgspec.json.decode(msgspec.json.encode(explained(run)))
    assert decoded["attributes"][0]["values"][0]["value"] == 2
