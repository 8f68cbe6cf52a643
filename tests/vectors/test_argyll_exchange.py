"""What clients and services of Argyll say to its engine, said to this one: the same statuses and the same keys."""

import asyncio
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from resurgam import Engine, Registry
from resurgam.errors import ResurgamError
from resurgam.web import app
from support.listening import listening
from support.step_services import StepServices

RECORD: dict[str, Any] = json.loads(Path(__file__).with_name("argyll_exchange.json").read_text())
ZERO = "0001-01-01T00:00:00Z"
KINDS: dict[str, Any] = {
    "any": lambda value: True,
    "text": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "names": lambda value: value is None or (value and all(isinstance(one, str) for one in value)),
    "zero": lambda value: value == ZERO,
    "time": lambda value: value != ZERO and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", value),
}


def differences(shape: Any, value: Any, where: str = "answer") -> list[str]:
    """Return where a value has other keys than a shape, or a value of another kind."""
    if isinstance(shape, str) and shape.startswith("@"):
        return differences(RECORD["shapes"][shape[1:]], value, where)
    if isinstance(shape, str):
        fits = value == shape[1:] if shape.startswith("=") else KINDS[shape](value)
        return [] if fits else [f"{where} is {value!r}, not {shape}"]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{where} is {value!r}, not a list"]
        return [text for index, one in enumerate(value) for text in differences(shape[0], one, f"{where}[{index}]")]
    if not isinstance(value, dict):
        return [f"{where} is {value!r}, not an object"]
    rest = shape.get("*")
    known = {key.removesuffix("?"): one for key, one in shape.items() if key != "*"}
    required = {key for key in shape if key != "*" and not key.endswith("?")}
    found = [f"{where} has no {key!r}" for key in required - value.keys()]
    for key, one in value.items():
        if key not in known and rest is None:
            found.append(f"{where} has {key!r}")
        else:
            found += differences(known.get(key, rest), one, f"{where}.{key}")
    return found


@dataclass
class Scene:
    """An engine that is served on a socket, and services on another."""

    engine: Engine
    client: httpx2.AsyncClient
    services: StepServices
    services_url: str

    async def said(self, row: dict[str, Any]) -> httpx2.Response:
        """Make the request of a row, once what it comes after has happened."""
        match row.get("after", "").split():
            case ["flaky", "called"]:
                await self.services.flaky_called.wait()
            case [flow_id, "ended"]:
                with suppress(ResurgamError):
                    await self.engine.handle(flow_id).result(timeout=30)
            case _:
                pass
        body = json.dumps(row["body"]).replace("{services}", self.services_url) if "body" in row else None
        answer = await self.client.request(row["method"], row["path"], content=body)
        if row.get("after") == "flaky called":
            self.services.go_on.set()
        return answer


@dataclass(frozen=True)
class Played:
    """What came of the whole exchange: the answers by what was said, and what the services saw."""

    answers: dict[str, httpx2.Response]
    services: StepServices

    def state(self, flow_id: str) -> dict[str, Any]:
        """Return the last state of a flow."""
        rows = [row["say"] for row in RECORD["exchange"] if row["path"] == f"/engine/flow/{flow_id}"]
        state: dict[str, Any] = self.answers[rows[-1]].json()
        return state


async def _play() -> Played:
    services = StepServices(broken={"chain-1", "refuse-1"})
    async with (
        listening(services.app) as services_url,
        Engine("memory://", registry=Registry()) as engine,
        listening(app(engine, keys=False)) as url,
        httpx2.AsyncClient(base_url=url) as client,
    ):
        await engine.store.values.put("public-url", url.encode())
        scene = Scene(engine, client, services, services_url)
        answers = {row["say"]: await scene.said(row) for row in RECORD["exchange"]}
        answers["events"] = await client.get("/engine/flow/chain-1/events")
        await services.all_answered()
        return Played(answers, services)


@pytest.fixture(scope="module")
def played() -> Played:
    """Play the exchange once for all tests; nothing of it stays open."""
    return asyncio.run(_play())


@pytest.mark.parametrize("row", RECORD["exchange"], ids=lambda row: row["say"])
def test_a_request_gets_the_status_and_the_keys_of_the_original(played: Played, row: dict[str, Any]) -> None:
    answer = played.answers[row["say"]]
    assert answer.status_code == row["status"], answer.text
    assert answer.headers["content-type"].startswith("application/json")
    assert differences(row["keys"], answer.json()) == []


def test_services_are_called_with_the_arguments_alone(played: Played) -> None:
    made = [{"path": one.path, "flow": one.flow, "body": one.body} for one in played.services.calls]
    assert made == RECORD["calls"]


def test_every_call_has_the_headers_that_services_read(played: Played) -> None:
    """The original sent none of them but the address of the webhook."""
    for call in played.services.calls:
        assert call.headers["argyll-step-id"] == call.path.removeprefix("/")
        items = played.state(call.flow)["executions"][call.headers["argyll-step-id"]]["work_items"]
        assert list(items) == [call.headers["argyll-receipt-token"]]
        assert call.headers["content-type"] == "application/json"
        webhook = call.headers.get("argyll-webhook-url", "")
        assert (f"/webhook/{call.flow}/letter/" in webhook) == (call.path == "/letter")


def test_an_answer_by_the_webhook_counts_once_and_is_always_accepted(played: Played) -> None:
    assert played.services.webhooks == [(200, b"")] * 4
    [letter] = played.state("chain-1")["attributes"]["letter"]
    assert (letter["value"], letter["step"]) == ("Dear Ada", "letter")


def test_the_error_of_a_flow_names_the_step_that_failed(played: Played) -> None:
    missing, refused = played.state("missing-1")["error"], played.state("refuse-1")["error"]
    assert missing.startswith("step lookup failed: ")
    assert "no such user" in missing
    assert refused.startswith("step letter failed: ")
    assert "letter refused" in refused


def test_a_call_that_is_made_again_has_the_events_of_the_original(played: Played) -> None:
    events = [one for one in played.answers["events"].json()["events"] if one["data"].get("step_id") == "flaky"]
    work = [one["type"] for one in events if one["type"].startswith("work_")]
    assert work == ["work_started", "work_not_completed", "work_retry_scheduled", "work_started", "work_succeeded"]
    [retry] = [one["data"] for one in events if one["type"] == "work_retry_scheduled"]
    assert retry.keys() == {"flow_id", "step_id", "token", "retry_count", "next_retry_at", "error"}
    assert (retry["retry_count"], "the first attempt breaks" in retry["error"]) == (1, True)


def test_undeclared_results_are_dropped_and_defaults_filled_in(played: Played) -> None:
    state = played.state("chain-1")
    assert state["executions"]["lookup"]["outputs"] == {"name": "Ada"}
    assert state["executions"]["letter"]["inputs"] == {"name": "Ada", "score": 3, "greeting_word": "hello"}
    assert played.state("script-1")["executions"]["double"]["outputs"] == {"result": 21}


def test_the_secret_of_a_webhook_is_shown_nowhere(played: Played) -> None:
    urls = [call.headers["argyll-webhook-url"] for call in played.services.calls if call.path == "/letter"]
    assert len(urls) == 2
    for url in urls:
        secret = url.rsplit("/", 1)[1]
        assert not any(secret in answer.text for answer in played.answers.values())
