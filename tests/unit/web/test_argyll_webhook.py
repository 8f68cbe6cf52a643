"""The webhook on the original's terms: what it refuses."""

import pytest

from support.argyll_client import argyll_served, script_step

PROBLEM = {"content-type": "application/problem+json"}


@pytest.mark.parametrize(
    ("path", "content", "headers"),
    [
        ("none/run/1-ab", b"{}", {}),
        ("f/none/1-ab", b"{}", {}),
        ("f/run/1-ab", b"{}", {}),
        ("f/run/token", b'{"detail": "no"}', PROBLEM),
        ("f/run/1-ab", b"[]", {}),
        ("f/run/1-ab", b"{", {}),
        ("f/run/1-ab", b"", {}),
        ("f/run/1-ab", b"7", PROBLEM),
    ],
)
async def test_an_answer_that_was_not_asked_for_or_is_no_object_is_refused(
    path: str, content: bytes, headers: dict[str, str]
) -> None:
    async with argyll_served() as served:
        await served.register(script_step("run", "return {done = value}", "value", outputs=("done",)))
        await served.start("f", "run", value=[1])
        answer = await served.http.post(f"/webhook/{path}", content=content, headers=headers)
        assert (answer.status_code, answer.json()["status"]) == (400, 400)
        assert (await served.ended("f"))["status"] == "completed"


@pytest.mark.parametrize(
    "headers", [{"host": "flows.example"}, {"x-forwarded-for": "10.0.0.1"}, {"origin": "https://shop.example"}]
)
async def test_a_service_may_answer_by_any_name_of_the_server_because_its_address_has_the_secret(
    headers: dict[str, str],
) -> None:
    """The public address of a server need not be one of loopback, and a proxy may be between."""
    async with argyll_served() as served:
        answer = await served.http.post("/webhook/f/run/1-ab", json={}, headers=headers)
        assert (answer.status_code, "no work item" in answer.text) == (400, True)
        guarded = await served.http.post("/engine/flow", json={}, headers=headers)
        assert guarded.status_code == 403
