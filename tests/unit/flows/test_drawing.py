"""A drawing of a plan: well-formed, the same each time, and nothing overlaps or runs backwards."""

import random
import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

import msgspec
import pytest

from resurgam.flows import model as m
from resurgam.flows.catalog import Catalog
from resurgam.flows.drawing import draw
from resurgam.flows.layout import GAP, Box, Link, arrange
from resurgam.flows.planner import Plan, plan
from support.flow_runs import Equality
from support.flow_steps import step

SVG = "{http://www.w3.org/2000/svg}"


def planned(steps: Sequence[m.Step], goals: Sequence[str], **given: object) -> Plan:
    return plan(Catalog(steps), goals, {name: [value] for name, value in given.items()}, "preview", Equality().matches)


CHAIN = [step("A: k > a"), step("B: a > b"), step("C: a b > c")]


def texts(drawing: str) -> list[str]:
    return [one.text or "" for one in ET.fromstring(drawing).iter(f"{SVG}text")]


def rectangles(drawing: str) -> Iterator[tuple[str, float, float, float, float]]:
    for one in ET.fromstring(drawing).iter(f"{SVG}rect"):
        if one.get("class") != "paper":
            x, y, width, height = (float(one.get(name, "")) for name in ("x", "y", "width", "height"))
            yield one.get("class", ""), x, y, width, height


def test_every_step_is_a_card_with_its_inputs_and_outputs():
    assert texts(draw(planned(CHAIN, ["C"], k=1))) == [
        "Plan for C",
        *("k", "given"),
        *("A", "k", "a"),
        *("B", "a", "b"),
        *("C", "a", "b", "c"),
    ]


def test_goals_given_and_missing_attributes_look_different():
    assert [kind for kind, *_ in rectangles(draw(planned(CHAIN, ["C"], k=1)))] == ["given", "card", "card", "goal"]
    assert [kind for kind, *_ in rectangles(draw(planned(CHAIN, ["C"])))] == ["missing", "card", "card", "goal"]


def test_an_attribute_that_is_given_and_provided_is_drawn_as_both():
    made = planned([step("P: > d"), step("G: d/last > r")], ["G"], d=1)
    assert [kind for kind, *_ in rectangles(draw(made, ["d"]))] == ["given", "goal", "card"]
    assert draw(made, ["d"]).count('class="link"') == 2


def test_what_a_step_does_with_an_input_is_written_at_it():
    each = m.Required(required=m.RequiredConfig(for_each=True, collect="all"))
    plain = step("G: ?o t=postal > r")
    goal = msgspec.structs.replace(plain, attributes={**plain.attributes, "d": each})
    drawing = draw(planned([goal, step("P: > d t o")], ["G"]))
    assert {"d (all, each)", "o?", "t (match)"} <= set(texts(drawing))
    assert drawing.count("link optional") == 1


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"predicate": m.Expression(language="cel", script="total > 1")}, "if total > 1"),
        ({"type": "flow", "flow": m.FlowConfig(goals=("A",)), "python": None}, "flow: A"),
        ({"type": "workflow", "workflow": m.WorkflowConfig(workflow="w"), "python": None}, "workflow: w"),
        ({"type": "script", "script": m.Expression(language="lua", script="return 1"), "python": None}, "script"),
        ({"type": "async", "http": m.HttpConfig(endpoint="http://x/pay"), "python": None}, "async POST http://x/pay"),
        ({"name": "Do it"}, "Do it"),
    ],
)
def test_a_card_says_what_kind_of_step_it_is(fields, line):
    goal = msgspec.structs.replace(step("G: > r"), **fields)
    assert line in texts(draw(planned([goal, step("A: > a")], ["G"])))


def test_steps_that_are_left_out_are_noted_with_the_reason():
    drawing = draw(planned([step("P: > d"), step("G: d > r")], ["G"], d=1))
    assert "left out: P (everything that it provides is given: 'd')" in texts(drawing)


def test_hostile_texts_are_escaped():
    hostile = "</text><script>alert('&')</script>\x00\x1b\ud800\"\u202e"
    goal = m.Step(
        id="g",
        name=hostile,
        type="python",
        python=m.PythonConfig(activity="g"),
        attributes={hostile: m.Required(), f"{hostile}2": m.Output()},
        predicate=m.Expression(language="cel", script=hostile),
    )
    drawing = draw(planned([goal], ["g"]))
    root = ET.fromstring(drawing.encode())
    assert {one.tag.removeprefix(SVG) for one in root.iter()} == {
        *("svg", "style", "defs", "marker", "path", "rect", "text", "g", "title")
    }
    assert "alert('&')" in "".join(root.itertext())
    assert not re.search("[\x00-\x09\x0b-\x1f\ud800-\udfff\u202e]", drawing)


def test_long_texts_are_cut_and_whole_in_the_tooltip():
    name = "a very long name " * 20
    drawing = draw(planned([msgspec.structs.replace(step("G: > r"), name=name)], ["G"]))
    assert max(map(len, texts(drawing))) < 40
    assert name in "".join(ET.fromstring(drawing).itertext())


