"""The original's routes for flows: starts, the whole state, plans and events."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.argyll_client import Served, argyll_served, script_step

ZERO = "0001-01-01T00:00:00Z"
TRIPLE = script_step("triple", "return {tripled = value * 3}", "value", outputs=("tripled",))
SHOW = script_step("show", "return {text = 'got ' .. tripled}", "tripled", outputs=("text",))


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with argyll_served() as made:
        yield made


async def test_a_flow_of_scripts_completes_and_its_whole_state_is_shown(served: Served) -> None:
    await served.register(TRIPLE, SHOW)
    started = await served.http.post(
        "/engine/flow",
        json={"id": " Chain 1!", "goals": ["show"], "init": {"value": [7]}, "labels": {"team": "a"}},
    )
    assert (started.status_code, started.json()) == (201, {"flow_id": "chain-1", "message": ""})
    state = await served.ended("chain-1")
    assert (state["id"], state["status"], state["labels"]) == ("chain-1", "completed", {"team": "a"})
    assert ZERO not in (state["created_at"], state["completed_at"], state["deactivated_at"], state["last_updated"])
    assert "error" not in state
    assert state["attributes"]["value"] == [{"value": 7, "set_at": state["created_at"]}]
    [text] = state["attributes"]["text"]
    assert (text["value"], text["step"]) == ("got 21", "show")
    execution = state["executions"]["triple"]
    assert execution.keys() == {
        *("status", "started_at", "completed_at", "inputs", "outputs", "duration", "work_items"),
    }
    assert (execution["status"], execution["inputs"], execution["outputs"]) == (
        *("completed", {"value": 7}, {"tripled": 21}),
    )
    [item] = execution["work_items"].values()
    assert item.keys() == {"status", "started_at", "completed_at", "next_retry_at", "inputs", "outputs"}
    assert (item["status"], item["inputs"], item["next_retry_at"]) == ("succeeded", {}, ZERO)
    assert state["plan"]["required"] is None
    assert state["plan"]["excluded"] == {}
    assert state["plan"]["attributes"]["text"] == {"providers": ["show"], "consumers": None}
    assert state["plan"]["attributes"]["value"] == {"providers": None, "consumers": ["triple"]}


async def test_what_has_not_happened_has_the_zero_time_and_no_inputs() -> None:
    async with argyll_served(worker=False) as served:
        await served.register(TRIPLE)
        await served.start("f", "triple", value=[7])
        state = await served.flow("f")
        assert (state["status"], state["completed_at"], state["deactivated_at"]) == ("active", ZERO, ZERO)
        waiting = {"status": "pending", "started_at": ZERO, "completed_at": ZERO, "inputs": None}
        assert state["executions"] == {"triple": waiting}
        await served.engine.handle("f").terminate("enough")
        state = await served.flow("f")
        assert (state["status"], state["error"]) == ("failed", "flow was terminated: enough")


async def test_the_same_start_again_is_answered_201_and_another_409(served: Served) -> None:
    await served.register(TRIPLE)
    statuses = [(await served.start("f", "triple", value=[one])).status_code for one in (7, 7, 8)]
    assert statuses == [201, 201, 409]
    refused = await served.start("f", "triple", value=[8])
    assert refused.json().keys() == {"error", "status"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"id": "f", "goals": ["none"]}, 404),
        ({"id": "f", "goals": ["triple"]}, 400),
        ({"id": "f", "goals": ["triple"], "init": {"value": []}}, 400),
        ({"id": "f", "goals": ["triple"], "init": {"value": None}}, 400),
        ({"id": "f", "goals": []}, 400),
        ({"id": "f", "goals": None}, 400),
        ({"id": "!", "goals": ["triple"]}, 400),
        ({"id": "f" * 257, "goals": ["triple"]}, 400),
        ({"id": "f", "goals": [f"g{n}" for n in range(65)]}, 400),
        ({"id": "f", "goals": ["triple"], "init": {f"v{n}": [1] for n in range(129)}}, 400),
        ({"id": "f", "goals": ["triple"], "init": {"value": 7}}, 400),
        ({"id": "f", "goals": ["triple"], "init": {"value": [7], "": [1]}}, 400),
        ({"id": "f", "goals": ["triple"], "labels": {f"l{n}": "" for n in range(33)}}, 400),
        ([], 400),
    ],
)
async def test_a_flow_that_cannot_start_is_refused(served: Served, body: Any, status: int) -> None:
    await served.register(TRIPLE)
    answer = await served.http.post("/engine/flow", json=body)
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert answer.json().keys() == {"error", "status"}


async def test_a_body_that_is_nested_too_deeply_is_refused(served: Served) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    for path in ("/engine/flow", "/webhook/f/run/1-ab"):
        answer = await served.http.post(path, content=b'{"id": "f", "goals": ["a"], "init": {"a": %b}}' % deep)
        assert (answer.status_code, answer.json()["status"]) == (400, 400)


async def test_missing_inputs_are_named(served: Served) -> None:
    await served.register(TRIPLE)
    answer = await served.start("f", "triple")
    assert answer.json()["error"].startswith("required inputs not provided: value")


async def test_an_unknown_flow_is_not_found_on_any_of_its_routes(served: Served) -> None:
    for path in ("/engine/flow/nope", "/engine/flow/nope/status", "/engine/flow/nope/events"):
        answer = await served.http.get(path)
        assert (answer.status_code, answer.json()) == (404, {"error": "flow not found: nope", "status": 404})


async def test_every_value_that_is_given_for_a_name_counts(served: Served) -> None:
    every = script_step("every", "return {sum = values[1] + values[2]}", outputs=("sum",))
    every["attributes"]["values"] = {"role": "required", "required": {"collect": "some"}}
    await served.register(every)
    await served.start("f", "every", values=[3, 4])
    state = await served.ended("f")
    assert [one["value"] for one in state["attributes"]["values"]] == [3, 4]
    assert state["executions"]["every"]["outputs"] == {"sum": 7}


async def test_the_error_of_a_flow_names_the_step_that_failed(served: Served) -> None:
    """With the original it named any of the steps that missed its output."""
    broken = script_step("zz-broken", "error('no such user')", "value", outputs=("a",))
    middle = script_step("middle", "return {b = a}", "a", outputs=("b",))
    goal = script_step("goal", "return {c = b}", "b", outputs=("c",))
    await served.register(broken, middle, goal)
    await served.start("f", "goal", value=[1])
    state = await served.ended("f")
    assert state["status"] == "failed"
    assert state["error"].startswith("step zz-broken failed: ")
    assert "no such user" in state["error"]
    events = (await served.http.get("/engine/flow/f/events")).json()["events"]
    [failed] = [one["data"] for one in events if one["type"] == "flow_failed"]
    assert failed == {"flow_id": "f", "error": state["error"]}
    for step_id in ("middle", "goal"):
        execution = state["executions"][step_id]
        assert (execution["status"], execution["inputs"], execution["started_at"]) == ("failed", {}, ZERO)
        assert "no longer available" in execution["error"]


async def test_lua_and_paths_work_in_predicates_matches_and_mappings(served: Served) -> None:
    lua = {"language": "lua", "script": "value > 2"}
    step = script_step("pick", "return {out = {inner = n}}", predicate={"language": "lua", "script": "return n < 100"})
    step["attributes"] = {
        "order": {
            "role": "required",
            "required": {
                "match": {"language": "jpath", "script": "$.total"},
                "mapping": {"name": "n", "script": {"language": "jpath", "script": "$.total"}},
            },
        },
        "big": {"role": "required", "required": {"match": lua | {"script": "return value > 2"}}},
        "picked": {
            "role": "output",
            "output": {"mapping": {"name": "out", "script": {"language": "jpath", "script": "$.out.inner"}}},
        },
        "plus": {
            "role": "output",
            "output": {"mapping": {"script": {"language": "lua", "script": "return result.out.inner + 1"}}},
        },
    }
    await served.register(step)
    await served.start("f", "pick", order=[{"total": 7}], big=[1, 3])
    state = await served.ended("f")
    assert state["executions"]["pick"]["outputs"] == {"picked": 7, "plus": 8}
    assert state["executions"]["pick"]["inputs"] == {"n": 7, "big": 3}


async def test_a_skipped_step_tells_the_reason_as_its_error(served: Served) -> None:
    await served.register({**TRIPLE, "predicate": {"language": "lua", "script": "return value > 9"}})
    await served.start("f", "triple", value=[1])
    execution = (await served.ended("f"))["executions"]["triple"]
    assert (execution["status"], execution["error"]) == ("skipped", "predicate returned false")


async def test_a_plan_tells_what_is_missing_and_why_steps_are_left_out(served: Served) -> None:
    await served.register(TRIPLE, SHOW)
    whole = (await served.http.post("/engine/plan", json={"goals": ["show"]})).json()
    assert whole.keys() == {"goals", "required", "steps", "attributes", "excluded"}
    assert (whole["goals"], whole["required"], sorted(whole["steps"])) == (["show"], ["value"], ["show", "triple"])
    given = (await served.http.post("/engine/plan", json={"goals": ["show"], "init": {"tripled": [1]}})).json()
    assert (given["required"], given["excluded"]) == (None, {"satisfied": {"triple": ["tripled"]}})
    unnamed = {"goals": ["show"], "init": {"": [1]}}
    for body, status in (({"goals": []}, 400), ({}, 400), (unnamed, 400), ({"goals": ["none"]}, 404)):
        answer = await served.http.post("/engine/plan", json=body)
        assert (answer.status_code, answer.json()["status"]) == (status, status)


async def test_a_plan_holds_those_of_its_flow_steps_and_a_child_is_a_flow_of_its_own(served: Served) -> None:
    child = {
        "id": "child",
        "name": "Child",
        "type": "flow",
        "flow": {"goals": ["show"]},
        "attributes": {"value": {"role": "required"}, "text": {"role": "output"}},
    }
    await served.register(TRIPLE, SHOW, child)
    await served.start("f", "child", value=[2])
    state = await served.ended("f")
    assert state["attributes"]["text"][0]["value"] == "got 6"
    assert sorted(state["plan"]["children"]["child"]["steps"]) == ["show", "triple"]
    [token] = state["executions"]["child"]["work_items"]
    below = await served.ended(token)
    assert (below["status"], below["metadata"]["parent_flow_id"]) == ("completed", "f")
    assert [one["id"] for one in (await served.http.get("/engine/flow")).json()] == ["f"]


async def test_the_events_of_a_flow_have_the_names_and_fields_of_the_original(served: Served) -> None:
    await served.register(TRIPLE)
    await served.start("f", "triple", value=[7])
    token = next(iter((await served.ended("f"))["executions"]["triple"]["work_items"]))
    listed = (await served.http.get("/engine/flow/f/events")).json()
    events = listed["events"]
    assert [one["sequence"] for one in events] == list(range(listed["count"]))
    assert all(one["aggregate_id"] == ["flow", "f"] and one["data"]["flow_id"] == "f" for one in events)
    data = {one["type"]: {**one["data"], "flow_id": ""} for one in events}
    work = {"flow_id": "", "step_id": "triple", "token": token}
    assert data["flow_started"]["init"] == {"value": [7]}
    assert sorted(data["flow_started"]["plan"]["steps"]) == ["triple"]
    assert data["step_started"] == {
        "flow_id": "",
        "step_id": "triple",
        "inputs": {"value": 7},
        "work_items": {token: {}},
    }
    assert data["work_started"] == {**work, "inputs": {"value": 7}}
    assert data["work_succeeded"] == {**work, "outputs": {"tripled": 21}}
    assert data["attribute_set"] == {"flow_id": "", "step_id": "triple", "key": "tripled", "value": 21}
    assert data["step_completed"].keys() == {"flow_id", "step_id", "outputs", "duration"}
    assert data["flow_completed"] == {"flow_id": "", "result": {"tripled": 21}}
    assert data["flow_deactivated"] == {"flow_id": "", "status": "completed"}
