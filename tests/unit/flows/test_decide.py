"""What follows from each event of a flow, by vectors, in every order of results."""

from collections.abc import Sequence

import pytest

from resurgam.core import flow_event as fe
from resurgam.core.entry import Failure
from resurgam.flows import model as m
from support.flow_runs import FlowRun, Handler, NotNow
from support.flow_steps import changed, step, with_input

ORDERS = range(10)


def fails(inputs: object) -> object:
    raise ValueError("no")


def later(inputs: object) -> object:
    raise NotNow("later")


def gives(**outputs: object) -> Handler:
    return lambda _: outputs


def expression(script: str) -> m.Expression:
    return m.Expression(language="cel", script=script)


def types(run: FlowRun) -> list[str]:
    return [entry.type for entry in run.log]


def called(run: FlowRun) -> list[str]:
    return [name for name, _ in run.calls]


CHAIN = [step("A: > a"), step("B: a > b"), step("C: b > c")]
LINKS: dict[str, Handler] = {
    "A": gives(a=1),
    "B": lambda inputs: {"b": inputs["a"] + 1},
    "C": lambda inputs: {"c": inputs["b"] + 1},
}


def test_a_chain_runs_to_its_goal() -> None:
    run = FlowRun(CHAIN, ["C"], handlers=LINKS).run()
    assert run.result == {"c": 3}
    assert types(run) == [
        *("flow_started", "flow_activated"),
        *("step_started", "work_started", "work_succeeded", "attribute_set", "step_completed") * 3,
        *("flow_completed", "flow_digest_updated", "flow_deactivated"),
    ]
    assert called(run) == ["A", "B", "C"]


def test_every_entry_names_its_cause() -> None:
    run = FlowRun(CHAIN, ["C"], handlers=LINKS).run()
    by_seq = {entry.seq: entry for entry in run.log}
    starts = [entry for entry in run.log if isinstance(entry, fe.StepStarted)]
    causes = [by_seq[entry.cause or 0] for entry in starts]
    assert [getattr(cause, "step", cause.type) for cause in causes] == ["flow_activated", "A", "B"]
    assert all(entry.cause is not None and entry.cause < entry.seq for entry in run.log[1:])


def test_a_failed_provider_fails_its_consumer_and_the_flow() -> None:
    run = FlowRun([step("P: > d"), step("G: d > r")], ["G"], handlers={"P": fails}).run()
    assert run.statuses == {"P": "failed", "G": "failed"}
    assert run.state.failure is not None
    assert run.state.failure.message == ("step 'G' failed: required input no longer available: d (step 'P' failed: no)")
    assert run.state.failure.cause is not None
    assert run.state.failure.cause.cause is not None
    assert run.state.failure.cause.cause.type == "ValueError"
    assert called(run) == ["P"]


def test_the_failure_of_a_long_chain_names_the_step_that_failed_by_itself_and_not_those_between() -> None:
    """So that the log grows with the plan, and not with its square."""
    chain = [step("S0: > v0"), *(step(f"S{number}: v{number - 1} > v{number}") for number in range(1, 30))]
    run = FlowRun(chain, ["S29"], handlers={"S0": fails}).run()
    failures = [entry.failure for entry in run.log if isinstance(entry, fe.StepFailed)]
    assert len(failures) == 30
    assert failures[-1].message == "required input no longer available: v28 (step 'S0' failed: no)"
    assert all(one.cause == failures[0] for one in failures[1:])


def test_a_provider_whose_predicate_is_false_fails_its_consumer() -> None:
    provider = changed(step("P: > d"), predicate=expression("false"))
    run = FlowRun([provider, step("G: d > r")], ["G"]).run()
    assert run.statuses == {"P": "skipped", "G": "failed"}
    assert run.state.status == "failed"
    assert called(run) == []


def test_a_goal_whose_predicate_is_false_completes_the_flow_with_nothing() -> None:
    run = FlowRun([changed(step("G: > r"), predicate=expression("false"))], ["G"]).run()
    assert run.statuses == {"G": "skipped"}
    assert (run.state.status, run.result) == ("completed", {})