def test_a_card_is_as_wide_as_its_text():
    widths = []
    for name in ("a" * 10, "漢" * 10):
        drawing = draw(planned([msgspec.structs.replace(step("G: > r"), name=name)], ["G"]))
        widths += [width for _, _, _, width, _ in rectangles(drawing)]
    assert widths[1] > widths[0] + 70


def test_an_empty_plan_is_drawn():
    drawing = draw(planned([step("A: > a")], ["A"], a=1))
    assert texts(drawing) == ["Plan for A", "left out: A (everything that it provides is given: 'a')"]


def test_steps_in_a_circle_are_drawn():
    circle = Plan(goals=("A",), steps={one.id: one for one in (step("A: b > a"), step("B: a > b"))})
    made = msgspec.structs.replace(circle, attributes=planned([step("A: b > a"), step("B: a > b")], ["A"]).attributes)
    drawing = draw(made)
    assert len(list(rectangles(drawing))) == 2
    assert drawing.count('class="link"') == 1


def random_steps(seed: int, count: int = 30) -> list[m.Step]:
    chance = random.Random(seed)
    made = []
    for number in range(count):
        inputs = {f"a{chance.randrange(number)}" for _ in range(chance.randrange(3))} if number else set()
        made.append(step(f"s{number}: {' '.join(sorted(inputs))} > a{number}"))
    return [*made, step(f"goal: {' '.join(f'a{number}' for number in range(count))} > r")]


@pytest.mark.parametrize("seed", range(20))
def test_no_card_overlaps_another_and_every_link_runs_to_the_right(seed):
    drawing = draw(planned(random_steps(seed), ["goal"]))
    placed = list(rectangles(drawing))
    for number, (_, x, y, width, height) in enumerate(placed):
        for _, other_x, other_y, other_width, other_height in placed[:number]:
            apart = x + width <= other_x or other_x + other_width <= x
            assert apart or y + height <= other_y or other_y + other_height <= y
    for path in re.findall(r'class="link" d="(.*?)"', drawing):
        numbers = [float(one) for one in re.findall(r"-?[\d.]+", path)]
        assert numbers[::2] == sorted(numbers[::2])


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_definitions_has_no_influence_on_the_drawing(seed):
    steps = random_steps(seed)
    mixed = random.Random(seed).sample(steps, len(steps))
    made = planned(mixed, ["goal"])
    shuffled = msgspec.structs.replace(
        made, steps=dict(random.Random(seed).sample([*made.steps.items()], len(made.steps)))
    )
    assert draw(planned(steps, ["goal"])) == draw(shuffled)


def test_boxes_are_ordered_by_their_neighbours():
    """Two chains that would cross in the given order do not."""
    boxes = [Box(0, 10), Box(0, 10), Box(1, 10), Box(1, 10)]
    layout = arrange(boxes, [Link(0, 5, 3, 5), Link(1, 5, 2, 5)])
    assert (layout.tops[0] < layout.tops[1]) == (layout.tops[3] < layout.tops[2])


def test_boxes_follow_the_points_of_the_box_on_their_left():
    layout = arrange([Box(0, 40), Box(1, 10), Box(1, 10)], [Link(0, 30, 1, 5), Link(0, 10, 2, 5)])
    assert layout.tops[2] < layout.tops[1]


def test_boxes_follow_the_points_of_the_box_on_their_right():
    layout = arrange([Box(0, 10), Box(0, 10), Box(1, 40)], [Link(0, 5, 2, 30), Link(1, 5, 2, 10)])
    assert layout.tops[1] < layout.tops[0]


@pytest.mark.parametrize("sources", [True, False])
def test_the_middle_one_of_three_is_level_with_their_neighbour(sources):
    boxes = [*[Box(0 if sources else 1, 20)] * 3, Box(1 if sources else 0, 20)]
    links = [Link(one, 10, 3, 10) if sources else Link(3, 10, one, 10) for one in range(3)]
    layout = arrange(boxes, links)
    assert layout.tops[3] == pytest.approx(sorted(layout.tops[:3])[1])


def test_a_box_is_level_with_its_only_neighbour():
    layout = arrange([Box(0, 100), Box(1, 20)], [Link(0, 50, 1, 10)])
    assert layout.tops == [0, 40]


def test_a_link_passes_beside_the_boxes_of_a_level_between():
    layout = arrange([Box(0, 20), Box(1, 60), Box(2, 20)], [Link(0, 5, 1, 30), Link(1, 30, 2, 5), Link(0, 15, 2, 15)])
    (passage,) = layout.passages[2]
    assert passage <= layout.tops[1] - GAP / 2 or passage >= layout.tops[1] + 60 + GAP / 2


def test_links_of_one_origin_share_their_passage():
    boxes = [Box(0, 20), Box(1, 20), Box(2, 20), Box(2, 20)]
    layout = arrange(boxes, [Link(0, 5, 1, 5), Link(0, 15, 2, 5), Link(0, 15, 3, 5)])
    assert layout.passages[1] == layout.passages[2]
