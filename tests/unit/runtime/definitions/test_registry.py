"""The registry: look-up by name, checks at registration, and definitions that stay callable."""

import inspect
from collections.abc import Callable
from datetime import timedelta

import pytest

from resurgam.core.errors import DefinitionError, NotFound, SerializationError
from resurgam.core.retry import RetryPolicy
from resurgam.runtime.context.context import Context
from resurgam.runtime.definitions.definition import Activity, ActivityOptions, AsyncActivity, SyncActivity, Workflow
from resurgam.runtime.registry import Registry


@pytest.fixture
def registry() -> Registry:
    return Registry()


def place_of(function) -> str:
    code = function.__code__
    return f"{__file__}:{code.co_firstlineno} ({function.__qualname__})"


async def good(ctx: Context, times: int) -> int:
    """Say something."""
    return times * 2


async def charge(amount: int) -> int:
    return amount + 1


def resize(width: int) -> int:
    return width * 3


def test_definitions_are_found_by_name(registry):
    workflow, activity = registry.workflow(good), registry.activity(charge)
    assert registry.workflows.find("good") is workflow
    assert registry.activities.find("charge") is activity
    assert "good" in registry.workflows
    assert "charge" not in registry.workflows
    assert (repr(workflow), repr(activity)) == ("<workflow 'good'>", "<activity 'charge'>")


def test_names_and_options_can_be_given(registry):
    workflow = registry.workflow(name="other", queue="slow")(good)
    assert (workflow.name, workflow.queue) == ("other", "slow")
    policy = RetryPolicy(max_attempts=2)
    activity = registry.activity(name="pay", queue="money", retry=policy, timeout=5)(charge)
    assert (activity.name, activity.settings) == ("pay", ActivityOptions(queue="money", retry=policy, timeout=5))
    assert registry.activities.find("pay") is activity


async def test_a_definition_is_still_the_function(registry):
    workflow, pay, shrink = registry.workflow(good), registry.activity(charge), registry.activity(resize)
    assert await workflow(None, 4) == 8
    assert await pay(4) == 5
    assert shrink(4) == 12
    assert (type(pay), pay.is_async, type(shrink), shrink.is_async) == (AsyncActivity, True, SyncActivity, False)
    assert (workflow.__name__, workflow.__doc__, workflow.__wrapped__) == ("good", "Say something.", good)
    assert inspect.signature(pay) == inspect.signature(charge)


def test_the_result_is_read_by_the_annotation(registry):
    assert registry.workflow(good).result.decode(b"5") == 5
    with pytest.raises(SerializationError):
        registry.activity(charge).result.decode(b'"5"')


def test_an_attribute_of_the_function_does_not_replace_one_of_the_definition(registry):
    async def pay(amount: int) -> int: ...

    pay.name, pay.settings, pay.owner = "wrong", "wrong", "team"
    activity = registry.activity(pay)
    assert (activity.name, activity.settings, activity.owner) == ("pay", ActivityOptions(), "team")


def test_options_returns_a_copy(registry):
    activity = registry.activity(queue="money")(charge)
    policy = RetryPolicy(max_attempts=1)
    changed = activity.options(retry=policy, timeout=3)
    assert changed is not activity
    assert type(changed) is AsyncActivity
    assert (changed.name, changed.function) == ("charge", charge)
    assert changed.settings == ActivityOptions(queue="money", retry=policy, timeout=3)
    assert activity.settings == ActivityOptions(queue="money")
    assert changed.options(queue="other").settings == ActivityOptions(queue="other", retry=policy, timeout=3)
    assert registry.activities.find("charge") is activity


@pytest.mark.parametrize("option", ["timeout", "start_timeout", "heartbeat_timeout"])
@pytest.mark.parametrize("length", [0, -1, 0.0001, timedelta(0)])
def test_a_timeout_must_be_positive(registry, option, length):
    with pytest.raises(ValueError, match=f"^{option} must be more than 0, got "):
        registry.activity(**{option: length})
    with pytest.raises(ValueError, match=f"^{option} must be more than 0, got "):
        registry.activity(charge).options(**{option: length})


