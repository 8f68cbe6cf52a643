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
