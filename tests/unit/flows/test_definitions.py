"""Steps that are scripts, flows and workflows: what their definitions say, and which are refused."""

from dataclasses import dataclass
from typing import Annotated

import pytest

from resurgam.core.errors import DefinitionError
from resurgam.core.retry import RetryPolicy
from resurgam.flows import Const, FlowStep, HttpStep, Input, Meta, ScriptStep, StepDecorator, WorkflowStep
from resurgam.flows import model as m
from resurgam.flows.expressions import Expressions
from resurgam.flows.steps import step_of, steps_in
from resurgam.flows.validate import validate
from resurgam.flows.wiring import retry_rule
from resurgam.runtime.context.context import Context
from resurgam.runtime.registry import Registry


@dataclass
class Receipt:
    number: str
    cents: int


def test_a_script_has_its_inputs_outputs_and_options():
    made = ScriptStep(
        "total",
        "return {sum = price * (1 - discount)}",
        inputs={
            "price": float,
            "discount": float,
            "rate": Annotated[int, Const(3)],
            "flow": Annotated[str, Meta("flow_id")],
        },
        outputs={"sum": float},
        defaults={"discount": 0.5},
        title="Add up",
        predicate="price > 0.0",
        memoize=60,
        parallelism=4,
        labels={"team": "shop"},
    )

    assert made == m.Step(
        id="total",
        name="Add up",
        type="script",
        attributes={
            "price": m.Required(type="number"),
            "discount": m.Optional(type="number", optional=m.OptionalConfig(default="0.5")),
            "rate": m.Const(const=m.ConstConfig(value="3"), type="number"),
            "flow": m.Meta(meta=m.MetaConfig(key="flow_id"), type="string"),
            "sum": m.Output(type="number"),
        },
        script=m.Expression(language="lua", script="return {sum = price * (1 - discount)}"),
        predicate=m.Expression(language="cel", script="price > 0.0"),
        memoizable=True,
        memo_ttl=60_000,
        labels={"team": "shop"},
        work_config=m.WorkConfig(parallelism=4),
    )


def test_a_service_has_its_address_its_limits_and_its_retries():
    made = HttpStep(
        "pay",
        "https://shop.example/orders/{order}/pay",
        inputs={"order": str, "cents": int},
        outputs={"receipt": str},
        asynchronous=True,
        method="PUT",
        timeout=2.5,
        deadline=600,
        compensate="https://shop.example/refund",
        health_check="https://shop.example/health",
        retry=RetryPolicy(max_attempts=4, initial_interval=0.5, max_interval=8, linear=True),
        parallelism=3,
    )

    assert (made.type, made.name) == ("async", "pay")
    assert made.http == m.HttpConfig(
        endpoint="https://shop.example/orders/{order}/pay",
        method="PUT",
        timeout=2500,
        deadline=600_000,
        compensate="https://shop.example/refund",
        health_check="https://shop.example/health",
    )
    assert made.work_config == m.WorkConfig(
        max_retries=3, init_backoff=500, max_backoff=8000, backoff_type="linear", parallelism=3
    )
    validate(made, Expressions())


def test_a_service_without_options_is_called_by_the_defaults_of_the_engine():
    made = HttpStep("price", "http://localhost/price", inputs=["item"])

    assert made.type == "sync"
    assert made.http == m.HttpConfig(endpoint="http://localhost/price")
    assert made.work_config == m.WorkConfig(parallelism=1)
    assert [*made.outputs] == ["price"]


@pytest.mark.parametrize("attempts", [None, 1, 2])
def test_the_retries_of_a_service_are_those_of_its_policy(attempts):
    made = HttpStep(
        "price", "http://localhost", retry=RetryPolicy(max_attempts=attempts, initial_interval=3, backoff=1)
    )

    rule = retry_rule(made.work_config)
    assert rule is not None
    assert rule.max_attempts == attempts
    assert attempts == 1 or (rule.initial_interval, rule.backoff) == (3, 1)


def test_a_long_first_interval_is_not_cut_by_the_default_of_the_longest():
    rule = retry_rule(m.WorkConfig(max_retries=3, init_backoff=300_000))
    assert rule is not None
    assert (rule.initial_interval, rule.max_interval) == (300, 300)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": 5}, "step 'pay': url must be an address such as"),
        ({"timeout": 0}, "step 'pay': timeout must be more than 0 seconds"),
        ({"deadline": -1}, "step 'pay': deadline must be more than 0 seconds"),
        ({"retry": RetryPolicy(backoff=3)}, "step 'pay': retry of a service has backoff 1 or 2"),
        ({"retry": RetryPolicy(jitter=0)}, "step 'pay': retry of a service has no non_retryable"),
    ],
)
def test_a_service_that_cannot_be_called_is_refused(options, message):
    with pytest.raises(DefinitionError, match=message):
        HttpStep("pay", **{"url": "http://localhost", **options})


def test_names_alone_are_attributes_of_any_type():
    made = ScriptStep("pick", "return {b = a}", inputs=["a"], outputs=["b"])

    assert made.attributes == {"a": m.Required(type="any"), "b": m.Output(type="any")}


def test_a_script_without_outputs_has_one_that_is_named_after_it():
    assert [*ScriptStep("seven", "return 7").outputs] == ["seven"]