@pytest.mark.parametrize("option", ["timeout", "start_timeout", "heartbeat_timeout"])
@pytest.mark.parametrize("length", ["5", True, float("nan")])
def test_a_timeout_must_be_a_duration(registry, option, length):
    with pytest.raises(ValueError, match="a duration must be"):
        registry.activity(**{option: length})


def test_timeouts_are_known_in_milliseconds(registry):
    activity = registry.activity(start_timeout=2, heartbeat_timeout=timedelta(minutes=1))(charge)
    assert (activity.start_limit, activity.request["heartbeat"]) == (2000, 60_000)
    changed = activity.options(heartbeat_timeout=0.5)
    assert (changed.start_limit, changed.request["heartbeat"]) == (2000, 500)
    plain = registry.activity(charge)
    assert (plain.start_limit, plain.request["heartbeat"]) == (None, None)


def test_an_unknown_option_is_refused(registry):
    with pytest.raises(TypeError, match="heartbeat"):
        registry.activity(heartbeat=5)


def test_a_reference_knows_name_and_result(registry):
    workflow = registry.workflow.ref("far", returns=int, queue="slow")
    activity = registry.activity.ref("away", returns=list[int])
    assert isinstance(workflow, Workflow)
    assert (workflow.name, workflow.queue, workflow.signature) == ("far", "slow", None)
    assert isinstance(activity, Activity)
    assert (activity.name, activity.signature) == ("away", None)
    assert workflow.result.decode(b"5") == 5
    assert activity.result.decode(b"[5]") == [5]
    assert registry.activity.ref("away").result.decode(b'{"a":1}') == {"a": 1}
    assert activity.options(queue="q").result.decode(b"[5]") == [5]
    assert "far" not in registry.workflows
    with pytest.raises(TypeError, match="<workflow 'far'> is known by name only and cannot be called; use "):
        workflow(None)


def test_activity_info_requires_a_running_activity(registry):
    with pytest.raises(RuntimeError, match="must be called inside an activity"):
        registry.activity.info()


@pytest.mark.parametrize(
    ("register", "known"),
    [([], "none"), ([("b", good), ("a", good)], "a, b")],
)
def test_an_unregistered_name_is_reported_with_the_registered_ones(registry, register, known):
    for name, function in register:
        registry.workflow(name=name)(function)
    with pytest.raises(NotFound) as caught:
        registry.workflows.find("missing")
    assert str(caught.value) == (
        f"workflow 'missing' is not registered here (registered: {known}); "
        "import the module that defines it before the engine starts"
    )


def test_two_functions_of_one_name_are_refused_with_both_sources(registry):
    registry.activity(charge)
    with pytest.raises(DefinitionError) as caught:
        registry.activity(name="charge")(resize)
    assert str(caught.value) == (
        f"{place_of(resize)}: activity 'charge' is already registered by {place_of(charge)}; "
        "give one of them another name, or use a Registry of its own"
    )
    assert registry.activities.find("charge").function is charge


def test_a_workflow_and_an_activity_may_share_a_name(registry):
    registry.workflow(name="pay")(good)
    registry.activity(name="pay")(charge)
    assert registry.workflows.find("pay").function is good
    assert registry.activities.find("pay").function is charge


def test_a_function_of_a_reloaded_module_replaces_the_old_one(registry):
    def load():
        async def pay(amount: int) -> int:
            return amount

        return registry.activity(pay)

    first, second = load(), load()
    assert first is not second
    assert registry.activities.find("pay") is second


def test_registries_are_independent(registry):
    registry.activity(charge)
    Registry().activity(name="charge")(resize)
    assert registry.activities.find("charge").function is charge


async def no_parameters(): ...


async def only_keywords(*, ctx): ...


async def only_varargs(*ctx): ...


