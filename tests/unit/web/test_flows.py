"""The routes of flows, plans, steps and workers."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from resurgam import Engine, Registry
from resurgam.store.records import HeldAttempt, HeldRun, HeldWork
from resurgam.testing.contract.live_workers import TTL, worker
from support.health import set_health
from support.web import served


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine("memory://", registry=Registry()) as made:
        yield made


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx2.AsyncClient]:
    async with served(engine) as made:
        yield made


def script(id: str, script: str, **roles: str) -> dict[str, Any]:
    """Return a step that is a CEL expression; *roles* are those of its attributes."""
    return {
        "id": id,
        "name": id.title(),
        "type": "script",
        "attributes": {name: {"role": role} for name, role in roles.items()},
        "script": {"language": "cel", "script": script},
    }


PRICE = script("price", "{'total': pieces * 3}", pieces="required", total="output")
BILL = script("bill", "{'text': 'pay ' + string(total)}", total="required", text="output")


async def registered(client: httpx2.AsyncClient, *steps: dict[str, Any]) -> None:
    for step in steps:
        answer = await client.post("/steps", json=step)
        assert answer.status_code == 201, answer.text


async def test_a_flow_runs_from_its_steps_to_its_result(client: httpx2.AsyncClient) -> None:
    await registered(client, PRICE, BILL)
    answer = await client.post("/flows", json={"goals": ["bill"], "init": {"pieces": 4}, "id": "f/1"})
    assert (answer.status_code, answer.headers["location"]) == (201, "/flows/f%2F1")
    ended = await client.get("/flows/f%2F1/result")
    assert (ended.status_code, ended.json()["result"]) == (200, {"text": "pay 12"})
    shown = (await client.get("/flows/f%2F1", params={"explain": "true"})).json()
    assert shown["attributes"]["total"][0]["value"] == 12
    assert shown["attributes"]["total"][0]["step"] == "price"
    assert {name: step["status"] for name, step in shown["steps"].items()} == {
        "price": "completed",
        "bill": "completed",
    }
    assert shown["steps"]["price"]["items"][0]["outputs"] == {"total": 12}
    assert shown["steps"]["bill"]["because"]
    events = (await client.get("/flows/f%2F1/events", params={"limit": 3})).json()
    assert events["entries"][0]["type"] == "flow_started"
    assert events["cursor"] is not None


async def test_a_start_is_idempotent_for_the_same_content_and_a_conflict_for_other(client: httpx2.AsyncClient) -> None:
    await registered(client, PRICE)
    body = {"goals": ["price"], "init": {"pieces": 4}, "id": "f-1"}
    first, second = await client.post("/flows", json=body), await client.post("/flows", json=body)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    other = await client.post("/flows", json=body | {"init": {"pieces": 5}})
    assert (other.status_code, other.json()["code"]) == (409, "already_exists")


async def test_a_start_says_what_is_missing_and_which_goal_is_unknown(client: httpx2.AsyncClient) -> None:
    await registered(client, PRICE, BILL)
    missing = await client.post("/flows", json={"goals": ["bill"]})
    assert (missing.status_code, missing.json()["field"]) == (400, "body.init")
    assert "pieces" in missing.json()["detail"]
    unknown = await client.post("/flows", json={"goals": ["nothing"]})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    assert "nothing" in unknown.json()["detail"]


async def test_a_plan_says_why_each_step_is_there_and_what_must_be_given(client: httpx2.AsyncClient) -> None:
    await registered(client, PRICE, BILL)
    plan = (await client.post("/plan", json={"goals": ["bill"]})).json()
    assert plan["missing"] == {"pieces": ["price"]}
    assert [(one["step"], one["status"], one["goal"]) for one in plan["steps"]] == [
        ("price", "planned", False),
        ("bill", "planned", True),
    ]
    assert all(one["why"] for one in plan["steps"])
    given = (await client.post("/plan", json={"goals": ["bill"], "init": {"total": 3}})).json()
    assert [one["step"] for one in given["steps"] if one["status"] == "excluded"] == ["price"]
    assert (await client.get("/flows")).json() == {"flows": [], "cursor": None}


async def test_flows_are_listed_and_are_no_workflows(client: httpx2.AsyncClient) -> None:
    await registered(client, PRICE)
    await client.post("/flows", json={"goals": ["price"], "init": {"pieces": 1}, "id": "f-1", "tags": {"team": "a"}})
    found = (await client.get("/flows", params={"tag": "team=a"})).json()["flows"]
    assert [(one["entity_id"], one["kind"], one["name"]) for one in found] == [("f-1", "flow", "price")]
    assert (await client.get("/workflows")).json()["workflows"] == []
    other = await client.get("/workflows/f-1")
    assert (other.status_code, other.json()["code"]) == (404, "other_kind")
    assert "/flows/f-1" in other.json()["detail"]


async def test_a_flow_is_paused_resumed_and_terminated(client: httpx2.AsyncClient) -> None:
    waiting = {"id": "w", "name": "W", "type": "workflow", "workflow": {"workflow": "nobody", "queue": "elsewhere"}}
    await registered(client, waiting)
    await client.post("/flows", json={"goals": ["w"], "id": "f-1"})
    assert (await client.post("/flows/f-1/pause", json={"reason": "audit"})).status_code == 200
    assert (await client.get("/flows/f-1")).json()["status"] == "paused"
    assert (await client.post("/flows/f-1/resume")).status_code == 200
    assert (await client.post("/flows/f-1/terminate", json={"reason": "stuck"})).status_code == 200
    ended = (await client.get("/flows/f-1/result")).json()
    assert (ended["status"], ended["error"]["message"]) == ("terminated", "stuck")
    assert (await client.post("/flows/f-1/cancel")).json()["code"] == "closed"


async def test_steps_are_added_replaced_listed_and_removed(client: httpx2.AsyncClient) -> None:
    await registered(client, PRICE, PRICE, BILL)
    changed = PRICE | {"name": "Another name"}
    assert (await client.post("/steps", json=changed)).json()["code"] == "already_exists"
    replaced = await client.put("/steps/price", json=changed)
    assert (replaced.status_code, replaced.json()["name"]) == (200, "Another name")
    assert (await client.get("/steps/price")).json() == replaced.json()
    first = (await client.get("/steps", params={"limit": 1})).json()
    rest = (await client.get("/steps", params={"cursor": first["cursor"]})).json()
    assert [step["id"] for step in first["steps"] + rest["steps"]] == ["bill", "price"]
    assert rest["cursor"] is None
    assert (await client.delete("/steps/price")).status_code == 204
    for method in ("GET", "DELETE"):
        assert (await client.request(method, "/steps/price")).status_code == 404
    assert (await client.put("/steps/price", json=PRICE)).status_code == 404


async def test_a_bad_step_is_refused_with_the_field(client: httpx2.AsyncClient) -> None:
    mismatch = await client.put("/steps/other", json=PRICE)
    assert (mismatch.status_code, mismatch.json()["field"]) == (400, "body.id")
    bad = await client.post("/steps", json=PRICE | {"attributes": {"total": {"role": "nothing"}}})
    assert bad.status_code == 400
    assert bad.json()["field"].startswith("body.attributes")
    incomplete = await client.post("/steps", json={"id": "x", "name": "X", "type": "script"})
    assert (incomplete.status_code, incomplete.json()["code"]) == (400, "bad_definition")


async def test_a_step_tells_the_health_of_its_service(engine: Engine, client: httpx2.AsyncClient) -> None:
    service = {"id": "svc", "name": "S", "type": "sync", "http": {"endpoint": "http://127.0.0.1:9/x"}}
    await registered(client, service)
    assert (await client.get("/steps/svc/health")).json() == {"status": "unknown", "error": ""}
    await set_health(engine, "svc", "unhealthy", "refused")
    assert (await client.get("/steps/svc/health")).json() == {"status": "unhealthy", "error": "refused"}
    assert (await client.get("/steps/none/health")).status_code == 404


async def test_workers_are_listed(engine: Engine, client: httpx2.AsyncClient) -> None:
    for _ in range(1000):
        found = (await client.get("/workers")).json()["workers"]
        if found:
            break
        await asyncio.sleep(0)  # the worker has not announced itself yet
    assert [one["queues"] for one in found] == [["default"]]
    assert set(found[0]["load"]) == {"loop", "process", "machine", "processors"}
    assert found[0]["held"] == {"instances": 0, "activities": 0, "oldest_instances": [], "oldest_activities": []}


async def test_workers_are_listed_with_what_they_hold(client: httpx2.AsyncClient, engine: Engine) -> None:
    """As they told it; one of an older version told nothing."""
    at = datetime(2026, 1, 31, 14, tzinfo=UTC)
    since = round(at.timestamp() * 1000)
    held = HeldWork(
        instances=9,
        activities=1,
        oldest_instances=(HeldRun(entity_id="o-1", name="order", since=since),),
        oldest_activities=(HeldAttempt(entity_id="r/1", workflow_id="o-1", name="pay", attempt=2, since=since),),
    )
    await engine.store.workers.announce(worker("busy", held=held), TTL)
    await engine.store.workers.announce(worker("old"), TTL)
    found = {one["worker_id"]: one for one in (await client.get("/workers")).json()["workers"]}
    assert found["busy"]["held"] == {
        "instances": 9,
        "activities": 1,
        "oldest_instances": [{"entity_id": "o-1", "name": "order", "since": "2026-01-31T14:00:00Z"}],
        "oldest_activities": [
            {"entity_id": "r/1", "workflow_id": "o-1", "name": "pay", "attempt": 2, "since": "2026-01-31T14:00:00Z"}
        ],
    }
    assert (found["old"]["load"], found["old"]["held"]) == (None, None)
