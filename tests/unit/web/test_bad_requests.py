"""Whatever a caller sends: a problem that names the field, and never an error of the server."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from resurgam import Engine
from support.web import SHIP, checkout_code, served

DEEP = b'{"workflow": "checkout", "args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with Engine("memory://", registry=checkout_code()) as engine, served(engine, argyll=False) as made:
        await engine.register_step(SHIP)
        await engine.start("checkout", id="o-1")
        yield made


def start(**fields: Any) -> bytes:
    return msgspec.json.encode({"workflow": "checkout", **fields})


BODIES: dict[str, tuple[str, bytes, str]] = {
    "no JSON": ("/workflows", b"{", "body"),
    "no UTF-8": ("/workflows", b'{"workflow": "\xff"}', "body"),
    "a lone surrogate": ("/workflows", b'{"workflow": "checkout", "args": ["\\ud800 x"]}', "body"),
    "deep JSON": ("/workflows", DEEP, "body"),
    "a number out of range": ("/workflows", b'{"workflow": "checkout", "args": [1e999]}', "body.args[0]"),
    "another type": ("/workflows", b"[]", "body"),
    "a missing field": ("/workflows", b"{}", "body.workflow"),
    "an unknown field": ("/workflows", start(retries=3), "body.retries"),
    "an empty id": ("/workflows", start(id=""), "body.id"),
    "a long id": ("/workflows", start(id="x" * 1001), "body.id"),
    "NUL in an id": ("/workflows", start(id="a\0b"), "body.id"),
    "NUL in a tag": ("/workflows", start(tags={"a": "\0"}), "body.tags[...]"),
    "arguments that do not fit": ("/workflows", start(args=[1, 2, 3]), "body"),
    "a negative delay": ("/workflows", start(delay=-1), "body.delay"),
    "a huge delay": ("/workflows", start(delay=1e300), "body.delay"),
    "an unknown choice": ("/workflows", start(if_exists="maybe"), "body.if_exists"),
    "no goal": ("/flows", b'{"goals": []}', "body.goals"),
    "a flow without values": ("/flows", b'{"goals": ["ship"]}', "body.init"),
    "NUL in a step": (
        "/steps",
        b'{"id": "a\\u0000", "name": "A", "type": "flow", "flow": {"goals": ["a"]}}',
        "body.id",
    ),
    "a long wait": ("/workflows/o-1/queries/total", b'{"timeout": 61}', "body.timeout"),
    "arguments of a query": ("/workflows/o-1/queries/total", b'{"args": [1]}', "body.args"),
}


@pytest.mark.parametrize("case", BODIES)
async def test_a_bad_body_is_refused_with_its_field(client: httpx2.AsyncClient, case: str) -> None:
    path, body, field = BODIES[case]
    answer = await client.post(path, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["field"]) == (400, field), answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=-1", "query.limit"),
        ("limit=0", "query.limit"),
        ("limit=1001", "query.limit"),
        ("limit=99999999999999999999999999", "query.limit"),
        ("limit=ten", "query.limit"),
        ("limit=null", "query.limit"),
        ("limit=1&limit=2", "query.limit"),
        ("cursor=x", "query.cursor"),
        ("cursor=%F0%9F", "query.cursor"),
        ("status=asleep", "query.status"),
        ("name=a%00b", "query.name"),
        ("name=", "query.name"),
        ("tag=team", "query.tag[0]"),
        ("since=2026-01-01", "query.since"),
        ("since=2026-01-01T00:00:00", "query.since"),
        ("since=12345", "query.since"),
        ("failure=a.b", "query.failure"),
        ("newest_only=perhaps", "query.newest_only"),
        ("colour=red", "query.colour"),
    ],
)
async def test_a_bad_parameter_is_refused_with_its_name(client: httpx2.AsyncClient, query: str, field: str) -> None:
    answer = await client.get(f"/workflows?{query}")
    assert (answer.status_code, answer.json()["field"]) == (400, field), answer.text


async def test_a_cursor_of_no_page_finds_nothing(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/workflows?cursor=000000000000000-x")).json() == {"workflows": [], "cursor": None}
    assert (await client.get("/workflows/o-1/history?cursor=5-x")).status_code == 404
    assert (await client.get("/steps?cursor=ff")).json() == {"steps": [], "cursor": None}


@pytest.mark.parametrize("id", ["%00", "%FF", "a%00b", "%C3"])
async def test_an_id_that_is_no_text_is_refused(client: httpx2.AsyncClient, id: str) -> None:
    for path in (f"/workflows/{id}", f"/flows/{id}", f"/steps/{id}"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["field"]) == (400, "path.id"), answer.text


async def test_a_body_must_be_json_and_not_too_large(client: httpx2.AsyncClient) -> None:
    form = await client.post("/workflows", data={"workflow": "checkout"})
    assert (form.status_code, form.json()["code"]) == (415, "not_json")
    large = await client.post("/workflows", json={"workflow": "checkout", "args": ["x" * 5_000_000]})
    assert (large.status_code, large.json()["code"]) == (413, "too_large")
    value = await client.post("/workflows", json={"workflow": "checkout", "args": ["x" * 3_000_000]})
    assert (value.status_code, value.json()["code"]) == (413, "too_large")


async def test_a_method_that_is_not_there_says_which_are(client: httpx2.AsyncClient) -> None:
    answer = await client.delete("/workflows")
    assert (answer.status_code, answer.json()["code"]) == (405, "no_method")
    assert {one.strip() for one in answer.headers["allow"].split(",")} == {"GET", "HEAD", "POST"}
    assert (await client.head("/workflows/o-1")).status_code == 200
    assert (await client.get("/workflows/")).status_code == 404


async def test_a_cursor_that_no_feed_returned_is_refused(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/events?after=nowhere")
    assert (answer.status_code, answer.json()["field"]) == (400, "query.after")
    answer = await client.get("/events", headers={"last-event-id": "nowhere"})
    assert (answer.status_code, answer.json()["field"]) == (400, "header.last-event-id")