async def wrong_context(ctx: int): ...


async def wrong_context_by_name(ctx: "Kontext"): ...  # noqa: F821


async def keyword_only(ctx, *, colour: str = "red"): ...


async def catch_all(ctx, **colours: str): ...


def not_async(ctx): ...


async def generator(ctx):
    yield 1


class Shop:
    async def method(self, ctx): ...

    async def of_class(cls, ctx): ...


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (no_parameters, "a workflow must take the context as its first parameter: (ctx, ...)"),
        (only_keywords, "a workflow must take the context as its first parameter: (ctx, ...)"),
        (only_varargs, "a workflow must take the context as its first parameter: (ctx, ...)"),
        (wrong_context, "the first parameter must be annotated Context, got <class 'int'>"),
        (wrong_context_by_name, "the first parameter must be annotated Context, got 'Kontext'"),
        (keyword_only, "parameter 'colour' is keyword-only; a workflow's arguments are passed by position"),
        (catch_all, "parameter 'colours' is keyword-only; a workflow's arguments are passed by position"),
        (not_async, "a workflow must be an async function; write async def"),
        (generator, "a workflow cannot be a generator; return a list"),
        (Shop.method, "a workflow cannot be a method; define it as a function"),
        (Shop.of_class, "a workflow cannot be a method; define it as a function"),
    ],
)
def test_an_invalid_workflow_function_is_refused_with_its_source(registry, function, reason):
    with pytest.raises(DefinitionError) as caught:
        registry.workflow(function)
    assert str(caught.value) == f"{place_of(function)}: {reason}"
    assert function.__name__ not in registry.workflows


def test_an_activity_cannot_be_a_method(registry):
    with pytest.raises(DefinitionError) as caught:
        registry.activity(Shop.method)
    assert str(caught.value) == f"{place_of(Shop.method)}: an activity cannot be a method; define it as a function"


@pytest.mark.parametrize("wrong", [len, Shop, Shop().method, 5])
def test_an_activity_must_be_a_function(registry, wrong):
    with pytest.raises(DefinitionError) as caught:
        registry.activity(wrong)
    assert str(caught.value) == f"an activity must be a function defined with def or async def, got {wrong!r}"


async def by_name(ctx: "Context", times: int) -> None: ...


async def by_full_name(ctx: "resurgam.Context") -> None: ...  # noqa: F821


async def by_short_name(ctx: "rg.Context") -> None: ...  # noqa: F821


async def not_annotated(ctx, times: int) -> None: ...


async def by_position_only(ctx: Context, /, times: int) -> None: ...


@pytest.mark.parametrize("function", [good, by_name, by_full_name, by_short_name, not_annotated, by_position_only])
def test_the_context_may_be_annotated_in_several_ways(registry, function):
    assert registry.workflow(function).function is function


async def takes_callback(ctx: Context, callback: Callable[[], int]) -> None: ...


async def returns_callback(order: int) -> Callable[[], int]: ...


def test_an_annotation_without_a_codec_is_refused_with_its_source(registry):
    with pytest.raises(SerializationError) as caught:
        registry.workflow(takes_callback)
    assert caught.value.path == "workflow 'takes_callback', parameter 'callback' (collections.abc.Callable[[], int])"
    assert caught.value.__notes__ == [f"defined at {place_of(takes_callback)}"]
    with pytest.raises(SerializationError) as caught:
        registry.activity(returns_callback)
    assert caught.value.path == "activity 'returns_callback', the result (collections.abc.Callable[[], int])"
    assert caught.value.__notes__ == [f"defined at {place_of(returns_callback)}"]


def test_an_annotation_that_cannot_be_resolved_is_refused_at_first_use_only(registry):
    async def later(order: "DefinedNowhere") -> None: ...  # noqa: F821

    activity = registry.activity(later)
    with pytest.raises(DefinitionError, match="annotation 'DefinedNowhere' cannot be resolved"):
        activity.signature.encode((1,))