def test_a_predicate_that_fails_fails_its_step() -> None:
    run = FlowRun([changed(step("G: > r"), predicate=expression("!"))], ["G"]).run()
    assert run.statuses == {"G": "failed"}


def test_first_takes_one_value_and_skips_the_provider_that_has_not_started() -> None:
    steps = [step("P1: > d"), step("X: > k"), step("P2: k > d"), step("G: d > r")]
    run = FlowRun(steps, ["G"], handlers={"P1": gives(d=1), "X": gives(k=1), "G": lambda i: {"r": i["d"]}})
    run.finish(next(ref for ref in run.state.outstanding if run.state.items[ref].step == "P1"))
    assert run.state.steps["P2"].reason == "outputs not needed"
    assert run.run().result == {"r": 1}


@pytest.mark.parametrize("seed", ORDERS)
def test_last_and_some_wait_for_every_provider(seed: int) -> None:
    steps = [step("P1: > d"), step("P2: > d"), step("L: d/last > l"), step("S: d/some > s")]
    handlers = {"P1": gives(d=1), "P2": gives(d=2), "L": lambda i: {"l": i["d"]}, "S": lambda i: {"s": sorted(i["d"])}}
    run = FlowRun(steps, ["L", "S"], handlers=handlers, seed=seed).run()
    assert run.result["s"] == [1, 2]
    assert run.result["l"] == int(called(run)[1][1])


@pytest.mark.parametrize("seed", ORDERS)
def test_all_fails_when_one_provider_fails_and_some_does_not(seed: int) -> None:
    steps = [step("P1: > d"), step("P2: > d"), step("S: d/some > s"), step("A: d/all > s")]
    handlers = {"P1": gives(d=1), "P2": fails, "S": lambda i: {"s": i["d"]}}
    assert FlowRun(steps, ["S"], handlers=handlers, seed=seed).run().result == {"s": [1]}
    assert FlowRun(steps, ["A"], handlers=handlers, seed=seed).run().state.status == "failed"


def test_none_runs_if_no_provider_has_a_value() -> None:
    steps = [step("P: > d"), step("G: d/none > r")]
    assert FlowRun(steps, ["G"], handlers={"P": fails, "G": gives(r=1)}).run().result == {"r": 1}
    run = FlowRun(steps, ["G"], handlers={"P": gives(d=1)}).run()
    assert run.statuses == {"P": "completed", "G": "skipped"}
    assert run.state.status == "failed"


def each(name: str, parallelism: int = 1) -> m.Step:
    one = with_input(step("E: > r"), name, m.Required(required=m.RequiredConfig(for_each=True)))
    return changed(one, work_config=m.WorkConfig(parallelism=parallelism))


@pytest.mark.parametrize("seed", ORDERS)
@pytest.mark.parametrize("values", [[], ["x"], ["x", "y", "z"]])
def test_for_each_gives_a_list_in_input_order(values: list[str], seed: int) -> None:
    handlers = {"E": lambda i: {"r": i["v"].upper()}}
    run = FlowRun([each("v", 3)], ["E"], {"v": [values]}, handlers, seed=seed).run()
    assert run.result == {"r": [{"v": value, "r": value.upper()} for value in values]}


def test_for_each_starts_no_more_items_at_a_time_than_allowed() -> None:
    run = FlowRun([each("v", 2)], ["E"], {"v": [list(range(5))]}, {"E": gives(r=1)})
    most = 0
    while run.state.outstanding:
        most = max(most, len(run.state.outstanding))
        run.step()
    assert most == 2


def test_the_first_failed_item_fails_the_step_and_the_rest_never_starts() -> None:
    run = FlowRun([each("v")], ["E"], {"v": [["a", "b", "c"]]}, {"E": fails}).run()
    assert len(run.calls) == 1
    assert run.statuses == {"E": "failed"}
    assert [str(item.status) for item in run.state.items.values()] == ["failed", "cancelled", "cancelled"]
    assert run.state.deactivated


