"""A step that can never run as it is defined is refused, and the message says where and what to do."""

from typing import Any

import msgspec
import pytest

from resurgam.core.errors import DefinitionError
from resurgam.flows import model as m
from resurgam.flows.expressions import Expressions
from resurgam.flows.validate import YEAR, clean_id, validate
from support.flow_steps import step

JUDGE = Expressions()


def cel(script: str) -> m.Expression:
    return m.Expression(language="cel", script=script)


def lua(script: str) -> m.Expression:
    return m.Expression(language="lua", script=script)


def path(script: str) -> m.Expression:
    return m.Expression(language="jpath", script=script)


def python(**fields: Any) -> m.Step:
    """A valid step, with some fields of it changed."""
    given = {"python": m.PythonConfig(activity="a"), **fields}
    return m.Step(**{"id": "price", "name": "Price", "type": "python", **given})


def with_attribute(name: str, attribute: m.Attribute, **fields: Any) -> m.Step:
    return python(attributes={name: attribute}, **fields)


def http(endpoint: str, compensate: str = "", **attributes: m.Attribute) -> m.Step:
    config = m.HttpConfig(endpoint=endpoint, compensate=compensate)
    return m.Step(id="price", name="Price", type="sync", http=config, attributes=attributes)


def service(type: m.StepType = "sync", **config: Any) -> m.Step:
    return m.Step(id="price", name="Price", type=type, http=m.HttpConfig(endpoint="http://x", **config))


def optional(**config: Any) -> m.Optional:
    return m.Optional(type=config.pop("type", ""), optional=m.OptionalConfig(**config))


def required(**config: Any) -> m.Required:
    return m.Required(type=config.pop("type", ""), required=m.RequiredConfig(**config))


def const(value: str, type: m.ValueType = "") -> m.Const:
    return m.Const(const=m.ConstConfig(value=value), type=type)


def script(text: m.Expression, **fields: Any) -> m.Step:
    return m.Step(id="price", name="Price", type="script", script=text, **fields)


