"""Decorated functions: invalid ones are refused at their definition."""

import asyncio
import functools
from datetime import timedelta

import pytest

from resurgam import Context, Registry, errors
from resurgam.errors import SerializationError


class Methods:
    async def method(self, ctx):
        """Is no workflow."""

    @classmethod
    async def of_class(cls, ctx):
        """Is no workflow."""

    async def __call__(self, ctx):
        """Is no workflow."""


async def good(ctx):
    """Is one."""


def plain(ctx):
    """Is an activity at best."""


async def asynchronous_generator(x):
    yield 1


def generator(x):
    yield 1


async def keyword_only(ctx, *, a): ...


async def keywords(ctx, **a): ...


async def without_context(): ...


async def wrong_context(x: int): ...


async def only_star(*a): ...


NO_FUNCTION = "{} must be a function defined with def or async def, got "


DEFINITIONS = [
    (lambda r: r.workflow(5), NO_FUNCTION.format("a workflow")),
    (lambda r: r.workflow(plain), "a workflow must be an async function; write async def"),
    (lambda r: r.workflow(functools.partial(good)), NO_FUNCTION.format("a workflow")),
    (lambda r: r.workflow(Methods.method), "(Methods.method): a workflow cannot be a method; define it as a function"),
    (lambda r: r.workflow(Methods().method), NO_FUNCTION.format("a workflow")),
    (lambda r: r.workflow(Methods.of_class), NO_FUNCTION.format("a workflow")),
    (lambda r: r.workflow(Methods()), NO_FUNCTION.format("a workflow")),
    (lambda r: r.workflow(Methods), NO_FUNCTION.format("a workflow")),
    (lambda r: r.workflow(asynchronous_generator), "a workflow cannot be a generator; return a list"),
    (lambda r: r.workflow(name=5)(good), "(good): name must be a non-empty string, got 5"),
    (lambda r: r.workflow(name="")(good), "(good): name must be a non-empty string, got ''"),
    (lambda r: r.workflow(queue=5)(good), "(good): queue must be a non-empty string, got 5"),
    (lambda r: r.workflow(r.workflow(good)), NO_FUNCTION.format("a workflow") + "<workflow 'good'>"),
    (lambda r: r.activity(r.workflow(good)), NO_FUNCTION.format("an activity") + "<workflow 'good'>"),
    (lambda r: r.activity(functools.partial(plain)), NO_FUNCTION.format("an activity")),
    (lambda r: r.activity(generator), "(generator): an activity cannot be a generator; return a list"),
    (lambda r: r.activity(asynchronous_generator), "an activity cannot be a generator; return a list"),
    (lambda r: r.activity(Methods.method), "an activity cannot be a method; define it as a function"),
    (lambda r: r.activity(len), NO_FUNCTION.format("an activity") + "<built-in function len>"),
    (lambda r: r.activity(retry=5)(plain), "retry must be a RetryPolicy, got 5"),
    (lambda r: r.activity(retry=None)(plain), "retry must be a RetryPolicy, got None"),
    (lambda r: r.activity(queue=5)(plain), "queue must be a non-empty string, got 5"),
    (lambda r: r.workflow(keyword_only), "parameter 'a' is keyword-only"),
    (lambda r: r.workflow(keywords), "parameter 'a' is keyword-only"),
    (lambda r: r.workflow(without_context), "a workflow must take the context as its first parameter: (ctx, ...)"),
    (lambda r: r.workflow(wrong_context), "the first parameter must be annotated Context, got <class 'int'>"),
    (lambda r: r.workflow(only_star), "a workflow must take the context as its first parameter: (ctx, ...)"),
]


@pytest.mark.parametrize(("define", "text"), DEFINITIONS, ids=range(len(DEFINITIONS)))
def test_a_definition_that_cannot_work_is_refused(define, text):
    """DefinitionError names the source of the function and the requirement."""
    with pytest.raises(errors.DefinitionError) as found:
        define(Registry())

    assert text in str(found.value)


@pytest.mark.parametrize("timeout", [0, -1, "a", None, timedelta(0)])
def test_the_timeout_of_an_activity_must_be_a_duration(timeout):
    """Zero would end every attempt before its start."""
    if timeout is None:
        assert Registry().activity(timeout=None)(plain).settings.timeout is None
        return
    with pytest.raises(ValueError, match=r"must be more than 0|a duration must be"):
        Registry().activity(timeout=timeout)(plain)


async def test_a_type_that_cannot_be_recorded_is_refused_at_registration():
    registry = Registry()
    with pytest.raises(SerializationError, match="parameter '_lock'"):

        @registry.workflow
        async def work(_ctx: Context, _lock: asyncio.Lock) -> None: ...