def test_the_outputs_of_a_step_that_runs_for_each_element_are_lists():
    made = ScriptStep("up", "return {b = a}", inputs={"a": Annotated[int, Input(for_each=True)]}, outputs={"b": int})

    assert made.attributes["b"] == m.Output(type="array")


def test_a_flow_step_has_goals_and_only_the_outputs_that_it_names():
    made = FlowStep("deliver", ["ship", "bill"], inputs=["order_id"], outputs=["tracking"])

    assert made.flow == m.FlowConfig(goals=("ship", "bill"))
    assert (sorted(made.inputs), sorted(made.outputs)) == (["order_id"], ["tracking"])
    assert FlowStep("deliver", ["ship"]).outputs == {}


def test_a_workflow_step_is_read_from_the_signature_of_the_workflow():
    registry = Registry()

    @registry.workflow(queue="slow")
    async def charge(ctx: Context, customer: str, tip: int = 100) -> Receipt:
        """Charge the customer.

        In two steps.
        """
        raise NotImplementedError

    assert WorkflowStep(charge) == m.Step(
        id="charge",
        name="Charge the customer.",
        type="workflow",
        attributes={
            "customer": m.Required(type="string"),
            "tip": m.Optional(type="number", optional=m.OptionalConfig(default="100")),
            "number": m.Output(type="string"),
            "cents": m.Output(type="number"),
        },
        workflow=m.WorkflowConfig(workflow="charge", queue="slow"),
        work_config=m.WorkConfig(parallelism=1),
    )


def test_a_workflow_without_fields_in_its_result_has_one_output():
    registry = Registry()

    @registry.workflow
    async def approve(ctx: Context, who: str) -> bool:
        raise NotImplementedError

    made = WorkflowStep(approve, id="approval", queue="people")

    assert made.attributes == {"who": m.Required(type="string"), "approval": m.Output(type="boolean")}
    assert made.workflow == m.WorkflowConfig(workflow="approve", queue="people", fields=False)


def _bad_workflow() -> object:
    registry = Registry()

    @registry.workflow
    async def rename(ctx: Context, name: str, *more: str) -> None: ...

    return rename


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda: ScriptStep("Bad Id", "return 1"), "got 'Bad Id'; use 'bad-id'"),
        (lambda: ScriptStep("", "return 1"), "the id of a step has lower-case letters, .* got ''"),
        (lambda: ScriptStep("a", 7), "step 'a': script must be text, got 7"),
        (lambda: ScriptStep("a", "x", language="ruby"), "step 'a': language must be 'lua' or 'cel', got 'ruby'"),
        (
            lambda: ScriptStep("a", "x", inputs="n"),
            "step 'a': inputs must be a list of names, or types by name, got 'n'",
        ),
        (lambda: ScriptStep("a", "x", inputs=[""]), "step 'a': inputs must have names, got ''"),
        (lambda: ScriptStep("a", "x", defaults={"n": 1}), "step 'a': 'n' has a default, but is not among the inputs"),
        (lambda: ScriptStep("a", "x", inputs=["n"], outputs=["n"]), "step 'a': 'n' is an input and an output"),
        (
            lambda: ScriptStep("a", "x", parallelism=0),
            "step 'a': parallelism must be a whole number, at least 1, got 0",
        ),
        (lambda: ScriptStep("a", "x", memoize=0), "step 'a': memoize must be True, or how long results count, got 0"),
        (lambda: ScriptStep("a", "x", labels={"a": 1}), "step 'a': labels must be strings by strings"),
        (lambda: FlowStep("a", []), r"step 'a': goals must be a list of steps, such as \['ship'\], got \[\]"),
        (lambda: FlowStep("a", "ship"), "step 'a': goals must be a list of steps"),
        (lambda: WorkflowStep(print), "a workflow step needs a function with @workflow, got <built-in function print>"),
        (lambda: WorkflowStep(_bad_workflow()), r"step 'rename': parameter 'more': .* so no \*args or \*\*kwargs"),
    ],
)
def test_a_wrong_definition_is_refused_with_its_step_and_what_is_wrong(define, message):
    with pytest.raises(DefinitionError, match=message):
        define()


def test_a_function_whose_types_cannot_be_found_is_refused_with_its_place():
    with pytest.raises(
        DefinitionError, match=r"test_definitions.py:\d+ .*: its annotations cannot be read here: name 'Unknown'"
    ):

        @StepDecorator(Registry())
        def late(order: "Unknown") -> int:  # noqa: F821 -- on purpose
            return 1


def test_a_function_is_refused_with_its_place():
    with pytest.raises(DefinitionError, match=r"test_definitions.py:\d+ .*: 'n' is an input and an output"):

        @StepDecorator(Registry())
        def n(n: int) -> int:
            return n

    with pytest.raises(DefinitionError, match=r"test_definitions.py:\d+ .*got 'Price'; use 'price'"):

        @StepDecorator(Registry())
        def Price() -> int:
            return 1


def test_the_step_of_a_function_is_found_by_its_activity_even_if_that_is_mocked():
    registry = Registry()

    @StepDecorator(registry)
    def one() -> int:
        return 1

    registry.replace("one", lambda: 2)

    assert [*steps_in(registry.copy())] == [step_of(one)]
