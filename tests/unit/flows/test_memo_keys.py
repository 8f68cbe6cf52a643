"""Which work items share a memoized result: those that do the same with the same arguments."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from resurgam.flows import model as m
from support.flow_simulation import FlowSimulation
from support.flow_steps import step

RATE = msgspec.structs.replace(
    step("rate: currency > rate"),
    memoizable=True,
    memo_ttl=1000,
    attributes={**step("rate: currency > rate").attributes, "flow": m.Meta(meta=m.MetaConfig(key="user"))},
)
EUR: Mapping[str, list[object]] = {"currency": ["eur"]}


def key_of(one: m.Step, init: Mapping[str, list[object]] = EUR, user: str = "ada") -> str:
    run = FlowSimulation([one], [one.id], init, metadata={"user": user})
    memo = run.requests[1].memo
    assert memo is not None
    assert memo.ttl == one.memo_ttl
    return memo.key


@pytest.mark.parametrize(
    "fields",
    [{"id": "other"}, {"name": "other"}, {"labels": {"a": "b"}}, {"memo_ttl": 5}],
    ids=lambda one: next(iter(one)),
)
def test_what_a_step_is_called_does_not_count(fields: dict[str, Any]) -> None:
    assert key_of(msgspec.structs.replace(RATE, **fields)) == key_of(RATE)


def test_metadata_does_not_count() -> None:
    assert key_of(RATE, user="bob") == key_of(RATE)


@pytest.mark.parametrize(
    "fields",
    [
        {"python": m.PythonConfig(activity="another")},
        {"predicate": m.Expression(language="cel", script="true")},
        {"attributes": {**RATE.attributes, "more": m.Output()}},
        {"work_config": m.WorkConfig(max_retries=1)},
    ],
    ids=lambda one: next(iter(one)),
)
def test_what_a_step_does_counts(fields: dict[str, Any]) -> None:
    assert key_of(msgspec.structs.replace(RATE, **fields)) != key_of(RATE)


@pytest.mark.parametrize("value", ["usd", "EUR", None, ["eur"], {"eur": 1}])
def test_every_argument_counts(value: object) -> None:
    assert key_of(RATE, {"currency": [value]}) != key_of(RATE)


def test_the_order_of_attributes_and_of_fields_does_not_count() -> None:
    turned = msgspec.structs.replace(RATE, attributes=dict(reversed(RATE.attributes.items())))
    assert key_of(turned, {"currency": [{"a": 1, "b": 2}]}) == key_of(RATE, {"currency": [{"b": 2, "a": 1}]})


def test_items_of_one_step_have_keys_of_their_own() -> None:
    each = msgspec.structs.replace(
        RATE,
        attributes={"currency": m.Required(required=m.RequiredConfig(for_each=True)), "rate": m.Output()},
        work_config=m.WorkConfig(parallelism=3),
    )
    run = FlowSimulation([each], ["rate"], {"currency": [["eur", "usd", "eur"]]})
    keys = [run.requests[number].memo for number in (1, 2, 3)]
    assert keys[0] == keys[2] != keys[1]


def test_a_step_that_is_not_memoizable_has_no_key() -> None:
    assert FlowSimulation([step("A: > a")], ["A"]).requests[1].memo is None
