"""The original's routes for steps: ids are cleaned, retries filled in, errors have its shape."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from resurgam import Registry
from resurgam.flows import StepDecorator
from support.argyll_client import argyll_served, script_step
from support.health import set_health

RETRIES = {"max_retries": 10, "init_backoff": 1000, "max_backoff": 60000, "backoff_type": "exponential"}
DOUBLE = script_step("double", "return {result = value * 2}", "value", outputs=("result",))


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with argyll_served() as served:
        yield served.http


async def test_a_step_is_answered_as_sent_and_listed_with_the_retries_of_the_original(
    client: httpx2.AsyncClient,
) -> None:
    answer = await client.post("/engine/step", json=DOUBLE)
    assert answer.status_code == 201
    assert answer.json() == {"message": "Step registered", "step": DOUBLE}
    listed = {**DOUBLE, "work_config": RETRIES}
    assert (await client.get("/engine/step")).json() == {"steps": [listed], "count": 1}
    assert (await client.get("/engine/step/double")).json() == listed


async def test_retries_that_a_step_gives_are_kept(client: httpx2.AsyncClient) -> None:
    work = {"max_retries": -1, "init_backoff": 90_000, "backoff_type": "fixed", "parallelism": 3}
    await client.post("/engine/step", json={**DOUBLE, "work_config": work})
    shown = (await client.get("/engine/step/double")).json()["work_config"]
    assert shown == {**work, "max_backoff": 90_000}


async def test_the_id_of_a_step_is_cleaned(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/engine/step", json={**DOUBLE, "id": " Double It! "})
    assert answer.json()["step"]["id"] == "double-it"
    assert (await client.get("/engine/step/Double It")).status_code == 200
    refused = await client.post("/engine/step", json={**DOUBLE, "id": "!!"})
    assert (refused.status_code, refused.json()["status"]) == (400, 400)


async def test_an_equal_step_is_registered_again_and_a_different_one_conflicts(client: httpx2.AsyncClient) -> None:
    other = script_step("double", "return {result = value * 3}", "value", outputs=("result",))
    statuses = [(await client.post("/engine/step", json=one)).status_code for one in (DOUBLE, DOUBLE, other)]
    assert statuses == [201, 201, 409]
    updated = await client.put("/engine/step/double", json=other)
    assert (updated.status_code, updated.json()["message"]) == (200, "Step updated")
    assert (await client.get("/engine/step/double")).json()["script"] == other["script"]


async def test_a_step_is_removed_once(client: httpx2.AsyncClient) -> None:
    await client.post("/engine/step", json=DOUBLE)
    gone = await client.delete("/engine/step/double")
    assert (gone.status_code, gone.json()) == (200, {"message": "Step unregistered"})
    for method in ("DELETE", "GET"):
        again = await client.request(method, "/engine/step/double")
        assert (again.status_code, again.json()) == (404, {"error": "step not found: double", "status": 404})
    assert (await client.put("/engine/step/double", json=DOUBLE)).status_code == 404


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"script": {"language": "ale", "script": "{:result (* value 2)}"}}, "script: the language 'ale'"),
        ({"predicate": {"language": "ale", "script": "true"}}, "predicate: the language 'ale'"),
        ({"script": {"language": "lua", "script": "return ("}}, "script"),
        ({"script": {"language": "jpath", "script": "$.a"}}, "'jpath' is for"),
        ({"script": {"language": "basic", "script": "1"}}, "'basic'"),
        ({"type": "python"}, "'python'"),
        ({"name": ""}, "name is empty"),
        ({"type": "flow", "script": None, "flow": {"goals": ["!"]}}, "a goal"),
        ({"http": {"endpoint": "http://127.0.0.1/x"}}, "no 'http'"),
        ({"attributes": {"a": {"role": "input"}}}, "role"),
        ({"attributes": {"a": {"role": "output", "required": {}}}}, "takes no 'required'"),
        ({"attributes": {"a": {"role": "required", "type": "date"}}}, "date"),
        ({"attributes": {"a": {"role": "required", "required": {"collect": "most"}}}}, "most"),
        ({"attributes": {"a": {"role": "const", "const": {"value": "{"}}}}, "not JSON"),
        ({"work_config": {"parallelism": -1}}, "parallelism"),
        ({"attributes": 7}, "attributes"),
    ],
)
async def test_a_step_that_cannot_run_is_refused_with_the_reason(
    client: httpx2.AsyncClient, changes: dict[str, Any], told: str
) -> None:
    answer = await client.post("/engine/step", json={**DOUBLE, **changes})
    assert answer.status_code == 400
    assert answer.json().keys() == {"error", "status"}
    assert told in answer.json()["error"]
    assert (await client.get("/engine/step")).json()["count"] == 0


async def test_a_body_that_is_no_json_or_too_large_is_refused(client: httpx2.AsyncClient) -> None:
    broken = await client.post("/engine/step", content=b"{")
    assert (broken.status_code, broken.json()["status"]) == (400, 400)
    large = await client.post("/engine/step", content=b" " * (512 * 1024 + 1))
    assert (large.status_code, large.json()["status"]) == (413, 413)
    other = await client.put("/engine/step/triple", json=DOUBLE)
    assert (other.status_code, "triple" in other.json()["error"]) == (400, True)


async def test_unknown_and_empty_fields_are_ignored_as_the_original_does(client: httpx2.AsyncClient) -> None:
    extra = {"http": None, "labels": None, "predicate": None, "memoizable": False, "colour": "red", "work_config": {}}
    answer = await client.post("/engine/step", json={**DOUBLE, **extra}, headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()["step"]) == (201, DOUBLE)


async def test_a_path_that_the_original_does_not_have_is_refused_in_its_shape(client: httpx2.AsyncClient) -> None:
    for method, path in (("GET", "/engine/nothing"), ("PATCH", "/engine/step"), ("DELETE", "/engine/flow")):
        answer = await client.request(method, path)
        assert (answer.status_code, answer.json().keys()) == (404, {"error", "status"})


async def test_the_catalog_tells_its_steps_attributes_and_changes(client: httpx2.AsyncClient) -> None:
    empty = (await client.get("/engine/catalog")).json()
    assert empty == {"steps": {}, "attributes": {}, "last_updated": "0001-01-01T00:00:00Z"}
    await client.post("/engine/step", json=DOUBLE)
    shown = (await client.get("/engine/catalog")).json()
    assert shown["steps"] == {"double": {**DOUBLE, "work_config": RETRIES}}
    assert shown["attributes"] == {
        "result": {"providers": ["double"], "consumers": None},
        "value": {"providers": None, "consumers": ["double"]},
    }
    await client.delete("/engine/step/double")
    told = (await client.get("/engine/catalog/events")).json()
    assert [(one["sequence"], one["type"], one["aggregate_id"]) for one in told["events"]] == [
        (0, "step_registered", ["catalog"]),
        (1, "step_unregistered", ["catalog"]),
    ]
    assert told["count"] == 2
    assert told["events"][1]["data"] == {"step_id": "double"}


async def test_the_engine_tells_the_health_of_every_step(client: httpx2.AsyncClient) -> None:
    await client.post("/engine/step", json=DOUBLE)
    whole = (await client.get("/engine")).json()
    assert whole.keys() == {"steps", "attributes", "health", "last_updated"}
    [node] = whole["health"].values()
    assert node["health"] == {"double": {"status": "healthy"}}
    listed = (await client.get("/engine/health")).json()
    assert list(listed["health"].values()) == [{"double": {"status": "healthy"}}]
    assert listed["nodes"] == whole["health"] == (await client.get("/engine/cluster")).json()["nodes"]
    assert (await client.get("/engine/health/double")).json() == {"status": "healthy"}
    assert (await client.get("/engine/health/none")).status_code == 404
    assert (await client.get("/engine/cluster/events")).json() == {"events": [], "count": 0}


async def test_the_health_of_a_service_is_told_with_its_changes() -> None:
    service = {"endpoint": "http://127.0.0.1:9/call", "health_check": "http://127.0.0.1:9/health"}
    step = {"id": "call", "name": "Call", "type": "async", "attributes": {}, "http": service}
    async with argyll_served(worker=False) as served:
        registered = await served.http.post("/engine/step", json=step)
        assert registered.json()["step"]["http"] == {**service, "timeout": 0}
        assert (await served.http.get("/engine/health/call")).json() == {"status": "unknown"}
        await set_health(served.engine, "call", "unhealthy", "HTTP 503")
        assert (await served.http.get("/engine/health/call")).json() == {"status": "unhealthy", "error": "HTTP 503"}
        [event] = (await served.http.get("/engine/cluster/events")).json()["events"]
        assert (event["sequence"], event["type"], event["aggregate_id"]) == (0, "step_health_changed", ["cluster"])
        assert event["data"] == {
            "node_id": "resurgam",
            "step_id": "call",
            "status": "unhealthy",
            "error": "HTTP 503",
        }
        assert (await served.http.get("/engine/catalog/events")).json()["count"] == 1
        below = {"id": "below", "name": "Below", "type": "flow", "flow": {"goals": ["call"]}}
        lost = {"id": "lost", "name": "Lost", "type": "flow", "flow": {"goals": ["gone"]}}
        await served.register(below, lost)
        assert (await served.http.get("/engine/health/below")).json()["status"] == "unhealthy"
        assert (await served.http.get("/engine/health/lost")).json()["status"] == "unknown"


async def test_the_health_of_the_server_has_all_that_the_original_tells(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/health")
    assert answer.headers["x-argyll-raft-state"] == "leader"
    assert answer.json().keys() >= {"service", "status", "details"}
    assert answer.json()["details"]["websocket"] == {"clients": 0}
    assert answer.json()["details"]["backend"].keys() == {"type", "state", "leader_id", "leader_address"}


async def test_a_function_is_listed_as_a_sync_step_and_cannot_be_registered() -> None:
    registry = Registry()

    @StepDecorator(registry)
    async def price(item: str) -> int:
        return len(item)

    async with argyll_served(registry=registry) as served:
        shown = (await served.http.get("/engine/step/price")).json()
        assert (shown["type"], shown["python"]["activity"]) == ("sync", "price")
        assert (await served.http.put("/engine/step/price", json=shown)).status_code == 400


async def test_a_page_of_another_site_cannot_use_these_routes(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/engine/step", json=DOUBLE, headers={"origin": "http://elsewhere.example"})
    assert (answer.status_code, answer.json()["status"]) == (403, 403)


@pytest.mark.parametrize(
    ("options", "status"),
    [({"keys": True}, 404), ({"keys": True, "argyll": True}, 201), ({"argyll": False}, 404), ({}, 201)],
)
async def test_where_keys_are_needed_these_routes_are_served_only_on_request(
    options: dict[str, bool], status: int
) -> None:
    async with argyll_served(worker=False, **options) as served:
        assert (await served.http.post("/engine/step", json=DOUBLE)).status_code == status
        assert (await served.http.get("/workflows")).status_code == (401 if options.get("keys") else 200)
