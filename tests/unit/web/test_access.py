"""Who may ask: keys and their roles, and what is refused without keys."""

import asyncio
import itertools
import re

import httpx2
import msgspec
import pytest
from starlette.requests import HTTPConnection

from resurgam import Engine, Registry
from resurgam.core.errors import NotFound
from resurgam.runtime.system import SystemClock
from resurgam.store.memory.values import MemoryValues
from resurgam.web import app
from resurgam.web.access import KeyGuard, NoKeys, Role, is_loopback, shown_path
from resurgam.web.app import ENDPOINTS
from resurgam.web.keys import KEPT_SECONDS, Keys
from resurgam.web.problems import Problem


@pytest.fixture
def values():
    return MemoryValues(SystemClock(), lambda: None)


def asked(**headers):
    """Return a request with these headers."""
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": pairs})


async def refusal(guard, connection, role=Role.READ):
    """Return the status and the code of a refusal; None if the request may pass."""
    try:
        await guard.check(connection, role)
    except Problem as problem:
        return problem.status, problem.code
    return None


async def test_a_key_may_do_what_its_role_includes_and_nothing_above(values):
    keys = Keys(values)
    for mine, needed in itertools.product(Role, Role):
        _, text = await keys.create("k", mine, at=1)
        found = await refusal(KeyGuard(keys), asked(authorization=f"Bearer {text}"), needed)
        assert found == (None if mine.includes(needed) else (403, "role_too_low"))
    assert [mine.includes(Role.OPERATE) for mine in Role] == [False, True, True]


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer ", "Basic {}", "{}"])
async def test_a_request_without_a_key_is_told_how_to_send_one(values, given):
    keys = Keys(values)
    _, text = await keys.create("k", Role.ADMIN, at=1)
    guard, connection = KeyGuard(keys), asked(authorization=given.format(text)) if given else asked()
    with pytest.raises(Problem, match="Authorization: Bearer") as caught:
        await guard.check(connection, Role.READ)
    assert caught.value.status == 401
    assert caught.value.headers == {"WWW-Authenticate": "Bearer"}
    assert text not in caught.value.detail


async def test_a_key_that_differs_is_refused_and_not_repeated(values):
    keys = Keys(values)
    _, text = await keys.create("k", Role.ADMIN, at=1)
    other = text[:-1] + ("1" if text[-1] == "0" else "0")
    wrong = [other, text.replace("rsg_1", "rsg_2"), text.upper(), text + "0", "rsg_01_" + text[6:], "rsg_" + "9" * 40]
    for key in wrong:
        with pytest.raises(Problem) as caught:
            await KeyGuard(keys).check(asked(authorization=f"Bearer {key}"), Role.READ)
        assert (caught.value.status, caught.value.code) == (401, "bad_key")
        assert key not in caught.value.detail
    assert await keys.role_of(text) is Role.ADMIN


async def test_two_authorizations_are_not_one(values):
    _, text = await Keys(values).create("k", Role.ADMIN, at=1)
    header = (b"authorization", f"Bearer {text}".encode())
    twice = HTTPConnection({"type": "http", "headers": [header, header]})
    assert await refusal(KeyGuard(Keys(values)), twice) == (401, "no_key")


async def test_the_store_has_only_the_hash_of_a_key(values):
    _, text = await Keys(values).create("nightly", Role.READ, at=7)
    stored = await values.get("api-key/1")
    assert text.rpartition("_")[2].encode() not in stored
    record = msgspec.json.decode(stored)
    assert (record["name"], record["role"], record["created_at"], record["revoked_at"]) == ("nightly", "read", 7, None)


async def test_keys_made_at_the_same_time_have_numbers_of_their_own(values):
    made = await asyncio.gather(*(Keys(values).create(str(n), Role.READ, at=1) for n in range(5)))
    assert sorted(number for number, _ in made) == [1, 2, 3, 4, 5]
    assert [record.name async for _, record in Keys(values).list()] == [
        str(n) for _, n in sorted((number, n) for n, (number, _) in enumerate(made))
    ]


async def test_a_revoked_key_stops_working_within_the_stated_time(values):
    now = 100.0
    server, elsewhere = Keys(values, monotonic=lambda: now), Keys(values)
    number, text = await elsewhere.create("k", Role.READ, at=1)
    _, other = await elsewhere.create("other", Role.READ, at=1)
    assert await server.role_of(text) is Role.READ
    await elsewhere.revoke(number, at=2)
    now += KEPT_SECONDS
    assert await server.role_of(text) is None
    assert await server.role_of(other) is Role.READ
    assert KEPT_SECONDS <= 5


async def test_a_key_works_at_once_though_its_number_was_tried_before(values):
    now = 100.0
    server = Keys(values, monotonic=lambda: now)
    assert await server.role_of(f"rsg_1_{'0' * 64}") is None
    _, text = await server.create("k", Role.READ, at=1)
    now += KEPT_SECONDS
    assert await server.role_of(text) is Role.READ


