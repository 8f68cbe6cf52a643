"""The catalog: what fits together, and that it depends on nothing but the steps that it has."""

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resurgam.core.errors import DefinitionError, NotFound
from resurgam.flows import model as m
from resurgam.flows.catalog import Catalog
from resurgam.flows.planner import plan
from support.flow_steps import step


def typed(step_id: str, name: str, value_type: m.ValueType, *, output: bool = False) -> m.Step:
    attribute: m.Attribute = m.Output(type=value_type) if output else m.Required(type=value_type)
    return m.Step(
        id=step_id,
        name=step_id,
        type="python",
        python=m.PythonConfig(activity=step_id),
        attributes={name: attribute},
    )


def flow(step_id: str, goals: str) -> m.Step:
    return m.Step(id=step_id, name=step_id, type="flow", flow=m.FlowConfig(goals=tuple(goals.split())))


def built(*steps: m.Step) -> Catalog:
    catalog = Catalog()
    for one in steps:
        catalog = catalog.put(one)
    return catalog


def test_a_change_leaves_the_catalog_before_as_it_was() -> None:
    before = built(step("A: > a"))
    after = before.put(step("B: a > b"))
    assert (list(before.steps), list(after.steps)) == (["A"], ["A", "B"])
    assert before.consumers("a") == frozenset()
    assert list(after.remove("A").steps) == ["B"]
    assert "A" in after
    assert (len(before), len(after)) == (1, 2)


def test_steps_are_in_the_order_of_their_ids() -> None:
    assert list(built(step("C: > c"), step("A: > a"), step("B: > b")).steps) == ["A", "B", "C"]


def test_an_update_leaves_nothing_of_the_definition_before() -> None:
    catalog = built(step("P: x > d"), step("G: d > r")).put(step("P: y > e"))
    assert catalog.providers("d") == catalog.consumers("x") == frozenset()
    assert catalog.providers("e") == catalog.consumers("y") == {"P"}
    made = plan(catalog, ["G"], {}, "strict", lambda *_: True)
    assert (sorted(made.steps), made.required) == (["G"], ("d",))


def test_an_unknown_step_cannot_be_removed() -> None:
    with pytest.raises(NotFound, match="there is no step 'A'"):
        Catalog().remove("A")


@pytest.mark.parametrize("other", ["number", "boolean", "null", ""])
@pytest.mark.parametrize("output", [False, True])
def test_an_attribute_has_one_type(other: m.ValueType, *, output: bool) -> None:
    catalog = built(typed("A", "amount", "string", output=True), typed("C", "amount", "any"))
    with pytest.raises(DefinitionError, match=f"'amount' has type '{other}' here and 'string' in step 'A'"):
        catalog.put(typed("B", "amount", other, output=output))


def test_any_fits_every_type() -> None:
    """A parameter without annotation has it, and one that runs for each element."""
    assert len(built(typed("A", "amount", "string", output=True), typed("B", "amount", "any"))) == 2
    assert len(built(typed("B", "amount", "any"), typed("A", "amount", "string", output=True))) == 2


def test_the_type_of_an_attribute_may_change_with_its_only_step() -> None:
    assert len(built(typed("A", "amount", "string")).put(typed("A", "amount", "number"))) == 1


@pytest.mark.parametrize(
    ("steps", "last", "path"),
    [
        (["B: b > a"], "A: a > b", "A -> B -> A"),
        (["B: b > c", "C: ?c > a"], "A: a > b", "A -> B -> C -> A"),
        (["B: b/none > a"], "A: a > b", "A -> B -> A"),
    ],
)
def test_a_step_that_needs_its_own_output_is_refused(steps: list[str], last: str, path: str) -> None:
    catalog = built(*(step(one) for one in steps))
    with pytest.raises(DefinitionError, match=f"step 'A' needs its own output: {path}"):
        catalog.put(step(last))


@pytest.mark.parametrize(
    ("steps", "last", "path"),
    [
        ([], flow("F", "F"), "F -> F"),
        ([flow("G", "F")], flow("F", "G"), "F -> G -> F"),
        ([flow("G", "H"), flow("H", "A F")], flow("F", "G"), "F -> G -> H -> F"),
    ],
)
def test_a_flow_step_that_is_its_own_goal_is_refused(steps: list[m.Step], last: m.Step, path: str) -> None:
    with pytest.raises(DefinitionError, match=f"step 'F' is a goal of its own flow: {path}"):
        built(*steps).put(last)


def test_goals_of_a_flow_step_may_be_unknown_as_yet() -> None:
    assert list(built(flow("F", "later")).steps) == ["F"]


def test_a_refused_step_leaves_the_catalog_as_it_was() -> None:
    catalog = built(step("B: b > a"))
    with pytest.raises(DefinitionError):
        catalog.put(step("A: a > b"))
    assert list(catalog.steps) == ["B"]
    assert catalog.providers("b") == frozenset()


NAMES = "abcdef"


@st.composite
def definitions(draw: st.DrawFn) -> m.Step:
    """Draw one of a few steps, in one of many definitions; some make cycles."""
    words = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3))
    kinds = [draw(st.sampled_from(["{}", "?{}", "{}/last", "{}/none", "{}/all"])).format(word) for word in words]
    outputs = draw(st.sets(st.sampled_from(sorted(set(NAMES) - set(words))), max_size=2))
    return step(f"{draw(st.sampled_from('ABCDE'))}: {' '.join(kinds)} > {' '.join(sorted(outputs))}")


CHANGES = st.lists(st.one_of(definitions(), st.sampled_from("ABCDE")), max_size=12)


def changed(changes: list[m.Step | str]) -> Catalog:
    """Put steps, and remove those of which only the id is drawn, as far as that is allowed."""
    catalog = Catalog()
    for change in changes:
        with contextlib.suppress(NotFound, DefinitionError):
            catalog = catalog.remove(change) if isinstance(change, str) else catalog.put(change)
    return catalog


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(CHANGES)
def test_a_changed_catalog_is_the_one_built_anew(changes: list[m.Step | str]) -> None:
    """Whatever was updated and removed before: the same providers, consumers and plans."""
    catalog = changed(changes)
    anew = Catalog(catalog.steps.values())
    assert catalog.steps == anew.steps
    for name in NAMES:
        assert catalog.providers(name) == anew.providers(name)
        assert catalog.consumers(name) == anew.consumers(name)
    for goal in catalog.steps:
        assert catalog.profile(goal) == anew.profile(goal)
        given = {"a": [1]}
        assert plan(catalog, [goal], given, "preview", _never) == plan(anew, [goal], given, "preview", _never)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(CHANGES)
def test_no_order_of_changes_leads_to_a_cycle(changes: list[m.Step | str]) -> None:
    catalog = changed(changes)
    remaining = dict(catalog.steps)
    while free := [one for one, taken in remaining.items() if not _provided_by(taken, remaining)]:
        for step_id in free:
            del remaining[step_id]
    assert not remaining


def _provided_by(taken: m.Step, others: dict[str, m.Step]) -> set[str]:
    return {other.id for other in others.values() if other.outputs.keys() & taken.inputs.keys()}


def _never(expression: m.Expression, value: object) -> bool:
    return False
