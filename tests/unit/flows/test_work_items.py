"""Work items under a seeded scheduler: whatever order results come in, and whoever dies, there is one outcome."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.errors import NonRetryable
from resurgam.flows import model as m
from resurgam.flows.brain import LiveFlow
from support.flow_runs import Equality, started
from support.flow_simulation import FlowSimulation, Function
from support.flow_steps import changed, step, with_input

SEEDS = range(25)
every_order = pytest.mark.parametrize("seed", SEEDS)


def fails(*_: object) -> object:
    raise NonRetryable("no")


def later(*_: object) -> object:
    raise ConnectionError("not now")


def gives(**outputs: object) -> Function:
    return lambda *_: outputs


def each(parallelism: int = 1, *, undo: bool = False, retries: int = 0) -> m.Step:
    """Return a step that runs for each element of v."""
    return changed(
        with_input(step("E: > r"), "v", m.Required(required=m.RequiredConfig(for_each=True))),
        python=m.PythonConfig(activity="E", compensate="undo" if undo else ""),
        work_config=m.WorkConfig(parallelism=parallelism, max_retries=retries),
    )


def fails_at(*values: str, error: Callable[..., object] = fails) -> Function:
    return lambda arguments: error() if arguments["v"] in values else {"r": arguments["v"].upper()}


def entries(run: FlowSimulation, *kinds: type[events.Event]) -> list[Any]:
    return [entry for entry in run.log if isinstance(entry, kinds)]


# Retries.


@every_order
def test_an_attempt_that_is_retried_is_recorded_with_its_retry_and_the_last_one_as_failed(seed: int) -> None:
    one = changed(step("G: > r"), work_config=m.WorkConfig(max_retries=2))
    run = FlowSimulation([one], ["G"], functions={"G": later}, seed=seed, losses=False).run()
    work = [kind for kind in run.types if kind.startswith(("work", "retry"))]
    assert [kind for kind in work if kind != "work_started"] == [
        *("work_not_completed", "retry_scheduled") * 2,
        "work_failed",
    ]
    assert [entry.retry_count for entry in entries(run, fe.RetryScheduled)] == [1, 2]
    assert len(run.calls) == 3
    assert (run.state.status, run.types[-1]) == ("failed", "flow_deactivated")


@every_order
def test_a_permanent_error_is_not_retried(seed: int) -> None:
    run = FlowSimulation([step("G: > r")], ["G"], functions={"G": fails}, seed=seed, losses=False).run()
    assert len(run.calls) == 1
    assert "work_not_completed" not in run.types
    assert run.statuses == {"G": "failed"}


@every_order
def test_every_attempt_is_recorded_once_and_a_lost_one_too(seed: int) -> None:
    run = FlowSimulation([each(2)], ["E"], {"v": [["a", "b", "c"]]}, {"E": fails_at()}, seed=seed, eager=True).run()
    for number in (1, 2, 3):
        attempts = [entry.attempt for entry in entries(run, fe.WorkStarted) if entry.item == number]
        lost = [entry for entry in entries(run, fe.WorkNotCompleted) if entry.ref == number]
        assert attempts == [*range(1, run.begun[number] + 1)]
        assert len(lost) == len(attempts) - 1
        assert all("died or lost its lease" in entry.failure.message for entry in lost)
    assert run.result == {"r": [{"v": value, "r": value.upper()} for value in "abc"]}


@every_order
def test_when_retries_are_exhausted_no_other_item_starts_before_the_step_fails(seed: int) -> None:
    run = FlowSimulation(
        [each(1, retries=1)], ["E"], {"v": [["a", "b"]]}, {"E": fails_at("a", error=later)}, seed=seed
    ).run()
    assert {arguments["v"] for _, arguments in run.calls} == {"a"}
    assert run.requests.keys() == {1}
    assert str(run.state.items[2].status) == "cancelled"


def test_retries_have_the_backoff_of_the_step() -> None:
    fixed, linear, exponential = (
        _delays(m.WorkConfig(max_retries=4, init_backoff=1000, max_backoff=3500, backoff_type=kind))  # type: ignore[arg-type]
        for kind in ("fixed", "linear", "exponential")
    )
    assert fixed == [1000, 1000, 1000, 1000]
    assert linear == [1000, 2000, 3000, 3500]
    assert exponential == [1000, 2000, 3500, 3500]


def _delays(work: m.WorkConfig) -> list[int]:
    run = FlowSimulation([changed(step("G: > r"), work_config=work)], ["G"], functions={"G": later}).run()
    return [entry.next_retry_at - 1000 for entry in entries(run, fe.RetryScheduled)]


# The end.


@every_order
def test_a_late_result_is_recorded_and_changes_no_outcome(seed: int) -> None:
    steps = [step("A: > a"), step("B: > b"), step("C: > c")]
    run = FlowSimulation(steps, ["A", "B", "C"], functions={"A": fails, "B": gives(b=1), "C": later}, seed=seed).run()
    assert run.state.status == "failed"
    ended = run.types.index("flow_failed")
    assert run.types[ended + 1] == "flow_digest_updated"
    assert not {"step_started", "flow_failed", "flow_completed"} & {*run.types[ended + 1 :]}
    assert run.types[-1] == "flow_deactivated"
    assert run.outcome.deactivated


def with_slow_work(goal: Function, seed: int) -> FlowSimulation:
    """Return a flow with a goal, and with slow work that another one waits for: begun by a worker, or still in its queue."""
    steps = [step("G: > g"), step("S: > s"), with_input(step("W: > w"), "s", optional(10_000, "0"))]
    run = FlowSimulation(steps, ["G", "W"], functions={"G": goal, "S": gives(s=1)}, seed=seed, losses=False)
    if seed % 2:
        run.claim(next(ref for ref in run.queued if run.state.items[ref].step == "S"))
    return run


def test_one_commit_has_a_result_and_everything_that_follows_from_it() -> None:
    steps = [
        step("A: > a"),
        step("B: a > b"),
        changed(step("C: a > c"), predicate=m.Expression(language="cel", script="!")),
    ]
    run = FlowSimulation([*steps, step("G: b ?c > g")], ["G"], functions={"A": gives(a=1)}, losses=False)
    [ref] = run.queued
    run.claim(ref)
    run.finish(ref)
    run.advance()
    assert [entry.type for entry in run.outcome.events] == [
        *("work_started", "work_succeeded", "attribute_set", "step_completed", "step_started", "step_failed"),
    ]
    assert [request.name for request in run.outcome.activities] == ["B"]


def test_the_result_that_decides_the_end_starts_nothing_more() -> None:
    """One goal has its input, another one can no longer get it."""
    steps = [step("P: > d e"), step("G: d > g"), step("H: e > h")]
    run = FlowSimulation(steps, ["G", "H"], functions={"P": gives(d=1)}).run()
    assert run.statuses == {"P": "completed", "G": "pending", "H": "failed"}
    assert run.types.count("step_started") == 1


@every_order
@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_flow_that_completes_or_fails_is_deactivated_when_nothing_runs_any_more(status: str, seed: int) -> None:
    run = with_slow_work(gives(g=1) if status == "completed" else fails, seed).run()
    check_end(run, status)


@every_order
@pytest.mark.parametrize("status", ["cancelled", "terminated"])
def test_at_an_end_from_outside_what_waits_is_withdrawn_and_what_runs_is_recorded(status: str, seed: int) -> None:
    run = with_slow_work(gives(g=1), seed)
    if status == "cancelled":
        run.deliver(events.CancelRequested())
    else:
        run.terminate()
    run.advance()
    assert not (run.running and run.state.deactivated)
    run.run()
    check_end(run, status)
    assert run.types.count("work_succeeded") == seed % 2
    assert run.types.count("work_cancelled") == 2 - seed % 2


def check_end(run: FlowSimulation, status: str) -> None:
    assert (run.state.status, run.state.digest, run.outcome.status) == (status, status, status)
    assert run.types.count("flow_digest_updated") == 1
    assert run.types[-1] == "flow_deactivated"
    assert run.types[:2] == ["flow_started", "flow_activated"]
    assert not run.queued


def optional(deadline: int = 0, default: str = "") -> m.Optional:
    return m.Optional(optional=m.OptionalConfig(deadline=deadline, default=default))


def test_a_flow_that_is_terminated_before_it_is_advanced_is_never_activated() -> None:
    first = started([step("G: > g")], ["G"], {}, Equality())
    flow = LiveFlow([first, events.WorkflowTerminated(seq=2, at=1000)], Equality())
    outcome = flow.advance((), 1000)
    assert [entry.type for entry in outcome.events] == ["flow_digest_updated", "flow_deactivated"]
    assert (outcome.status, outcome.deactivated, outcome.activities) == ("terminated", True, ())


@every_order
def test_an_attempt_that_fails_after_the_end_is_recorded_and_not_retried(seed: int) -> None:
    steps = [step("A: > a"), step("B: > b")]
    run = FlowSimulation(steps, ["A", "B"], functions={"A": fails, "B": later}, seed=seed, losses=False)
    refs = {run.state.items[ref].step: ref for ref in run.queued}
    for ref in refs.values():
        run.claim(ref)
    run.finish(refs["A"])
    run.advance()
    run.finish(refs["B"])
    run.run()
    assert "work_not_completed" in run.types
    assert "retry_scheduled" not in run.types
    assert run.types[-2:] == ["work_cancelled", "flow_deactivated"]
    assert run.called == ["A", "B"]


def test_what_one_entry_hands_over_and_the_next_one_drops_is_never_requested() -> None:
    run = FlowSimulation([each(2)], ["E"], {"v": [["a", "b", "c"]]}, {"E": fails_at("b")}, losses=False)
    for ref in (1, 2):
        run.claim(ref)
        run.finish(ref)
    run.advance()
    assert run.requests.keys() == {1, 2}
    assert str(run.state.items[3].status) == "cancelled"
    assert run.types[-2:] == ["work_cancelled", "flow_deactivated"]


@every_order
def test_items_that_were_not_handed_over_are_cancelled_with_their_flow(seed: int) -> None:
    run = FlowSimulation([each(1)], ["E"], {"v": [["a", "b", "c"]]}, {"E": fails_at()}, seed=seed)
    run.deliver(events.CancelRequested())
    run.run()
    statuses = [str(item.status) for item in run.state.items.values()]
    assert statuses[0] in ("succeeded", "cancelled")
    assert statuses[1:] == ["cancelled", "cancelled"]


def test_items_that_were_not_handed_over_are_cancelled_with_their_step() -> None:
    provider = changed(each(1), attributes={**each(1).attributes, "d": m.Output()})
    steps = [provider, step("P: > d"), step("G: d/some > g")]
    run = FlowSimulation(steps, ["G"], {"v": [["a", "b", "c"]]}, {"E": fails}, losses=False)
    first = min(ref for ref in run.queued if run.state.items[ref].step == "E")
    run.claim(first)
    run.finish(first)
    run.advance()
    assert run.state.status == "active"
    assert [str(item.status) for item in run.state.items_of("E")] == ["failed", "cancelled", "cancelled"]


def test_the_rest_of_a_failed_step_is_withdrawn_while_its_flow_goes_on() -> None:
    """The goal needs only one of two providers."""
    provider = changed(each(2), id="E", attributes={**each(2).attributes, "d": m.Output()})
    steps = [provider, step("P: > d"), step("G: d/some > g")]
    functions = {"E": fails, "P": gives(d=1), "G": lambda arguments: {"g": arguments["d"]}}
    run = FlowSimulation(steps, ["G"], {"v": [["a", "b"]]}, functions, losses=False)
    first = min(ref for ref in run.queued if run.state.items[ref].step == "E")
    run.claim(first)
    run.finish(first)
    run.advance()
    assert run.state.status == "active"
    run.run()
    assert run.called.count("E") == 1
    assert "work_cancelled" in run.types
    assert run.result == {"g": [1]}


# Pause, resume and cancel.


@every_order
def test_results_that_arrive_during_a_pause_are_recorded_and_start_nothing_until_the_flow_is_resumed(seed: int) -> None:
    steps = [step("A: > a"), step("B: > b"), step("G: a b > g")]
    functions = {"A": gives(a=1), "B": gives(b=2), "G": lambda arguments: {"g": arguments["a"] + arguments["b"]}}
    run = FlowSimulation(steps, ["G"], functions=functions, seed=seed)
    run.deliver(events.WorkflowPaused())
    run.advance()
    run.run()
    assert run.statuses == {"A": "completed", "B": "completed", "G": "pending"}
    assert run.outcome.wake_at is None
    run.deliver(events.WorkflowResumed())
    run.run()
    assert run.result == {"g": 3}


@every_order
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_paused_flow_hands_over_no_further_items_until_it_is_resumed(parallelism: int, seed: int) -> None:
    run = FlowSimulation([each(parallelism)], ["E"], {"v": [["a", "b", "c", "d"]]}, {"E": fails_at()}, seed=seed)
    run.deliver(events.WorkflowPaused())
    run.advance()
    assert len(run.run().called) == parallelism
    run.deliver(events.WorkflowResumed())
    assert len(run.run().called) == 4
    assert run.result == {"r": [{"v": value, "r": value.upper()} for value in "abcd"]}


@every_order
def test_a_pause_holds_back_the_end_and_the_outcome_is_the_same(seed: int) -> None:
    run = FlowSimulation([step("G: > g")], ["G"], functions={"G": gives(g=1)}, seed=seed)
    run.deliver(events.WorkflowPaused())
    run.run()
    assert run.state.status == "active"
    run.deliver(events.WorkflowResumed())
    run.run()
    assert (run.state.status, run.result) == ("completed", {"g": 1})


def test_a_deadline_that_passes_during_a_pause_counts_when_the_flow_is_resumed() -> None:
    steps = [step("S: > o"), with_input(step("G: > g"), "o", optional(50, "7"))]
    run = FlowSimulation(steps, ["G"], functions={"S": gives(o=1), "G": lambda arguments: {"g": arguments["o"]}})
    run.deliver(events.WorkflowPaused())
    run.advance()
    run.now += 100
    run.run()
    run.deliver(events.WorkflowResumed())
    assert run.run().result == {"g": 7}


@every_order
def test_a_cancelled_flow_starts_nothing_more(seed: int) -> None:
    run = FlowSimulation([step("A: > a"), step("B: a > b")], ["B"], functions={"A": gives(a=1)}, seed=seed)
    run.deliver(events.CancelRequested(reason="enough"))
    run.run()
    assert "B" not in run.called
    assert (run.state.status, run.types[-1]) == ("cancelled", "flow_deactivated")
    assert run.types.count("flow_cancelled") == 1


# Compensation.


@every_order
def test_a_failed_step_undoes_what_it_did_also_what_succeeds_later(seed: int) -> None:
    run = FlowSimulation(
        [each(3, undo=True)], ["E"], {"v": [["a", "b", "c"]]}, {"E": fails_at("b"), "undo": gives()}, seed=seed
    ).run()
    done = {entry.ref for entry in entries(run, fe.WorkSucceeded)}
    assert {entry.item for entry in entries(run, fe.CompStarted)} == done
    assert {run.state.items[number].status.value for number in done} <= {"compensated"}
    assert run.types[-1] == "flow_deactivated"


@every_order
def test_without_a_function_that_undoes_nothing_is_undone(seed: int) -> None:
    run = FlowSimulation([each(3)], ["E"], {"v": [["a", "b", "c"]]}, {"E": fails_at("c")}, seed=seed).run()
    assert set(run.called) == {"E"}
    assert "comp_started" not in run.types


def test_a_compensation_gets_the_arguments_the_result_and_the_metadata_of_its_work_item() -> None:
    one = each(1, undo=True)
    for name, key in (("token", "receipt_token"), ("who", "user"), ("flow", "flow_id")):
        one = with_input(one, name, m.Meta(meta=m.MetaConfig(key=key)))
    run = FlowSimulation(
        [one], ["E"], {"v": [["a", "b"]]}, {"E": fails_at("b"), "undo": gives()}, metadata={"user": "ada"}
    ).run()
    worked, undone = (arguments for name, arguments in (run.calls[0], run.calls[-1]))
    assert worked["v"] == "a"
    assert (worked["who"], worked["flow"]) == ("ada", "flow")
    assert undone == {"input": worked, "output": {"r": "A"}}
    assert run.requests[1].entity_id == worked["token"]
    assert run.requests[max(run.requests)].entity_id != worked["token"], "it has a key of its own"


@every_order
def test_a_compensation_has_attempts_of_its_own_and_may_fail(seed: int) -> None:
    tries = iter([later, later, gives(r="A")])
    run = FlowSimulation(
        [each(1, undo=True, retries=2)],
        ["E"],
        {"v": [["a", "b"]]},
        {"E": lambda arguments: fails() if arguments["v"] == "b" else next(tries)(), "undo": later},
        seed=seed,
        losses=False,
    ).run()
    assert run.called.count("undo") == 3
    assert [entry.retry_count for entry in entries(run, fe.CompRetryScheduled)] == [1, 2]
    item = run.state.items[1]
    assert (item.status, item.retry_count, item.comp_retry_count) == ("compensation_failed", 2, 2)
    assert run.types[-2:] == ["comp_failed", "flow_deactivated"]


@every_order
def test_other_completed_steps_are_not_undone(seed: int) -> None:
    first = changed(step("A: > a"), python=m.PythonConfig(activity="A", compensate="undo"))
    run = FlowSimulation([first, step("B: a > b")], ["B"], functions={"A": gives(a=1), "B": fails}, seed=seed).run()
    assert "comp_started" not in run.types


# Causes.


@every_order
def test_every_event_of_a_work_item_names_what_led_to_it(seed: int) -> None:
    run = FlowSimulation(
        [each(2, undo=True, retries=1)],
        ["E"],
        {"v": [["a", "b", "c"]]},
        {"E": fails_at("b", error=later), "undo": later},
        seed=seed,
    ).run()
    by_seq = {entry.seq: entry.type for entry in run.log}
    leads = {
        "work_started": {"step_started", "retry_scheduled", "work_not_completed"},
        "work_succeeded": {"step_started", "retry_scheduled", "work_not_completed"},
        "work_failed": {"step_started", "retry_scheduled", "work_not_completed"},
        "work_not_completed": {"step_started", "retry_scheduled", "work_not_completed"},
        "retry_scheduled": {"work_not_completed"},
        "step_failed": {"work_failed"},
        "comp_started": {"work_failed", "work_succeeded"},
        "comp_retry_scheduled": {"comp_started", "comp_retry_scheduled"},
        "comp_failed": {"comp_started", "comp_retry_scheduled"},
        "flow_digest_updated": {"flow_failed"},
        "flow_activated": {"flow_started"},
    }
    for entry in run.log[1:]:
        assert entry.cause is not None
        assert entry.cause < entry.seq
        assert by_seq[entry.cause] in leads.get(entry.type, {by_seq[entry.cause]}), entry


def test_an_attempt_names_the_start_of_its_step_or_the_retry_that_it_follows() -> None:
    tries = iter([later, gives(r=1)])
    run = FlowSimulation([step("G: > r")], ["G"], functions={"G": lambda *_: next(tries)()}, losses=False).run()
    about = [entry for entry in run.log if entry.type.startswith(("work", "retry"))]
    assert [(entry.type, run.log[(entry.cause or 0) - 1].type) for entry in about] == [
        ("work_started", "step_started"),
        ("work_not_completed", "step_started"),
        ("retry_scheduled", "work_not_completed"),
        ("work_started", "retry_scheduled"),
        ("work_succeeded", "retry_scheduled"),
    ]


def test_what_comes_from_outside_has_no_cause() -> None:
    run = FlowSimulation([step("A: > a")], ["A"])
    run.deliver(events.CancelRequested())
    run.advance()
    assert [entry.cause for entry in entries(run, events.CancelRequested)] == [None]
    [cancelled] = entries(run, fe.FlowCancelled)
    assert run.log[cancelled.cause - 1].type == "cancel_requested"


# Steps that cannot read.


@every_order
@pytest.mark.parametrize("broken", ["match", "input", "output", "predicate"])
def test_a_step_that_cannot_read_or_map_an_attribute_fails_itself(broken: str, seed: int) -> None:
    wrong = m.Expression(language="cel", script="!")
    goal = step("G: d > g")
    match broken:
        case "match":
            goal = with_input(goal, "d", m.Required(required=m.RequiredConfig(match=wrong)))
        case "input":
            goal = with_input(goal, "d", m.Required(required=m.RequiredConfig(mapping=m.Mapping(script=wrong))))
        case "output":
            goal = with_input(goal, "g", m.Output(output=m.OutputConfig(mapping=m.Mapping(script=wrong))))
        case _:
            goal = changed(goal, predicate=wrong)
    run = FlowSimulation([step("P: > d"), goal], ["G"], functions={"P": gives(d=1)}, seed=seed).run()
    assert run.statuses == {"P": "completed", "G": "failed"}
    place = {"match": "match of 'd': ", "input": "mapping of 'd': ", "output": "mapping of 'g': "}
    assert run.state.steps["G"].failure is not None
    assert run.state.steps["G"].failure.type == "ExpressionFailed"
    assert run.state.steps["G"].failure.message.startswith(place.get(broken, "predicate: "))
    assert (run.state.status, run.types[-1]) == ("failed", "flow_deactivated")


def test_an_unreadable_value_that_arrives_during_a_pause_fails_its_reader_after_it() -> None:
    wrong = m.Expression(language="cel", script="!")
    goal = with_input(step("G: d > g"), "d", m.Required(required=m.RequiredConfig(match=wrong)))
    run = FlowSimulation([step("P: > d"), goal], ["G"], functions={"P": gives(d=1)})
    run.deliver(events.WorkflowPaused())
    run.run()
    run.deliver(events.WorkflowResumed())
    assert run.run().statuses == {"P": "completed", "G": "failed"}


# Results without fields, and scripts.


@pytest.mark.parametrize("result", ["null", "3", '"x"', "[1,2]", '{"a":1}'])
def test_a_result_that_counts_as_a_whole_is_one_output_named_after_the_step(result: str) -> None:
    value = msgspec.json.decode(result)
    whole = changed(step("total: > total"), python=m.PythonConfig(activity="total", fields=False))
    run = FlowSimulation([whole], ["total"], functions={"total": lambda *_: value}).run()
    assert run.result == {"total": value}


def test_of_a_result_with_fields_the_declared_ones_are_outputs() -> None:
    run = FlowSimulation([step("G: > g")], ["G"], functions={"G": gives(g=1, other=2)}).run()
    assert run.result == {"g": 1}
    [succeeded] = entries(run, fe.WorkSucceeded)
    assert msgspec.json.decode(succeeded.outputs) == {"g": 1, "other": 2}
