"""The webhook: the answers of async steps, by an address that needs no key."""

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from resurgam import Engine, Registry
from resurgam.core.errors import WorkflowFailed
from resurgam.flows import model as m
from resurgam.flows.services import PUBLIC_URL
from resurgam.web import app
from support.limits import HANGS
from support.listening import listening

FLOW = "shop/7 é"
PROBLEM = {"content-type": "application/problem+json"}


class Paying:
    """A flow that waits for the answer of its service: *url* is where it is expected."""

    def __init__(self, engine: Engine, client: httpx2.AsyncClient, url: str) -> None:
        self.client = client
        self.url = url
        self.result = engine.handle(FLOW).result

    async def answer(self, content: bytes, headers: dict[str, str] | None = None, *, url: str = "") -> httpx2.Response:
        return await self.client.post(url or self.url, content=content, headers=headers)


@pytest.fixture
async def paying() -> AsyncIterator[Paying]:
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def pay(request: Request) -> Response:
        told.set_result(request.headers["argyll-webhook-url"])
        return Response(status_code=202)

    service = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    async with listening(service) as url, Engine("memory://", registry=Registry(), max_payload=1000) as engine:
        await engine.store.values.put(PUBLIC_URL, b"http://flows.example")
        step = m.Step(
            id="pay",
            name="Pay",
            type="async",
            attributes={"receipt": m.Output()},
            http=m.HttpConfig(endpoint=f"{url}/pay"),
        )
        await engine.register_step(step)
        await engine.start_flow(["pay"], id=FLOW)
        transport = httpx2.ASGITransport(app=app(engine))
        async with httpx2.AsyncClient(transport=transport) as client:
            yield Paying(engine, client, await asyncio.wait_for(told, HANGS))


async def test_an_answer_completes_its_step_and_repeating_it_is_safe(paying: Paying) -> None:
    for first in (True, False):
        answer = await paying.answer(b'{"receipt": "r-1"}')
        assert (answer.status_code, answer.json()) == (200, {"first": first})
    assert await paying.result() == {"receipt": "r-1"}
    late = await paying.answer(b'{"receipt": "r-2"}')
    assert (late.status_code, late.json()) == (200, {"first": False})
    assert await paying.result() == {"receipt": "r-1"}


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (b'{"title": "Declined", "detail": "no money"}', "no money"),
        (b'{"title": "Declined"}', "Declined"),
        (b"{}", "without a reason"),
    ],
)
async def test_problem_details_fail_the_step_for_good(paying: Paying, problem: bytes, reason: str) -> None:
    assert (await paying.answer(problem, PROBLEM)).status_code == 200
    with pytest.raises(WorkflowFailed, match=reason):
        await paying.result()


async def test_a_bad_answer_is_refused_and_may_be_sent_again(paying: Paying) -> None:
    for content, headers, status in (
        (b"", {}, 400),
        (b"[]", {}, 400),
        (b"{", {}, 400),
        (b'{"receipt": "\xff"}', {}, 400),
        (b"[" * 100_000, {}, 400),
        (b"no money", PROBLEM, 400),
        (b'{"receipt": "' + b"x" * 1000 + b'"}', {}, 413),
        (b"x" * (4 * 1024 * 1024 + 1), {}, 413),
    ):
        refused = await paying.answer(content, headers)
        assert (refused.status_code, refused.headers["content-type"]) == (status, PROBLEM["content-type"])
    assert (await paying.answer(b"{}")).json() == {"first": True}


async def test_another_address_is_unknown_and_the_secret_is_not_repeated(
    paying: Paying, caplog: pytest.LogCaptureFixture
) -> None:
    token = paying.url.rpartition("/")[2]
    forged = token[:-1] + ("1" if token[-1] == "0" else "0")
    for url in (
        paying.url.replace(token, forged),
        paying.url.replace("/pay/", "/ship/"),
        paying.url.replace("shop%2F7", "shop%2F8"),
    ):
        refused = await paying.answer(b"{}", url=url)
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
        assert token not in refused.text
        assert forged not in refused.text
    assert token not in caplog.text


@pytest.mark.parametrize(("method", "end", "status"), [("GET", "", 405), ("POST", "/", 404)])
async def test_a_mistake_in_the_use_of_the_address_is_told_without_its_secret(
    paying: Paying, method: str, end: str, status: int
) -> None:
    refused = await paying.client.request(method, f"{paying.url}{end}", content=b"{}")
    assert refused.status_code == status
    assert "/webhook/" in refused.text
    assert paying.url.rpartition("-")[2] not in refused.text
