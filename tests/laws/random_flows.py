"""Random flows: steps over a few attributes, and activities whose results depend on nothing but their arguments."""

from collections import Counter
from typing import Any

import msgspec
from hypothesis import strategies as st

from resurgam.core.errors import NonRetryable
from resurgam.flows import model as m
from support.flow_simulation import Function

COLLECTS: list[m.Collect] = ["first", "first", "first", "last", "some", "all", "none"]
FATES = ["gives", "gives", "gives", "gives", "list", "flaky", "empty", "fails", "fails at 2", "fails at 2", "hopeless"]


class RandomFlow(msgspec.Struct):
    """A catalog, goals, and what each activity does: it gives its outputs, leaves some out, or fails."""

    steps: list[m.Step]
    goals: list[str]
    init: dict[str, list[object]]
    fates: dict[str, str]

    @property
    def functions(self) -> dict[str, Function]:
        """The activities. One that is *flaky* fails the first time for the same arguments."""
        return {name: _function(name, fate) for name, fate in self.fates.items()} | {"undo": lambda _: None}


def _function(name: str, fate: str) -> Function:
    calls: Counter[bytes] = Counter()

    def function(arguments: dict[str, Any]) -> object:
        same = msgspec.json.encode(arguments, order="deterministic")
        calls[same] += 1
        if fate == "fails" or (fate == "fails at 2" and 2 in arguments.values()):
            raise NonRetryable("no")
        if fate == "hopeless" or (fate == "flaky" and calls[same] == 1):
            raise ConnectionError("not now")
        if fate == "empty":
            return {}
        return {f"a{name[1:]}": [1, 2, 3] if fate == "list" else 2, f"b{name[1:]}": sorted(arguments)}

    return function


@st.composite
def flows(draw: Any, *, ordered: bool = False) -> RandomFlow:
    """Draw a flow. If its outcome may depend on the order of results, it is not *ordered*: several steps then provide
    one attribute, and optional inputs have short deadlines."""
    count = draw(st.integers(2, 7))
    steps = [_step(draw, number, ordered=ordered) for number in range(count)]
    return RandomFlow(
        steps=steps,
        goals=draw(st.lists(st.sampled_from([one.id for one in steps[-3:]]), min_size=1, max_size=3, unique=True)),
        init={"given": [[1, 2, 3]], "one": [2]},
        fates={one.id: draw(st.sampled_from(FATES)) for one in steps},
    )


def _step(draw: Any, number: int, *, ordered: bool) -> m.Step:
    attributes: dict[str, m.Attribute] = {f"a{number}": m.Output(), f"b{number}": m.Output()}
    if not ordered and number and draw(st.booleans()):
        attributes[f"c{draw(st.integers(0, 1))}"] = m.Output(
            output=m.OutputConfig(mapping=m.Mapping(name=f"a{number}"))
        )
    known = [*(f"{letter}{one}" for one in range(number) for letter in "ab"), "one", "given"]
    if not ordered and number > 1:
        known += [name for name in ("c0", "c1") if name not in attributes]
    for name in draw(st.lists(st.sampled_from(known[-8:]), max_size=3, unique=True)):
        if name not in ("c0", "c1") or number == 6:  # only the last step takes them, so that there is no cycle
            attributes[name] = _input(draw, name, ordered=ordered)
    return m.Step(
        id=f"s{number}",
        name=f"s{number}",
        type="python",
        attributes=attributes,
        python=m.PythonConfig(activity=f"s{number}", compensate=draw(st.sampled_from(["", "undo"]))),
        predicate=_expression(draw(st.sampled_from([*["true"] * 8, "false", "!"]))),
        work_config=m.WorkConfig(parallelism=draw(st.integers(1, 3)), max_retries=draw(st.integers(1, 2))),
    )


def _input(draw: Any, name: str, *, ordered: bool) -> m.Attribute:
    collect = draw(st.sampled_from(COLLECTS))
    each = collect == "first" and name[0] in "gb" and draw(st.booleans())
    if draw(st.booleans()):
        match = draw(st.sampled_from([None, None, None, None, "2", "[1, 2, 3]", "!"]))
        config = m.RequiredConfig(collect=collect, for_each=each, match=None if match is None else _expression(match))
        return m.Required(required=config)
    deadline = 10**9 if ordered else draw(st.sampled_from([0, 50, 1000]))
    return m.Optional(optional=m.OptionalConfig(collect=collect, for_each=each, default="[7]", deadline=deadline))


def _expression(script: str) -> m.Expression:
    return m.Expression(language="cel", script=script)