REFUSED: dict[str, tuple[m.Step, str]] = {
    "an empty id": (python(id=""), "the id of a step"),
    "an id with capitals": (python(id="Price"), "use 'price'"),
    "an id with spaces": (python(id="the price"), "use 'the-price'"),
    "an id of other characters": (python(id="价格"), "the id of a step"),
    "an id with a slash": (python(id="a/b"), "use 'ab'"),
    "an empty name": (python(name=""), "the name is empty"),
    "no configuration": (python(python=None), "needs 'python'"),
    "the configuration of another type": (python(flow=m.FlowConfig(goals=("g",))), "has no 'flow'"),
    "a flow without goals": (
        m.Step(id="f", name="F", type="flow", flow=m.FlowConfig(goals=())),
        "a flow step needs goals",
    ),
    "a path as script": (script(path("$.a")), "a script is written in 'lua'"),
    "a memoized step that can be undone": (
        python(memoizable=True, python=m.PythonConfig(activity="a", compensate="b")),
        "cannot be compensated",
    ),
    "a memoized service that can be undone": (
        msgspec.structs.replace(http("http://x", "http://y"), memoizable=True),
        "cannot be compensated",
    ),
    "a time to live of what is not memoized": (python(memo_ttl=5), "memo_ttl is for memoizable steps"),
    "a nameless attribute": (with_attribute("", m.Required()), "an attribute has no name"),
    "two inputs of one name": (
        python(attributes={"a": required(), "b": required(mapping=m.Mapping(name="a"))}),
        "two inputs have the name 'a'",
    ),
    "an input with the name of a constant": (
        python(attributes={"a": const("1"), "b": optional(mapping=m.Mapping(name="a"))}),
        "two inputs have the name 'a'",
    ),
    "two outputs of one name": (
        python(attributes={"a": m.Output(), "b": m.Output(output=m.OutputConfig(mapping=m.Mapping(name="a")))}),
        "two outputs have the name 'a'",
    ),
    "a default that is no JSON": (with_attribute("a", optional(default="hello")), "text needs double quotes"),
    "a default of another type": (with_attribute("a", optional(default='"1"', type="number")), "not of type 'number'"),
    "true for a number": (with_attribute("a", optional(default="true", type="number")), "not of type 'number'"),
    "a constant that is no JSON": (with_attribute("a", const("{")), "is not JSON"),
    "a constant of another type": (with_attribute("a", const("[]", "object")), "not of type 'object'"),
    "a constant without a value": (with_attribute("a", const("")), "is not JSON"),
    "a negative deadline": (with_attribute("a", optional(deadline=-1)), "a deadline has 0 to"),
    "a deadline of more than a year": (with_attribute("a", optional(deadline=YEAR + 1)), "a deadline has 0 to"),
    "metadata without a key": (with_attribute("a", m.Meta(meta=m.MetaConfig(key=""))), "the key of the metadata"),
    "for_each over a text": (with_attribute("a", required(for_each=True, type="string")), "for_each needs type"),
    "for_each over the first object": (
        with_attribute("a", optional(for_each=True, type="object", collect="first")),
        "for_each needs type 'array', got 'object'",
    ),
    "a parameter of a URL that is no input": (http("http://x/{id}"), "{id} is no required input"),
    "a parameter of a URL that may be absent": (http("http://x/{id}", id=optional()), "{id} is no required input"),
    "a parameter of a URL by its outer name": (
        http("http://x/{id}", id=required(mapping=m.Mapping(name="key"))),
        "{id} is no required input",
    ),
    "an unknown parameter in the URL that undoes": (http("http://x", "http://y/{id}"), "{id} is no input or output"),
    "an address that is none": (http("shop/price"), "endpoint must begin with http"),
    "no address": (http(""), "endpoint must begin with http"),
    "a password in an address": (http("http://me:pw@x/"), "endpoint must not contain a user or a password"),
    "a compensation that is no address": (http("http://x", "undo"), "compensate must begin with http"),
    "a health check that is no address": (service(health_check="ping"), "health_check must begin with http"),
    "a health check of one call": (service(health_check="http://x/{id}"), "health_check has no parameters"),
    "a negative timeout": (service(timeout=-1), "timeout has 0 to"),
    "a completion deadline of more than a year": (service("async", deadline=YEAR + 1), "deadline has 0 to"),
    "a completion deadline of a sync step": (service(deadline=5), "a deadline is for steps of type 'async'"),
    "retries of what is attempted once": (
        python(work_config=m.WorkConfig(once=True, max_retries=1)),
        "once is without retries",
    ),
    "fewer than no retries": (python(work_config=m.WorkConfig(max_retries=-2)), "max_retries is -1"),
    "negative parallelism": (python(work_config=m.WorkConfig(parallelism=-1)), "0 or more"),
    "a negative backoff": (python(work_config=m.WorkConfig(init_backoff=-1)), "0 or more"),
    "a negative longest backoff": (python(work_config=m.WorkConfig(max_backoff=-1)), "0 or more"),
    "a longest backoff below the first": (
        python(work_config=m.WorkConfig(init_backoff=10, max_backoff=9)),
        "max_backoff is less than init_backoff",
    ),
    "a predicate that cannot be parsed": (python(predicate=cel("1 +")), "predicate: '1 +' is no CEL expression"),
    "a predicate over an unknown name": (python(predicate=cel("amount > 1")), "amount"),
    "a predicate over the outer name": (
        python(predicate=cel("a > 1"), attributes={"a": required(mapping=m.Mapping(name="b"))}),
        "predicate: ",
    ),
    "a predicate over an output": (python(predicate=cel("a > 1"), attributes={"a": m.Output()}), "predicate: "),
    "a match that cannot be parsed": (with_attribute("a", required(match=lua("return ("))), "match of 'a': "),
    "a match over a name other than value": (with_attribute("a", required(match=cel("a > 1"))), "match of 'a': "),
    "a mapping that is no path": (
        with_attribute("a", required(mapping=m.Mapping(script=path("a.b")))),
        "mapping of 'a': a path begins with '$'",
    ),
    "an output by what is no path": (
        with_attribute(
            "a",
            m.Output(output=m.OutputConfig(mapping=m.Mapping(script=path("$[")))),
        ),
        "mapping of 'a': ",
    ),
    "a script that cannot be parsed": (script(lua("return return")), "script: 'return return' is no Lua script"),
    "a script that is too long": (script(lua("x = 1;" * 20_000)), "at most 50,000 characters"),
    "an input that is no name in Lua": (
        script(lua("1"), attributes={"order-id": required()}),
        "'order-id' is no name in Lua; give it another inside the step",
    ),
    "an input that is a keyword of Lua": (script(lua("1"), attributes={"end": required()}), "'end' is no name in Lua"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_step_is_refused_that_has(what: str) -> None:
    one, message = REFUSED[what]
    with pytest.raises(DefinitionError) as raised:
        validate(one, JUDGE)
    assert message in str(raised.value)
    assert len(str(raised.value)) < 600


ACCEPTED: dict[str, m.Step] = {
    "nothing": python(),
    "the longest deadline": with_attribute("a", optional(deadline=YEAR)),
    "for_each over a collected list": with_attribute("a", required(for_each=True, collect="all", type="string")),
    "for_each over an array": with_attribute("a", required(for_each=True, type="array")),
    "for_each over anything": with_attribute("a", required(for_each=True, type="any")),
    "an input and an output of one inner name": python(
        attributes={"a": required(), "b": m.Output(output=m.OutputConfig(mapping=m.Mapping(name="a")))}
    ),
    "a constant null": with_attribute("a", const("null", "null")),
    "a number with a fraction": with_attribute("a", const("1.5", "number")),
    "a default that may be anything": with_attribute("a", optional(default="[1]", type="any")),
    "an async service": service("async", deadline=5, timeout=5, health_check="http://x/health"),
    "retries without limit": python(work_config=m.WorkConfig(max_retries=-1)),
    "equal backoffs": python(work_config=m.WorkConfig(init_backoff=10, max_backoff=10)),
    "a parameter of a URL by its inner name": http("http://x/{key}", id=required(mapping=m.Mapping(name="key"))),
    "an output in the URL that undoes": http("http://x", "http://y/{id}", id=m.Output()),
    "a memoized step": python(memoizable=True, memo_ttl=1000),
    "expressions in every place": python(
        predicate=cel("b > 1 && c == 2"),
        attributes={
            "a": required(match=cel("value > 1"), mapping=m.Mapping(name="b", script=path("$.x"))),
            "c": const("2"),
            "d": m.Output(output=m.OutputConfig(mapping=m.Mapping(script=cel("result.x + 1")))),
        },
    ),
    "a script over its inputs": script(lua("return {total = a + b}"), attributes={"a": required(), "b": const("1")}),
    "a predicate over metadata": python(
        predicate=cel("key == null"), attributes={"key": m.Meta(meta=m.MetaConfig(key="flow_id"))}
    ),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_a_step_is_accepted_that_has(what: str) -> None:
    validate(ACCEPTED[what], JUDGE)


@pytest.mark.parametrize(
    ("given", "clean"),
    [
        ("Price List", "price-list"),
        ("  a  ", "a"),
        ("-a-", "a"),
        ("a_b.c+d-1", "a_b.c+d-1"),
        ("ÄÖÜ", ""),
        ("", ""),
        ("a:b", "ab"),
    ],
)
def test_an_id_is_cleaned(given: str, clean: str) -> None:
    assert clean_id(given) == clean


def test_a_step_survives_json() -> None:
    for one in ACCEPTED.values():
        assert msgspec.json.decode(msgspec.json.encode(one), type=m.Step) == one
    assert msgspec.json.decode(msgspec.json.encode(step("A: a ?b/last c=1 > d")), type=m.Step) == step(
        "A: a ?b/last c=1 > d"
    )


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `colour`"):
        msgspec.json.decode(b'{"id":"a","name":"A","type":"python","colour":"red"}', type=m.Step)
