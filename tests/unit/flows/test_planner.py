"""Plans, by vectors; and that a plan depends on nothing but the sets that it is made from."""

import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resurgam.core.errors import DefinitionError, NotFound
from resurgam.flows import model as m
from resurgam.flows.catalog import Catalog
from resurgam.flows.planner import Mode, Plan, Reason, Use, plan
from support.flow_runs import Equality
from support.flow_steps import step


def equals(expression: m.Expression, value: object) -> bool:
    return value == expression.script


def planned(steps: str, goals: str, init: dict[str, list[object]], mode: Mode = "strict") -> Plan:
    return plan(Catalog(step(one.strip()) for one in steps.split(";")), goals.split(), init, mode, equals)


CHAIN = "A: > a; B: a > b; C: b > c; X: > x"
TWO = "P1: k > d; P2: > d; G: d > r"
ROUTE = "R: > t; G: t=postal c > r"


class Vector(msgspec.Struct, frozen=True):
    steps: str
    goals: str
    init: dict[str, list[object]]
    included: str
    required: str = ""
    missing: dict[str, str] = {}
    satisfied: dict[str, str] = {}
    blocked: dict[str, str] = {}
    mode: Mode = "strict"


VECTORS = {
    "a chain is followed back to its beginning": Vector(CHAIN, "C", {}, "A B C"),
    "a given value cuts the chain": Vector(CHAIN, "C", {"b": [1]}, "C", satisfied={"B": "b"}),
    "a provider that cannot be had is named": Vector("B: a > b; C: b > c", "C", {}, "C", "b", missing={"B": "a"}),
    "a preview names what is missing at the root": Vector("B: a > b; C: b > c", "C", {}, "B C", "a", mode="preview"),
    "a goal that is given needs no step": Vector("A: > a", "A", {"a": [1]}, "", satisfied={"A": "a"}),
    "no values are not given": Vector("B: a > b", "B", {"a": []}, "B", "a"),
    "of two providers the possible one is taken": Vector(TWO, "G", {}, "G P2", missing={"P1": "k"}),
    "both providers are taken": Vector(TWO, "G", {"k": [1]}, "G P1 P2"),
    "none blocks on a given value": Vector("P: > d; G: d/none > r", "G", {"d": [1]}, "", blocked={"G": "d"}),
    "none needs no provider": Vector("G: d/none > r", "G", {}, "G"),
    "none does not keep a provider from being possible": Vector("F: d/none > e; G: e > r", "G", {}, "F G"),
    "last waits for the provider too": Vector("P: > d; G: d/last > r", "G", {"d": [1]}, "G P"),
    "some waits for the provider too": Vector("P: > d; G: d/some > r", "G", {"d": [1]}, "G P"),
    "all waits for the provider too": Vector("P: > d; G: d/all > r", "G", {"d": [1]}, "G P"),
    "all takes every provider or none": Vector(
        "P1: k > d; P2: > d; G: d/all > r", "G", {}, "G", "d", missing={"P1": "k"}
    ),
    "an optional input has its provider planned": Vector("P: > o; G: ?o > r", "G", {}, "G P"),
    "an impossible optional provider is left out": Vector("P: k > o; G: ?o > r", "G", {}, "G", missing={"P": "k"}),
    "an optional input needs no provider": Vector("G: ?o > r", "G", {}, "G"),
    "an undecided match demands no other input": Vector(ROUTE, "G", {}, "G R"),
    "a provider may still match": Vector(ROUTE, "G", {"t": ["email"]}, "G R"),
    "a closed match demands nothing": Vector("G: t=postal c > r", "G", {"t": ["email"]}, "G"),
    "a match that holds demands the rest": Vector("G: t=postal c > r", "G", {"t": ["postal"]}, "G", "c"),
    "a given goal beside another": Vector("A: > a; B: a > b", "A B", {"a": [1]}, "B", satisfied={"A": "a"}),
    "one consumer's given value leaves the other its provider": Vector(
        "P: > d; G1: d; G2: d/last", "G1 G2", {"d": [1]}, "G1 G2 P"
    ),
    "a given goal does not demand its own inputs": Vector(
        "X: > x; A: x > a", "A", {"a": [1]}, "", satisfied={"A": "a"}
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_vector(name: str) -> None:
    vector = VECTORS[name]
    made = planned(vector.steps, vector.goals, vector.init, vector.mode)
    assert sorted(made.steps) == vector.included.split()
    assert list(made.required) == vector.required.split()
    for kind in ("missing", "satisfied", "blocked"):
        expected = {step_id: tuple(names.split()) for step_id, names in getattr(vector, kind).items()}
        assert getattr(made.excluded, kind) == expected, kind


def test_an_unknown_goal_is_named() -> None:
    with pytest.raises(NotFound, match="there is no step 'Z'"):
        planned("A: > a", "A Z", {})


def test_no_goal_is_an_error() -> None:
    with pytest.raises(DefinitionError, match="needs a goal"):
        planned("A: > a", "", {})


def test_a_match_that_cannot_be_evaluated_is_left_to_the_flow() -> None:
    """The step that has it fails when it runs. Until then it decides nothing: what could provide another value is planned."""
    steps = [step("A: x=! y > z"), step("B: > x"), step("C: > y")]
    made = plan(Catalog(steps), ["A"], {"x": [1]}, "strict", Equality().matches)
    assert (sorted(made.steps), made.required) == (["A", "B", "C"], ())


def test_reasons_name_goals_and_uses() -> None:
    made = planned(CHAIN, "C B", {})
    assert made.reasons == {
        "A": Reason(uses=(Use("a", "B"),)),
        "B": Reason(goal=True, uses=(Use("b", "C"),)),
        "C": Reason(goal=True),
    }


def test_edges_name_what_is_in_the_plan() -> None:
    edges = planned(CHAIN, "C", {"b": [1]}).attributes
    assert {name: (edge.providers, edge.consumers) for name, edge in edges.items()} == {
        "b": ((), ("C",)),
        "c": (("C",), ()),
    }


def flow_step(step_id: str, goals: str, inputs: str = "", outputs: str = "") -> m.Step:
    return m.Step(
        id=step_id,
        name=step_id,
        type="flow",
        flow=m.FlowConfig(goals=tuple(goals.split())),
        attributes=step(f"{step_id}: {inputs} > {outputs}").attributes,
    )


def snapshot(made: Plan, step_id: str) -> list[str]:
    return [one.id for one in made.children[step_id]]


def test_a_plan_holds_the_steps_that_its_flow_steps_can_lead_to() -> None:
    catalog = Catalog([step("A: k > a"), step("G: a m=postal > g"), step("X: > x"), flow_step("F", "G", "k m", "g")])
    made = plan(catalog, ["F"], {"k": [1], "m": [2]}, "strict", equals)
    assert snapshot(made, "F") == ["A", "G"]
    assert made.children["F"][0] == step("A: k > a")


def test_it_holds_those_of_flow_steps_within_flow_steps_too() -> None:
    catalog = Catalog([step("A: > a"), flow_step("I", "A", "", "i"), step("G: i > g"), flow_step("F", "G", "", "g")])
    assert snapshot(plan(catalog, ["F"], {}, "strict", equals), "F") == ["A", "G", "I"]


def test_a_provider_that_a_flow_step_may_need_is_in_the_snapshot_whatever_the_match_will_say() -> None:
    catalog = Catalog([step("R: > m"), step("G: m=postal > g"), flow_step("F", "G", "m", "g")])
    assert snapshot(plan(catalog, ["F"], {"m": ["email"]}, "strict", equals), "F") == ["G", "R"]


def test_a_flow_step_that_contains_itself_is_refused() -> None:
    catalog = Catalog([flow_step("F", "G", "", "a"), step("G: a > g")])
    with pytest.raises(DefinitionError, match="flow step 'F' contains itself: F -> F"):
        plan(catalog, ["G"], {}, "strict", equals)


def test_a_flow_step_that_contains_itself_by_way_of_others_is_refused() -> None:
    catalog = Catalog([flow_step("F", "G", "", "a"), flow_step("I", "F", "", "b"), step("G: b > g")])
    with pytest.raises(DefinitionError, match="flow step 'F' contains itself: F -> I -> F"):
        plan(catalog, ["F"], {}, "strict", equals)


def test_a_plan_within_a_flow_step_does_not_contain_that_step() -> None:
    """Whatever the values are that it is planned with when it starts."""
    catalog = Catalog([flow_step("F", "G", "", "a"), step("G: a > g")])
    with pytest.raises(DefinitionError, match="flow step 'F' contains itself: F -> F"):
        plan(catalog, ["G"], {}, "strict", equals, ("F",))
    assert plan(catalog, ["G"], {"a": [1]}, "strict", equals, ("F",)).within == ("F",)


def test_an_unknown_goal_of_a_flow_step_is_an_error_only_if_the_plan_needs_it() -> None:
    catalog = Catalog([flow_step("F", "nowhere", "", "a"), step("G: a > g")])
    with pytest.raises(NotFound, match="'nowhere'"):
        plan(catalog, ["G"], {}, "strict", equals)
    assert list(plan(catalog, ["G"], {"a": [1]}, "strict", equals).steps) == ["G"]


NAMES = "abcdefg"


@st.composite
def catalogs(draw: st.DrawFn) -> list[m.Step]:
    """Draw steps without cycles: each takes attributes that come before those it provides."""
    steps = []
    for number in range(draw(st.integers(1, 8))):
        cut = draw(st.integers(1, len(NAMES) - 1))
        words = [
            f"{draw(st.sampled_from(['', '?']))}{name}{draw(st.sampled_from(['', '/last', '/some', '/all', '/none']))}"
            f"{draw(st.sampled_from(['', '', '=1']))}"
            for name in draw(st.sets(st.sampled_from(NAMES[:cut]), max_size=3))
        ]
        words = [word.partition("=")[0] if word.startswith("?") else word for word in words]
        steps.append(
            step(f"S{number}: {' '.join(words)} > {' '.join(draw(st.sets(st.sampled_from(NAMES[cut:]), max_size=2)))}")
        )
    return steps


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(catalogs(), st.data())
def test_a_plan_is_a_function_of_sets(steps: list[m.Step], data: st.DataObject) -> None:
    """Neither the order of goals, steps, attributes nor of given values changes it."""
    goals = data.draw(st.lists(st.sampled_from([one.id for one in steps]), min_size=1, max_size=3))
    init = data.draw(
        st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(["1", "2"]), max_size=2), max_size=4)
    )
    mode: Mode = data.draw(st.sampled_from(["strict", "preview"]))
    made = plan(Catalog(steps), goals, init, mode, equals)
    chance = random.Random(data.draw(st.integers()))

    def shuffled(mapping: dict[str, object]) -> dict[str, object]:
        return dict(chance.sample(list(mapping.items()), len(mapping)))

    others = [
        m.Step(**{**_fields(one), "attributes": shuffled(dict(one.attributes))})
        for one in chance.sample(steps, len(steps))
    ]  # type: ignore[arg-type]
    again = plan(
        Catalog(others),
        chance.sample(goals, len(goals)),
        shuffled(dict(init)),
        mode,
        equals,  # type: ignore[arg-type]
    )
    assert again == made
    assert set(made.required).isdisjoint(name for name, values in init.items() if values)


def _fields(one: m.Step) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__struct_fields__}
