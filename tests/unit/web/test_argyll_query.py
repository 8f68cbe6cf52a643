"""Lists of flows on the original's routes: filters, the order, and pages."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from resurgam.web.argyll import query
from support.argyll_client import Served, argyll_served, script_step

RUN = script_step("run", "if value == 0 then error('zero') end return {done = value}", "value", outputs=("done",))


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """Three flows that have ended, in this order, and one that waits."""
    async with argyll_served() as made:
        await made.register(RUN)
        for flow_id, value in (("b-1", 1), ("a-2", 0), ("b-3", 1)):
            body = {"id": flow_id, "goals": ["run"], "init": {"value": [value]}, "labels": {"team": flow_id[0]}}
            await made.http.post("/engine/flow", json=body)
            await made.ended(flow_id)
        await made.engine.start_flow(["run"], {"value": 1}, id="a-4", queue="nobody")
        yield made


async def asked(served: Served, **body: Any) -> dict[str, Any]:
    answer = await served.http.post("/engine/flow/query", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ids(found: dict[str, Any]) -> list[str]:
    return [one["id"] for one in found["flows"]]


async def test_the_active_flows_come_first_and_the_others_by_the_time_of_their_end(served: Served) -> None:
    found = await asked(served)
    assert found.keys() == {"flows", "count", "total", "has_more", "next_cursor"}
    assert (found["count"], found["total"], found["has_more"], found["next_cursor"]) == (4, 4, False, "")
    assert ids(found)[0] == "a-4"
    assert sorted(ids(found)) == ["a-2", "a-4", "b-1", "b-3"]
    times = [one["timestamp"] for one in found["flows"][1:]]
    assert times == sorted(times)
    assert found["flows"][0].keys() == {"id", "status", "timestamp"}
    latest = await asked(served, sort="recent_desc")
    times = [one["timestamp"] for one in latest["flows"][1:]]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"statuses": ["active"]}, {"a-4"}),
        ({"statuses": ["failed", "completed"]}, {"b-1", "a-2", "b-3"}),
        ({"id_prefix": "b-"}, {"b-1", "b-3"}),
        ({"labels": {"team": "a"}}, {"a-2"}),
        ({"labels": {"team": "a"}, "statuses": ["completed"]}, set()),
        ({"statuses": None, "labels": None, "id_prefix": "", "cursor": "", "sort": "", "limit": 0}, None),
    ],
)
async def test_flows_are_filtered(served: Served, filters: dict[str, Any], expected: set[str] | None) -> None:
    found = await asked(served, **filters)
    assert set(ids(found)) == ({"a-4", "b-1", "a-2", "b-3"} if expected is None else expected)
    assert found["total"] == len(found["flows"])


@pytest.mark.parametrize("sort", ["recent_asc", "recent_desc"])
async def test_pages_join_to_the_whole_list(served: Served, sort: str) -> None:
    whole, pages, cursor = ids(await asked(served, sort=sort)), [], ""
    while True:
        page = await asked(served, sort=sort, limit=1, cursor=cursor)
        assert (page["count"], page["total"]) == (1, 4)
        pages += ids(page)
        if not page["has_more"]:
            break
        cursor = page["next_cursor"]
    assert pages == whole


@pytest.mark.parametrize(
    "filters",
    [{"limit": -1}, {"limit": 1001}, {"sort": "name"}, {"statuses": ["gone"]}, {"cursor": "?"}, {"cursor": "e30"}],
)
async def test_a_filter_that_makes_no_sense_is_refused(served: Served, filters: dict[str, Any]) -> None:
    answer = await served.http.post("/engine/flow/query", json=filters)
    assert (answer.status_code, answer.json()["status"]) == (400, 400)


async def test_all_flows_are_listed_newest_first(served: Served) -> None:
    listed = (await served.http.get("/engine/flow")).json()
    assert all(one.keys() == {"id", "status", "timestamp"} for one in listed)
    times = [one["timestamp"] for one in listed]
    assert times == sorted(times, reverse=True)
    assert {one["id"]: one["status"] for one in listed} == {
        "a-4": "active",
        "b-3": "completed",
        "a-2": "failed",
        "b-1": "completed",
    }


async def test_others_go_on_between_the_pages_of_a_long_list(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_PAGE", 1)
    listing = asyncio.ensure_future(query.roots(served.engine, {}))
    turns = 0
    while not listing.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(listing.result()) == 4
    assert turns >= 4