def test_too_many_work_items_fail_the_step() -> None:
    run = FlowRun([each("v")], ["E"], {"v": [list(range(10_001))]}).run()
    assert run.state.steps["E"].failure is not None
    assert "at most 10,000 work items, got 10,001" in run.state.steps["E"].failure.message


def test_retries_end_in_failure() -> None:
    run = FlowRun([step("G: > r")], ["G"], handlers={"G": later}).run()
    assert len(run.calls) == 4
    assert run.state.status == "failed"


def optional(deadline: int = 0, default: str = "", collect: m.Collect = "first") -> m.Optional:
    return m.Optional(optional=m.OptionalConfig(deadline=deadline, default=default, collect=collect))


def test_an_optional_input_has_its_default_after_the_deadline() -> None:
    slow = step("P: > o")
    goal = with_input(step("G: > r"), "o", optional(50, "7"))
    run = FlowRun([slow, goal], ["G"], handlers={"P": gives(o=1), "G": lambda i: {"r": i["o"]}})
    assert run.statuses["G"] == "pending"
    run.pass_time()
    run.finish(next(ref for ref in run.state.outstanding if run.state.items[ref].step == "G"))
    assert (run.state.status, run.result) == ("completed", {"r": 7})
    assert not run.state.deactivated
    run.run()
    assert run.state.deactivated
    assert types(run)[-1] == "flow_deactivated"
    assert types(run).count("flow_completed") == 1


@pytest.mark.parametrize("seed", ORDERS)
def test_an_optional_input_from_the_same_result_as_a_required_one_is_in_time(seed: int) -> None:
    goal = with_input(step("G: d > r"), "o", optional(0, "0"))
    run = FlowRun(
        [step("P: > d o"), goal], ["G"], handlers={"P": gives(d=1, o=2), "G": lambda i: {"r": i["o"]}}, seed=seed
    ).run()
    assert run.result == {"r": 2}


def test_of_two_routes_the_one_that_matches_is_taken() -> None:
    steps = [step("R: > t"), step('Post: t="postal" > p'), step('Mail: t="email" > q')]
    handlers = {"R": gives(t="email"), "Mail": gives(q=1)}
    run = FlowRun(steps, ["Post", "Mail"], handlers=handlers).run()
    assert run.statuses == {"R": "completed", "Post": "skipped", "Mail": "completed"}
    assert run.state.steps["Post"].unsatisfied == ("t",)
    assert run.result == {"q": 1}


def test_if_no_route_matches_the_flow_fails() -> None:
    steps = [step("R: > t"), step('Post: t="postal" > p')]
    run = FlowRun(steps, ["Post"], handlers={"R": gives(t="email")}).run()
    assert run.state.status == "failed"
    assert run.state.steps["Post"].unsatisfied == ("t",)


def test_a_constant_counts_and_not_what_is_given_for_its_name() -> None:
    goal = with_input(step("G: > r"), "k", m.Const(const=m.ConstConfig(value="1")))
    run = FlowRun([goal], ["G"], {"k": [2]}, {"G": lambda i: {"r": i["k"]}}).run()
    assert run.result == {"r": 1}


# What went wrong elsewhere.


@pytest.mark.parametrize("seed", ORDERS)
def test_a_failed_step_that_is_no_goal_does_not_hold_up_the_flow(seed: int) -> None:
    goal = with_input(step("G: d > r"), "o", optional(1000, "0"))
    handlers = {"D": gives(d=1), "P": fails, "G": lambda i: {"r": i["o"]}}
    run = FlowRun([step("D: > d"), step("P: > o"), goal], ["G"], handlers=handlers, seed=seed).run()
    assert (run.state.status, run.result) == ("completed", {"r": 0})
    assert run.state.deactivated


