"""The OpenAPI document says of every route who may ask, what is refused, and what it looks like."""

from typing import Any

import msgspec
import pytest

from resurgam.web.app import ENDPOINTS
from resurgam.web.openapi import document

DOCUMENT = document(ENDPOINTS)
OPERATIONS: dict[str, Any] = {
    operation["operationId"]: operation for methods in DOCUMENT["paths"].values() for operation in methods.values()
}


def test_every_route_is_there_once() -> None:
    assert len(OPERATIONS) == len(ENDPOINTS)
    assert {"/workflows/{id}/signals/{name}", "/flows/{id}/events", "/plan", "/events"} <= DOCUMENT["paths"].keys()


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_route_says_who_may_ask_and_what_is_refused(name: str) -> None:
    operation = OPERATIONS[name]
    assert operation["summary"].endswith(".")
    if operation["security"]:
        assert f"*{operation['x-role']}*" in operation["description"]
        assert {"401", "403"} <= operation["responses"].keys()
    for status, response in operation["responses"].items():
        assert response["description"]
        if int(status) >= 400:
            assert "application/problem+json" in response["content"]
    described = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
    assert ("404" in operation["responses"]) >= bool(described - {"flow", "step", "token"})


@pytest.mark.parametrize("row", [row for row in ENDPOINTS if row.body is not None], ids=lambda row: row.path)
def test_the_example_of_a_body_is_a_body(row: Any) -> None:
    assert row.example is not None
    msgspec.convert(row.example, row.body)


@pytest.mark.parametrize("row", [row for row in ENDPOINTS if row.reply is not None], ids=lambda row: row.path)
def test_the_example_of_an_answer_is_an_answer(row: Any) -> None:
    msgspec.convert(row.reply, next(iter(row.answers.values())))


def test_without_keys_no_route_needs_one() -> None:
    methods = document(ENDPOINTS, keys=False)["paths"].values()
    assert not any(operation["security"] for one in methods for operation in one.values())


def test_changes_of_the_catalog_need_an_admin_and_reading_needs_no_more_than_read() -> None:
    assert {OPERATIONS[name]["x-role"] for name in ("post_steps", "put_steps_id", "delete_steps_id")} == {"admin"}
    reading = {row.role for row in ENDPOINTS if row.method == "GET"}
    assert reading <= {"read", None}
