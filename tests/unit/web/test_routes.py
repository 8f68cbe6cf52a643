"""The routes themselves: what is not there, what is refused, and the document."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from resurgam import Engine, Registry
from resurgam.core.errors import StoreError
from resurgam.web import app


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with Engine("memory://", registry=Registry()) as engine:
        transport = httpx2.ASGITransport(app=app(engine, keys=False))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as made:
            yield made


async def test_the_server_is_healthy_if_its_store_answers(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/health")
    assert answer.status_code == 200
    assert answer.json()["status"] == "healthy"


async def test_an_unknown_path_is_a_problem_that_names_it(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/nothing")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "no_route"
    assert "/nothing" in answer.json()["detail"]


async def test_an_unknown_query_parameter_is_refused(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/health", params={"deep": "1"})
    assert answer.status_code == 400
    assert "deep" in answer.json()["detail"]


async def test_the_document_describes_every_route(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    assert "/health" in document["paths"]


async def test_a_store_that_fails_is_a_503_that_only_the_log_explains(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise StoreError("postgres://db.internal:5432: no server listens there")

    async with Engine("memory://", registry=Registry()) as engine:
        monkeypatch.setattr(engine.store.values, "get", fail)
        monkeypatch.setattr(engine.store.inspector, "list", fail)
        transport = httpx2.ASGITransport(app=app(engine, keys=False))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path in ("/health", "/workflows", "/engine/flow"):
                answer = await client.get(path)
                assert answer.status_code == 503
                assert "does not answer" in answer.text
                assert "db.internal" not in answer.text
    assert caplog.text.count("db.internal") == 3