def test_a_provider_that_completes_without_a_value_fails_its_consumer() -> None:
    run = FlowRun([step("P: > d"), step("G: d > r")], ["G"], handlers={"P": gives()}).run()
    assert run.statuses == {"P": "completed", "G": "failed"}
    assert run.state.deactivated


def test_goals_that_are_given_are_done() -> None:
    run = FlowRun([step("A: > a")], ["A"], {"a": [1]}).run()
    assert (run.state.status, run.result, run.calls) == ("completed", {"a": 1}, [])
    both = FlowRun([step("A: > a"), step("B: a > b")], ["A", "B"], {"a": [1]}, {"B": gives(b=2)}).run()
    assert both.result == {"a": 1, "b": 2}


@pytest.mark.parametrize("seed", ORDERS)
def test_work_that_outlives_its_flow_is_recorded_and_changes_nothing(seed: int) -> None:
    steps = [step("A: > a"), step("B: > b")]
    run = FlowRun(steps, ["A", "B"], handlers={"A": fails, "B": gives(b=1)}, seed=seed)
    refs = {run.state.items[ref].step: ref for ref in run.state.outstanding}
    run.finish(refs["A"])
    assert run.state.status == "failed"
    run.finish(refs["B"])
    assert "work_succeeded" in types(run)
    assert run.statuses["B"] == "completed"
    assert (run.state.status, types(run)[-1]) == ("failed", "flow_deactivated")


def test_a_late_sibling_of_a_failed_item_is_recorded() -> None:
    run = FlowRun([each("v", 2)], ["E"], {"v": [["a", "b"]]}, {"E": lambda i: fails(i) if i["v"] == "a" else {"r": 1}})
    first, second = run.state.outstanding
    run.finish(first)
    run.finish(second)
    assert types(run)[-2:] == ["work_succeeded", "flow_deactivated"]


def test_a_second_answer_is_not_recorded() -> None:
    run = FlowRun(CHAIN, ["C"], handlers=LINKS)
    ref = next(iter(run.state.outstanding))
    run.finish(ref)
    before = len(run.log)
    run.take(fe.WorkFailed(ref=ref, step="A", failure=late_failure("late")))
    assert len(run.log) == before


def late_failure(message: str) -> Failure:
    return Failure(type="Late", message=message)


@pytest.mark.parametrize("seed", ORDERS)
def test_a_failed_step_undoes_its_own_items_also_the_late_ones(seed: int) -> None:
    undone = changed(each("v", 3), python=m.PythonConfig(activity="E", compensate="undo"))
    run = FlowRun(
        [undone], ["E"], {"v": [["a", "b", "c"]]}, {"E": lambda i: fails(i) if i["v"] == "b" else {"r": 1}}, seed=seed
    )
    run.run()
    assert called(run).count("undo E") == 2
    assert run.state.deactivated


def test_a_step_without_compensation_is_not_undone() -> None:
    run = FlowRun(
        [each("v", 1)], ["E"], {"v": [["a", "b"]]}, {"E": lambda i: fails(i) if i["v"] == "b" else {"r": 1}}
    ).run()
    assert "comp_started" not in types(run)


@pytest.mark.parametrize("seed", ORDERS)
def test_one_outcome_in_every_order(seed: int) -> None:
    steps: Sequence[m.Step] = [
        step("Order: order_id > customer items"),
        step("Check: customer > credit"),
        step("Price: items > total"),
        step("Pay: credit total > receipt"),
        step("Ship: items receipt > shipment"),
    ]
    handlers: dict[str, Handler] = {
        "Order": gives(customer="c", items=[1, 2]),
        "Check": gives(credit=100),
        "Price": lambda i: {"total": sum(i["items"])},
        "Pay": lambda i: {"receipt": i["credit"] - i["total"]},
        "Ship": lambda i: {"shipment": [i["receipt"], *i["items"]]},
    }
    run = FlowRun(steps, ["Ship"], {"order_id": ["o-1"]}, handlers, seed=seed).run()
    assert run.result == {"shipment": [97, 1, 2]}
    assert set(run.statuses.values()) == {"completed"}
