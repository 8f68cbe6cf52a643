"""Flows that have one outcome, whatever the order in which their work completes and wherever a worker is lost.

Each case defines its steps in a registry of its own. Everything that takes time in them takes minutes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypedDict

from resurgam import Context, NonRetryable, Registry, RetryPolicy
from resurgam.flows import Const, Input, Meta, ScriptStep, StepDecorator, WorkflowStep
from resurgam.flows import model as m
from resurgam.runtime.definitions.info import activity_info

ONCE: Final = RetryPolicy(max_attempts=1)
SLOWLY: Final = RetryPolicy(max_attempts=3, initial_interval=600, max_interval=600, jitter=0)

Define = Callable[[StepDecorator, Registry], Sequence[Any] | None]


@dataclass(frozen=True)
class FlowCase:
    """A flow: its steps, goals and values, and what becomes of it: a *result*, or a failure with a *message*."""

    name: str
    define: Define
    goals: Sequence[str]
    init: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None
    message: str = ""

    def defined(self) -> tuple[Registry, Sequence[Any]]:
        """Return a registry with the functions of the case, and the other steps."""
        registry = Registry()
        return registry, self.define(StepDecorator(registry), registry) or ()


CASES: Final[dict[str, FlowCase]] = {}


def case(
    goals: str, init: Mapping[str, Any] = {}, *, result: Mapping[str, Any] | None = None, message: str = ""
) -> Callable[[Define], Define]:
    """Define a case, named after its function."""

    def add(define: Define) -> Define:
        name = define.__name__
        CASES[name] = FlowCase(name, define, goals.split(), init, result, message)
        return define

    return add


class Order(TypedDict):
    customer: str
    items: list[int]


@case("ship", {"order_id": 7}, result={"ship": [94, 1, 2, 3]})
def order_of_five(step: StepDecorator, registry: Registry) -> None:
    @step
    async def order(order_id: int) -> Order:
        return {"customer": f"c-{order_id}", "items": [1, 2, 3]}

    @step
    async def credit(customer: str) -> int:
        return 100

    @step
    def total(items: list[int]) -> int:
        return sum(items)

    @step
    async def receipt(credit: int, total: int) -> int:
        return credit - total

    @step
    async def ship(receipt: int, items: list[int]) -> list[int]:
        return [receipt, *items]


@case("b", message="step 'b' failed: required input no longer available: a (step 'a' failed: no)")
def failed_provider(step: StepDecorator, registry: Registry) -> None:
    @step(retry=ONCE)
    async def a() -> int:
        raise ValueError("no")

    @step
    async def b(a: int) -> int:
        return a


@case("b", result={})
def goal_without_its_predicate(step: StepDecorator, registry: Registry) -> None:
    @step
    async def a() -> int:
        return 1

    @step(predicate="a > 1")
    async def b(a: int) -> int:
        return a


class Offer(TypedDict):
    offer: int


@case("best every", result={"best": 3, "every": [1, 2, 3]})
def several_providers(step: StepDecorator, registry: Registry) -> None:
    for number in (1, 2, 3):

        def ask(number: int = number) -> Callable[[], Any]:
            async def asked() -> Offer:
                return {"offer": number}

            return asked

        step(name=f"ask-{number}")(ask())

    @step(name="ask-4", retry=ONCE)
    async def ask_nobody() -> Offer:
        raise NonRetryable("no answer")

    @step
    async def best(offer: Annotated[list[int], Input(collect="some")]) -> int:
        return max(offer)

    @step
    async def every(offer: Annotated[list[int], Input(collect="some", match="value < 10")]) -> list[int]:
        return sorted(offer)


@case("strict", message="required input no longer available: offer")
def all_of_several_providers(step: StepDecorator, registry: Registry) -> None:
    several_providers(step, registry)

    @step
    async def strict(offer: Annotated[list[int], Input(collect="all")]) -> int:
        return max(offer)


@case("upper", {"words": ["x", "y", "z"]}, result={"upper": [{"words": w, "upper": w.upper()} for w in "xyz"]})
def for_each_in_order(step: StepDecorator, registry: Registry) -> None:
    @step(parallelism=3)
    async def upper(words: Annotated[str, Input(for_each=True)]) -> str:
        return words.upper()


@case("upper", {"words": []}, result={"upper": []})
def for_each_over_nothing(step: StepDecorator, registry: Registry) -> None:
    for_each_in_order(step, registry)


@case("book", {"nights": [1, 2, 3]}, message="step 'book' failed: no room")
def compensation(step: StepDecorator, registry: Registry) -> None:
    async def cancel(done: dict[str, Any]) -> None:
        assert done["output"]["book"] == done["input"]["nights"]

    @step(parallelism=3, compensate=cancel, retry=ONCE)
    async def book(nights: Annotated[int, Input(for_each=True)]) -> int:
        if nights == 2:
            raise ValueError("no room")
        return nights


@case("b", result={"b": 30})
def retries(step: StepDecorator, registry: Registry) -> None:
    @step(retry=SLOWLY)
    async def a() -> int:
        if activity_info().attempt < 3:
            raise ValueError("later")
        return 3

    @step
    async def b(a: int) -> int:
        return 10 * a


@case("greet", result={"greet": "hello nobody"})
def default_after_the_deadline(step: StepDecorator, registry: Registry) -> None:
    @step(retry=SLOWLY)
    async def name() -> str:
        if activity_info().attempt < 2:
            raise ValueError("later")
        return "somebody"

    @step
    async def greet(name: Annotated[str, Input(deadline=60)] = "nobody") -> str:
        return f"hello {name}"


@case("post mail", result={"mail": "by mail"})
def routes(step: StepDecorator, registry: Registry) -> None:
    @step
    async def way() -> str:
        return "mail"

    @step
    async def post(way: Annotated[str, Input(match="value == 'post'")]) -> str:
        return f"by {way}"

    @step
    async def mail(way: Annotated[str, Input(match="value == 'mail'")]) -> str:
        return f"by {way}"


@case("say", {"limit": 1, "text": {"de": "hallo"}}, result={"say": [7, "HALLO", "say"]})
def constants_metadata_and_mappings(step: StepDecorator, registry: Registry) -> None:
    @step
    async def say(
        limit: Annotated[int, Const(7)],
        text: Annotated[str, Input(mapping="value.de")],
        me: Annotated[str, Meta("step_id")],
    ) -> list[Any]:
        return [limit, text.upper(), me]


@case("joined", {"parts": ["a", "b"]}, result={"joined": "a-b", "count": 2})
def script(step: StepDecorator, registry: Registry) -> Sequence[Any]:
    text = "return {joined = table.concat(parts, '-'), count = #parts}"
    return [ScriptStep("joined", text, inputs=["parts"], outputs=["joined", "count"])]


@case("add", {"numbers": [1, 2, 3]}, result={"add": 14})
def child_flows(step: StepDecorator, registry: Registry) -> Sequence[Any]:
    @step
    async def half(number: int) -> int:
        return number * number

    @step
    async def square(half: int) -> int:
        return half

    @step
    async def add(squares: list[dict[str, Any]]) -> int:
        return sum(one["square"] for one in squares)

    number = m.Required(required=m.RequiredConfig(for_each=True, mapping=m.Mapping(name="number")))
    squares = m.Output(type="array", output=m.OutputConfig(mapping=m.Mapping(name="square")))
    return [
        m.Step(
            id="each",
            name="each",
            type="flow",
            flow=m.FlowConfig(goals=("square",)),
            attributes={"numbers": number, "squares": squares},
            work_config=m.WorkConfig(parallelism=2),
        )
    ]


@case("review", {"amount": 5}, result={"review": "approved 10"})
def workflow_as_a_step(step: StepDecorator, registry: Registry) -> Sequence[Any]:
    @registry.activity
    async def ask(amount: int) -> str:
        return f"approved {amount}"

    @registry.workflow
    async def review(ctx: Context, doubled: int) -> str:
        await ctx.sleep(600)
        return await ctx.activity(ask, doubled)

    @step
    async def doubled(amount: int) -> int:
        return 2 * amount

    return [WorkflowStep(review)]


@case("a b", {"a": 1}, result={"a": 1, "b": 2})
def goals_that_are_given(step: StepDecorator, registry: Registry) -> None:
    @step
    async def a() -> int:
        raise NonRetryable("it is given")

    @step
    async def b(a: int) -> int:
        return a + 1