async def test_revoking_again_keeps_the_time_and_an_unknown_number_is_refused(values):
    keys = Keys(values)
    number, _ = await keys.create("k", Role.READ, at=1)
    assert await keys.any_valid()
    assert (await keys.revoke(number, at=2)).revoked_at == 2
    assert (await keys.revoke(number, at=3)).revoked_at == 2
    assert not await keys.any_valid()
    with pytest.raises(NotFound, match="no key 2"):
        await keys.revoke(2, at=3)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"host": "localhost:8080"}, None),
        ({"host": "127.0.0.1"}, None),
        ({"host": "[::1]:8080"}, None),
        ({"host": "localhost:8080", "origin": "http://localhost:8080"}, None),
        ({"host": "localhost", "origin": "http://localhost:80"}, None),
        ({"host": "localhost:8080", "origin": "http://localhost:3000"}, (403, "other_site")),
        ({"host": "localhost:8080", "origin": "https://evil.example"}, (403, "other_site")),
        ({"host": "localhost:8080", "origin": "null"}, (403, "other_site")),
        ({"host": "localhost:8080", "origin": "http://[::1"}, (403, "other_site")),
        ({"host": "rebound.example:8080"}, (403, "not_local")),
        ({"host": "rebound.example", "origin": "http://rebound.example"}, (403, "not_local")),
        ({"host": "127.0.0.1.evil.example"}, (403, "not_local")),
        ({"host": "10.0.0.1"}, (403, "not_local")),
        ({"host": "[::1"}, (403, "not_local")),
        ({}, (403, "not_local")),
        ({"host": "localhost", "x_forwarded_for": "10.0.0.7"}, (403, "not_local")),
        ({"host": "shop.example"}, None),
        ({"host": "shop.example", "x_forwarded_for": "10.0.0.7", "origin": "https://shop.example"}, None),
        ({"host": "shop.example", "origin": "https://evil.example"}, (403, "other_site")),
    ],
)
async def test_without_keys_only_this_machine_and_no_page_of_another_site_may_ask(headers, found):
    assert await refusal(NoKeys(["Shop.example"]), asked(**headers), Role.ADMIN) == found


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("localhost", True), ("127.1.2.3", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("shop", False)],
)
def test_loopback_is_this_machine_only(host, is_local):
    assert is_loopback(host) is is_local


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/webhook/f/s/3-secret", "/webhook/f/s/***"),
        ("/api/webhook/a/b/s/3-secret", "/api/webhook/a/b/s/***"),
        ("/webhook/f/s/3-secret/", "/webhook/f/s/***"),
        ("/flows/f", "/flows/f"),
    ],
)
def test_the_token_of_a_webhook_is_not_logged(path, shown):
    assert shown_path(HTTPConnection({"type": "http", "path": path, "query_string": b"", "headers": []})) == shown


async def test_no_answer_lets_a_page_of_another_site_read_it():
    async with Engine("memory://", registry=Registry()) as engine:
        transport = httpx2.ASGITransport(app=app(engine, keys=False))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path in ("/health", "/openapi.json", "/nothing"):
                answer = await client.get(path, headers={"Origin": "http://other.example"})
                assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_every_route_refuses_callers_without_a_key_or_with_a_lower_role():
    async with Engine("memory://", registry=Registry()) as engine:
        keys = {role: (await Keys(engine.store.values).create(role, role, at=1))[1] for role in Role}
        transport = httpx2.ASGITransport(app=app(engine))
        async with httpx2.AsyncClient(transport=transport, base_url="http://flows.example") as client:
            for endpoint in ENDPOINTS:
                if endpoint.role is None:
                    continue
                path = re.sub(r"\{\w+\}", "x", endpoint.path)
                assert (await client.request(endpoint.method, path)).status_code == 401, path
                for role in Role:
                    if not role.includes(endpoint.role):
                        sent = {"Authorization": f"Bearer {keys[role]}"}
                        assert (await client.request(endpoint.method, path, headers=sent)).status_code == 403, path


def test_readers_change_nothing_and_only_administrators_change_the_catalog():
    rows = {f"{endpoint.method} {endpoint.path}": endpoint.role for endpoint in ENDPOINTS}
    assert {row for row, role in rows.items() if role is None} == {"GET /health", "POST /webhook/{flow}/{step}/{token}"}
    assert {row for row, role in rows.items() if role is Role.READ and not row.startswith("GET ")} == {
        "POST /plan",
        "POST /workflows/{id}/queries/{name}",
    }
    assert {row for row, role in rows.items() if role is Role.ADMIN} == {
        "POST /steps",
        "PUT /steps/{id}",
        "DELETE /steps/{id}",
    }
