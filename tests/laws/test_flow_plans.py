"""Laws of plans: what a plan promises can be had, and nothing is planned in vain."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resurgam.flows import model as m
from resurgam.flows.catalog import Catalog
from resurgam.flows.planner import Mode, Plan, plan
from support.flow_runs import FlowRun
from support.flow_steps import step

NAMES = "abcdefg"
CALM = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "derandomize": True}


@st.composite
def catalogs(draw: st.DrawFn) -> list[m.Step]:
    """Draw steps without cycles, matches and inputs that must have no value: nothing keeps them from running."""
    steps = []
    for number in range(draw(st.integers(1, 8))):
        cut = draw(st.integers(1, len(NAMES) - 1))
        collects = st.sampled_from(["", "/last", "/some", "/all"])
        words = [
            f"{draw(st.sampled_from(['', '', '?']))}{name}{draw(collects)}"
            for name in sorted(draw(st.sets(st.sampled_from(NAMES[:cut]), max_size=3)))
        ]
        outputs = sorted(draw(st.sets(st.sampled_from(NAMES[cut:]), max_size=2)))
        steps.append(step(f"S{number}: {' '.join(words)} > {' '.join(outputs)}"))
    return steps


GIVEN = st.dictionaries(st.sampled_from(NAMES), st.just([1]), max_size=4)


def made(steps: list[m.Step], goals: list[str], init: dict[str, list[object]], mode: Mode) -> Plan:
    return plan(Catalog(steps), goals, init, mode, lambda *_: True)


@settings(max_examples=120, **CALM)
@given(catalogs(), GIVEN, st.data())
def test_a_plan_without_missing_values_leads_to_its_goals(
    steps: list[m.Step], init: dict[str, list[object]], data: st.DataObject
) -> None:
    """If every step provides what it says, all of them complete, or are not needed after all."""
    goals = data.draw(st.lists(st.sampled_from([one.id for one in steps]), min_size=1, max_size=3, unique=True))
    if made(steps, goals, init, "strict").required:
        return
    handlers = {one.id: lambda _, one=one: dict.fromkeys(one.outputs, 1) for one in steps}
    run = FlowRun(steps, goals, init, handlers, seed=data.draw(st.integers(0, 9))).run()
    assert run.state.status == "completed"
    assert set(run.statuses.values()) <= {"completed", "skipped"}
    wanted = {name for one in steps if one.id in goals for name in one.outputs}
    assert set(run.result) == wanted


@settings(max_examples=120, **CALM)
@given(catalogs(), GIVEN, st.data(), st.sampled_from(["strict", "preview"]))
def test_a_plan_has_what_its_goals_need_and_nothing_else(
    steps: list[m.Step], init: dict[str, list[object]], data: st.DataObject, mode: Mode
) -> None:
    goals = data.draw(st.lists(st.sampled_from([one.id for one in steps]), min_size=1, max_size=3, unique=True))
    found = made(steps, goals, init, mode)
    excluded = found.excluded.missing.keys() | found.excluded.satisfied.keys() | found.excluded.blocked.keys()
    assert excluded.isdisjoint(found.steps)
    assert set(goals) <= found.steps.keys() | excluded
    assert found.reasons.keys() == found.steps.keys()
    for step_id, reason in found.reasons.items():
        assert reason.goal == (step_id in goals)
        assert reason.goal or reason.uses
        for use in reason.uses:
            assert use.attribute in found.steps[step_id].outputs
            assert use.attribute in found.steps[use.consumer].inputs
    provided = {name for one in found.steps.values() for name in one.outputs}
    for one in found.steps.values():
        needed = {name for name, config in one.inputs.items() if isinstance(config, m.RequiredConfig)}
        assert needed <= provided | init.keys() | set(found.required)


@settings(max_examples=120, **CALM)
@given(catalogs(), GIVEN, st.data())
def test_what_a_plan_misses_makes_it_whole_when_it_is_given(
    steps: list[m.Step], init: dict[str, list[object]], data: st.DataObject
) -> None:
    goals = data.draw(st.lists(st.sampled_from([one.id for one in steps]), min_size=1, max_size=3, unique=True))
    missing = made(steps, goals, init, "strict").required
    assert not made(steps, goals, {**init, **{name: [1] for name in missing}}, "strict").required
