"""``@step``: what a function needs and provides, by its signature."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from resurgam.core.errors import DefinitionError
from resurgam.core.retry import RetryPolicy
from resurgam.flows import model as m
from resurgam.flows.expressions import Expressions
from resurgam.flows.steps import Const, Input, Meta, StepDecorator, step_of, type_name
from resurgam.flows.validate import validate
from resurgam.runtime.registry import Registry


class Priced(msgspec.Struct):
    total: float
    currency: str = "EUR"


@dataclass
class Booked:
    room: int
    night: str


class Sent(TypedDict):
    tracking: str


def fresh() -> StepDecorator:
    return StepDecorator(Registry())


def defined(function: Callable[..., Any], **options: Any) -> m.Step:
    """Return the step that a function is, after a check that it is a valid one."""
    made = step_of(fresh()(**options)(function))
    validate(made, Expressions())
    return made


def test_parameters_are_inputs_and_the_result_is_named_after_the_step() -> None:
    def price(amount: int, name: str, vip: bool = False) -> float:
        """Price an order.

        With more to say.
        """
        return 1.0

    made = defined(price)
    assert (made.id, made.name, made.type) == ("price", "Price an order.", "python")
    assert made.attributes == {
        "amount": m.Required(type="number"),
        "name": m.Required(type="string"),
        "vip": m.Optional(type="boolean", optional=m.OptionalConfig(default="false")),
        "price": m.Output(type="number"),
    }
    assert made.python == m.PythonConfig(activity="price", parameters=("amount", "name", "vip"), fields=False)


@pytest.mark.parametrize(
    ("result", "outputs"),
    [
        (Priced, {"total": "number", "currency": "string"}),
        (Booked, {"room": "number", "night": "string"}),
        (Sent, {"tracking": "string"}),
        (Annotated[Sent, "a note"], {"tracking": "string"}),
        (dict[str, int], {"quote": "object"}),
        (list[int], {"quote": "array"}),
        (None, {"quote": "null"}),
        (int | None, {"quote": "any"}),
        (Any, {"quote": "any"}),
    ],
)
def test_fields_of_a_result_are_outputs(result: Any, outputs: dict[str, str]) -> None:
    def quote() -> Any: ...

    quote.__annotations__["return"] = result
    made = defined(quote)
    assert {name: one.type for name, one in made.attributes.items()} == outputs
    assert made.python is not None
    assert made.python.fields == ("quote" not in outputs)


def test_a_function_without_annotations_is_a_step() -> None:
    def guess(one, two=3):  # type: ignore[no-untyped-def]
        return one

    made = defined(guess)
    assert {name: one.type for name, one in made.attributes.items()} == {"one": "any", "two": "any", "guess": "any"}


def test_notes_say_how_inputs_are_taken() -> None:
    def ship(
        items: Annotated[str, Input(for_each=True)],
        offers: Annotated[list[int], Input(collect="some", match="value > 1")],
        route: Annotated[str, Input(match="value == 'post'", mapping="value + '!'")],
        limit: Annotated[int, Const(7)],
        flow: Annotated[str, Meta("flow_id")],
        hint: Annotated[str, Input(deadline=2.5)] = "none",
    ) -> Sent: ...  # type: ignore[empty-body]

    made = defined(ship, parallelism=4, predicate="limit > 1")
    assert made.attributes["items"] == m.Required(type="any", required=m.RequiredConfig(for_each=True))
    assert made.attributes["offers"] == m.Required(
        type="any", required=m.RequiredConfig(collect="some", match=m.Expression(language="cel", script="value > 1"))
    )
    route = made.attributes["route"]
    assert isinstance(route, m.Required)
    assert route.required.mapping == m.Mapping(script=m.Expression(language="cel", script="value + '!'"))
    assert made.attributes["limit"] == m.Const(const=m.ConstConfig(value="7"), type="number")
    assert made.attributes["flow"] == m.Meta(meta=m.MetaConfig(key="flow_id"), type="string")
    assert made.attributes["hint"] == m.Optional(
        type="string", optional=m.OptionalConfig(default='"none"', deadline=2500)
    )
    assert made.work_config.parallelism == 4
    assert made.predicate == m.Expression(language="cel", script="limit > 1")


def test_options_become_the_definition() -> None:
    def undo(done: object) -> None: ...

    def charge(cents: int) -> str: ...  # type: ignore[empty-body]

    made = defined(charge, name="take-money", queue="bank", labels={"team": "a"}, compensate=undo)
    assert (made.id, dict(made.labels)) == ("take-money", {"team": "a"})
    assert made.python is not None
    assert (made.python.activity, made.python.queue, made.python.compensate) == (
        "take-money",
        "bank",
        "take-money.compensate",
    )
    assert list(made.outputs) == ["take-money"]


@pytest.mark.parametrize(
    ("memoize", "memoizable", "ttl"), [(None, False, 0), (False, False, 0), (True, True, 0), (60, True, 60_000)]
)
def test_a_step_is_memoized_for_a_while_or_for_good(memoize: Any, ttl: int, *, memoizable: bool) -> None:
    def tax(country: str) -> float: ...  # type: ignore[empty-body]

    made = defined(tax, memoize=memoize)
    assert (made.memoizable, made.memo_ttl) == (memoizable, ttl)


def test_a_step_stays_a_function_and_is_an_activity() -> None:
    registry = Registry()
    steps = StepDecorator(registry)

    @steps
    def double(number: int) -> int:
        return 2 * number

    @steps(retry=RetryPolicy(max_attempts=7), compensate=lambda done: None)
    async def half(number: int) -> float:
        return number / 2

    assert double(4) == 8
    assert registry.activities.find("double").function is double
    assert registry.activities.find("half").rule.max_attempts == 7
    assert "half.compensate" in registry.activities
    assert set(steps.defined) == {"double", "half"}


def positional(*values: int) -> None: ...


def keywords(**values: int) -> None: ...


def late(value: Annotated[int, Input(deadline=1)]) -> None: ...


def choosy(value: Annotated[int, Input(match="value > 1")] = 1) -> None: ...


def circular(total: float) -> Priced: ...  # type: ignore[empty-body]


def own(own: int) -> int: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (positional, {}, r"parameter 'values': the inputs of a step have names, so no \*args"),
        (keywords, {}, "parameter 'values': the inputs of a step have names"),
        (late, {}, "parameter 'value': a deadline needs a default"),
        (choosy, {}, "parameter 'value': match is for required inputs"),
        (circular, {}, "'total' is an input and an output"),
        (own, {}, "'own' is an input and an output"),
        (late, {"name": "Not An Id"}, "use 'not-an-id'"),
    ],
)
def test_a_function_that_cannot_be_a_step_is_refused(
    function: Callable[..., Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DefinitionError, match=message) as raised:
        fresh()(**options)(function)
    assert "test_steps.py" in str(raised.value)


def test_what_is_no_step_is_named() -> None:
    with pytest.raises(DefinitionError, match="a step must be a function with @step"):
        step_of(print)


@pytest.mark.parametrize(
    ("hint", "name"),
    [
        (str, "string"),
        (int, "number"),
        (float, "number"),
        (bool, "boolean"),
        (list[int], "array"),
        (tuple[int, ...], "array"),
        (set[str], "array"),
        (dict[str, int], "object"),
        (Priced, "object"),
        (Booked, "object"),
        (Sent, "object"),
        (type(None), "null"),
        (Annotated[int, "a note"], "number"),
        (int | str, "any"),
        (Literal["a"], "any"),
        (Any, "any"),
    ],
)
def test_a_type_has_a_name(hint: Any, name: str) -> None:
    assert type_name(hint) == name
