"""The routes of workflows: what each does, and what it says if it cannot."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from resurgam import Context, Engine, Registry
from resurgam.web import app
from resurgam.web.instances import PAGE_BYTES
from support.web import basket_code, served


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with Engine("memory://", registry=basket_code()) as engine, served(engine) as made:
        yield made


async def started(client: httpx2.AsyncClient, id: str = "b-1", **fields: Any) -> Any:
    answer = await client.post("/workflows", json={"workflow": "basket", "args": ["ann"], "id": id, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def add(client: httpx2.AsyncClient, *items: str, id: str = "b-1") -> None:
    for item in items:
        answer = await client.post(f"/workflows/{id}/signals/add", json={"value": item})
        assert answer.status_code == 200, answer.text


async def once(client: httpx2.AsyncClient, holds: Callable[[Any], bool]) -> Any:
    """Return the basket as it is shown once something holds of it."""
    for _ in range(1000):
        shown = (await client.get("/workflows/b-1")).json()
        if holds(shown):
            return shown
        await asyncio.sleep(0)  # the request may not have let the worker run
    raise AssertionError(shown)


async def test_a_workflow_runs_from_its_start_to_its_result(client: httpx2.AsyncClient) -> None:
    ids = await started(client, tags={"team": "shop"})
    await add(client, "tea", "milk", "done")

    shown = await once(client, lambda shown: any(work["kind"] == "promise" for work in shown["pending"]))
    assert (shown["status"], shown["input"], shown["tags"]) == ("running", ["ann"], {"team": "shop"})
    [promise] = (work["entity_id"] for work in shown["pending"] if work["kind"] == "promise")

    waiting = await client.get("/workflows/b-1/result", params={"timeout": 0})
    assert (waiting.status_code, waiting.json()["status"], waiting.json()["result"]) == (202, "running", None)
    awaited = asyncio.create_task(client.get("/workflows/b-1/result"))
    for _ in range(50):  # until it waits
        await asyncio.sleep(0)
    assert (await client.post(f"/promises/{quote(promise, safe='')}", json={"value": 42})).json()["first"]
    ended = await awaited
    assert (ended.status_code, ended.json()["status"]) == (200, "completed")
    assert (await client.get("/workflows/b-1/result")).json() == ended.json()
    assert ended.json()["result"] == {"owner": "ann", "items": ["tea", "milk"], "packed": "packed", "paid": 42}
    assert ended.json()["run_id"] == ids["run_id"]
    assert (await client.get("/workflows/b-1")).json()["result"]["paid"] == 42


async def test_a_start_names_what_it_has_started(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/workflows", json={"workflow": "basket", "args": ["ann"], "id": "a/b c"})
    assert answer.headers["location"] == "/workflows/a%2Fb%20c"
    assert (await client.get(answer.headers["location"])).json()["entity_id"] == "a/b c"


async def test_a_second_start_of_an_open_id_is_a_conflict_unless_it_attaches(client: httpx2.AsyncClient) -> None:
    first = await started(client)
    again = await client.post("/workflows", json={"workflow": "basket", "args": ["ann"], "id": "b-1"})
    assert (again.status_code, again.json()["code"]) == (409, "already_exists")
    assert await started(client, if_exists="attach") == first
    assert (await started(client, if_exists="replace"))["run_id"] != first["run_id"]


async def test_a_failed_workflow_says_why_and_can_be_retried(client: httpx2.AsyncClient) -> None:
    await started(client)
    await add(client, "done")
    ended = await client.get("/workflows/b-1/result")
    assert (ended.status_code, ended.json()["status"]) == (200, "failed")
    assert ended.json()["error"]["type"].endswith("ValueError")
    assert ended.json()["error"]["message"] == "an empty basket"
    assert (await client.post("/workflows/b-1/retry")).json() == {"entity_id": "b-1", "revived": 1}
    assert (await client.get("/workflows/b-1/result")).json()["status"] == "failed"


async def test_queries_and_updates_reach_the_code(client: httpx2.AsyncClient) -> None:
    await started(client)
    await add(client, "tea", "milk")
    counted = await client.post("/workflows/b-1/queries/count", json={"args": [3]})
    assert (counted.status_code, counted.json()) == (200, {"result": 6})
    dropped = await client.post("/workflows/b-1/updates/drop", json={"args": ["tea"], "id": "d-1"})
    assert dropped.json() == {"result": 1}
    again = await client.post("/workflows/b-1/updates/drop", json={"args": ["tea"], "id": "d-1"})
    assert again.json() == {"result": 1}
    accepted = await client.post("/workflows/b-1/updates/drop", json={"args": ["milk"], "wait": "accepted"})
    assert (accepted.status_code, accepted.json()["entity_id"]) == (202, "b-1")
    await add(client, "jam")
    await client.post("/workflows/b-1/pause")
    late = await client.post("/workflows/b-1/updates/drop", json={"id": "n-1", "timeout": 0})
    assert (late.status_code, late.json()) == (202, {"entity_id": "b-1", "update_id": "n-1"})
    unnamed = await client.post("/workflows/b-1/updates/drop", json={"args": ["jam"], "timeout": 0})
    assert unnamed.status_code == 202
    await client.post("/workflows/b-1/resume")
    followed = await client.post("/workflows/b-1/updates/drop", json={"id": unnamed.json()["update_id"]})
    assert (followed.status_code, followed.json()) == (200, {"result": 0})


async def test_what_a_handler_raises_is_not_an_error_of_the_server(client: httpx2.AsyncClient) -> None:
    await started(client)
    broken = await client.post("/workflows/b-1/queries/broken")
    assert (broken.status_code, broken.json()["code"]) == (422, "handler_failed")
    assert "the handler is broken" in broken.json()["detail"]
    rejected = await client.post("/workflows/b-1/updates/drop", json={"args": ["coffee"]})
    assert (rejected.status_code, rejected.json()["code"]) == (422, "update_rejected")
    unknown = await client.post("/workflows/b-1/queries/nothing")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")


async def test_a_workflow_is_paused_resumed_cancelled_and_terminated(client: httpx2.AsyncClient) -> None:
    await started(client)
    assert (await client.post("/workflows/b-1/resume")).json()["code"] == "wrong_state"
    assert (await client.post("/workflows/b-1/pause", json={"reason": "audit"})).status_code == 200
    assert (await client.get("/workflows/b-1")).json()["status"] == "paused"
    assert (await client.post("/workflows/b-1/resume")).status_code == 200
    assert (await client.post("/workflows/b-1/cancel", json={"reason": "sold out"})).status_code == 200
    assert (await client.get("/workflows/b-1/result")).json()["status"] == "cancelled"
    await started(client, "b-2")
    assert (await client.post("/workflows/b-2/terminate")).json() == {"entity_id": "b-2", "action": "terminate"}
    for verb in ("cancel", "terminate", "pause", "resume", "signals/add"):
        answer = await client.post(f"/workflows/b-2/{verb}")
        assert (answer.status_code, answer.json()["code"]) == (409, "closed")


async def test_the_list_has_pages_and_filters(client: httpx2.AsyncClient) -> None:
    for number in range(5):
        await started(client, f"b-{number}", tags={"half": str(number % 2)})
    found: list[str] = []
    cursor: str | None = None
    while cursor or not found:
        page = (await client.get("/workflows", params={"limit": 2} | ({"cursor": cursor} if cursor else {}))).json()
        found += [one["entity_id"] for one in page["workflows"]]
        cursor = page["cursor"]
    assert sorted(found) == [f"b-{number}" for number in range(5)]
    odd = (await client.get("/workflows", params={"tag": ["half=1"], "status": "running"})).json()
    assert {one["entity_id"] for one in odd["workflows"]} == {"b-1", "b-3"}
    none = await client.get("/workflows", params={"until": "2001-01-01T00:00:00Z", "name": "basket"})
    assert none.json() == {"workflows": [], "cursor": None}


async def test_a_history_is_read_in_pages_of_one_execution(client: httpx2.AsyncClient) -> None:
    ids = await started(client)
    await add(client, "done")
    await client.get("/workflows/b-1/result")
    first = (await client.get("/workflows/b-1/history", params={"limit": 2})).json()
    await client.post("/workflows/b-1/retry")
    rest = (await client.get("/workflows/b-1/history", params={"cursor": first["cursor"]})).json()
    assert rest["execution_id"] == first["execution_id"] == ids["execution_id"]
    entries = first["entries"] + rest["entries"]
    assert [one["seq"] for one in entries] == list(range(1, len(entries) + 1))
    assert (entries[0]["type"], entries[0]["event"]["input"]) == ("workflow_started", ["ann"])
    assert rest["cursor"] is None
    whole = (
        await client.get("/workflows/b-1/history", params={"execution": ids["execution_id"], "forgotten": "true"})
    ).json()
    assert whole["entries"] == entries


async def test_the_tree_shows_children(client: httpx2.AsyncClient) -> None:
    await started(client)
    await add(client, "tea", "done")
    await once(client, lambda shown: bool(shown["state"]))
    tree = (await client.get("/workflows/b-1/tree")).json()
    [run] = tree["runs"]
    assert [one["workflow"]["name"] for one in run["children"]] == ["child"]


async def test_a_tree_that_is_too_deep_for_one_answer_is_refused_and_others_go_on_meanwhile() -> None:
    registry = Registry()

    @registry.workflow
    async def down(ctx: Context, levels: int) -> None:
        if levels:
            await ctx.workflow(down, levels - 1)

    async with Engine("memory://", registry=registry) as engine, served(engine) as client:
        await engine.execute(down, 300, id="deep")
        await engine.execute(down, 20, id="flat")
        reading = asyncio.ensure_future(engine.handle("flat").tree())
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 20
        refused = await client.get("/workflows/deep/tree")
        assert (refused.status_code, refused.json()["code"]) == (422, "too_deep")


async def test_what_is_not_there_or_of_another_kind_is_not_found(client: httpx2.AsyncClient) -> None:
    missing = await client.get("/workflows/nothing")
    assert (missing.status_code, missing.json()["field"]) == (404, "path.id")
    step = {"id": "one", "name": "One", "type": "script", "script": {"language": "cel", "script": "{'one': 1}"}}
    assert (await client.post("/steps", json=step)).status_code == 201
    for verb in ("terminate", "cancel", "pause"):
        other = await client.post(f"/workflows/catalog/{verb}")
        assert (other.status_code, other.json()["code"]) == (404, "other_kind")
    unknown = await client.post("/workflows", json={"workflow": "nothing"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")


async def test_a_value_of_python_is_plain_json(client: httpx2.AsyncClient) -> None:
    await client.post("/workflows", json={"workflow": "moment", "id": "m"})
    assert (await client.get("/workflows/m/result")).json()["result"] == "2026-01-02T00:00:00Z"


async def test_a_wait_for_a_result_ends_when_the_server_is_about_to_stop() -> None:
    async with Engine("memory://", registry=basket_code()) as engine:
        made = app(engine, keys=False)
        transport = httpx2.ASGITransport(app=made)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await started(client)
            waiting = asyncio.ensure_future(client.get("/workflows/b-1/result", params={"timeout": 60}))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waiting.done()
            made.state.drain.begin()
            assert (await asyncio.wait_for(waiting, 10)).status_code == 202


async def test_a_wait_for_a_result_ends_when_its_caller_leaves() -> None:
    sent: list[Any] = []
    received = iter([{"type": "http.request", "body": b""}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(received)

    async def send(message: Any) -> None:
        sent.append(message)

    async with Engine("memory://", registry=basket_code()) as engine:
        await engine.start("basket", "ann", id="b-1")
        path = "/workflows/b-1/result"
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"timeout=60",
            "headers": [(b"host", b"localhost")],
            "server": ("localhost", 80),
            "scheme": "http",
        }
        await asyncio.wait_for(app(engine, keys=False)(scope, receive, send), 10)
    assert sent[0]["status"] == 202


async def test_a_page_of_a_history_ends_when_its_entries_are_large(client: httpx2.AsyncClient) -> None:
    await started(client)
    for _ in range(6):
        await add(client, "x" * 1_500_000)
    await once(client, lambda shown: shown["history_length"] >= 8)
    sizes, cursor = [], None
    while cursor or not sizes:
        params = {"cursor": cursor} if cursor else {}
        answer = await client.get("/workflows/b-1/history", params={"forgotten": "true", **params})
        sizes.append(len(answer.content))
        cursor = answer.json()["cursor"]
    assert len(sizes) > 2
    assert max(sizes) < PAGE_BYTES + 1_600_000
