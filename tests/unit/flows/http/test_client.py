import asyncio
import re
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

import support
from resurgam.flows.http.addresses import AddressRefused
from resurgam.flows.http.call import Outgoing
from resurgam.flows.http.client import ServiceClient
from resurgam.flows.http.outbound import Outbound
from resurgam.flows.http.sending import Unreachable

FOREVER = 3600
TLS = Path(support.__file__).parent / "tls"


@asynccontextmanager
async def _client(outbound=None, *, max_body=1000, resolve=None):
    client = ServiceClient(outbound or Outbound(), max_body=max_body, resolve=resolve)
    try:
        yield client
    finally:
        await client.close()


def _request(url, method="POST", body=b'{"a":1}', **headers):
    return Outgoing(method=method, url=url, headers=headers, body=body)


async def _send(url, *, timeout=5, body_wanted=True, max_body=1000, **options):
    async with _client(max_body=max_body, **options) as client:
        return await client.send(_request(url), timeout=timeout, body_wanted=body_wanted)


async def test_a_request_arrives_as_it_was_made(service):
    async with _client() as client:
        answer = await client.send(_request(f"{service.url}/a%2Fb/%2e%2e?q=%20", **{"X-One": "1"}), timeout=5)

    [(head, body)] = service.requests
    assert head.startswith("POST /a%2Fb/%2e%2e?q=%20 HTTP/1.1\r\n")
    assert "x-one: 1" in head.lower()
    assert body == b'{"a":1}'
    assert (answer.status, answer.body) == (200, b"{}")


async def test_connections_are_kept(service):
    async with _client() as client:
        for _ in range(3):
            await client.send(_request(service.url), timeout=5)

    assert service.connections == 1


async def test_a_connection_that_the_service_has_closed_is_not_used_again(service):
    def once(head, body):
        yield b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
        raise ConnectionError

    service.answer = once
    async with _client() as client:
        for _ in range(3):
            assert (await client.send(_request(service.url), timeout=5)).status == 200
            await service.closed.wait()
            service.closed.clear()

    assert service.connections == 3


async def test_what_comes_without_a_request_is_never_taken_for_an_answer(service):
    double = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}" * 2
    service.answer = lambda head, body: double
    async with _client() as client:
        for _ in range(3):
            assert (await client.send(_request(service.url), timeout=5)).status == 200

    assert service.connections == 3


async def test_a_large_request_and_a_large_answer_arrive_whole(service):
    service.answer = lambda head, body: b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    sent = bytes(range(256)) * 20_000

    async with _client(max_body=len(sent)) as client:
        answer = await client.send(_request(service.url, body=sent), timeout=5)

    assert (answer.body == sent, answer.cut) == (True, False)


async def test_a_certificate_must_be_signed_and_have_the_name_of_the_host(tls_service, monkeypatch):
    async def here(host, port):
        return ["127.0.0.1"]

    url = f"https://localhost:{tls_service.port}/"
    with pytest.raises(Unreachable, match="certificate"):
        await _send(url)

    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "certificate.pem"))
    assert (await _send(url)).status == 200
    with pytest.raises(Unreachable, match="certificate"):
        await _send(f"https://shop.example:{tls_service.port}/", resolve=here)


async def test_no_cookies_are_kept_and_no_redirect_is_followed(service):
    service.answer = lambda head, body: (
        b"HTTP/1.1 307 Moved\r\nset-cookie: a=b\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n"
    )
    async with _client() as client:
        assert (await client.send(_request(service.url), timeout=5)).status == 307
        await client.send(_request(service.url), timeout=5)

    assert not any("cookie" in head.lower() for head, _ in service.requests)


async def test_proxies_of_the_environment_are_not_used(service, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    assert (await _send(service.url)).status == 200


async def test_a_body_is_read_up_to_its_limit_only(service):
    endless = (b"400\r\n" + b"x" * 1024 + b"\r\n" for _ in iter(int, 1))
    service.answer = lambda head, body: (
        part for part in (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", *(next(endless) for _ in range(50)))
    )

    answer = await _send(service.url, max_body=2000)

    assert (len(answer.body), answer.cut) == (2000, True)


async def test_the_body_of_an_error_is_read_as_an_excerpt(service):
    service.answer = lambda head, body: b"HTTP/1.1 500 No\r\ncontent-length: 99999\r\n\r\n" + b"x" * 99999

    answer = await _send(service.url, max_body=10**6)

    assert (len(answer.body), answer.cut) == (16_384, True)


async def test_a_compressed_body_is_not_unpacked(service):
    service.answer = lambda head, body: (
        b"HTTP/1.1 200 OK\r\ncontent-encoding: GZIP\r\ncontent-length: 3\r\n\r\n\x1f\x8bx"
    )

    answer = await _send(service.url)

    assert (answer.body, answer.content_encoding) == (b"\x1f\x8bx", "gzip")


async def test_an_answer_that_drips_is_given_up_after_the_timeout(service):
    def slowly(head, body):
        yield b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n"
        while True:
            yield b"x"
            yield asyncio.sleep(0)

    service.answer = slowly

    with pytest.raises(Unreachable, match=r"no whole answer within 0\.1 s"):
        await _send(service.url, timeout=0.1, max_body=10**9)


async def test_a_service_that_says_nothing_is_given_up_after_the_timeout(service):
    service.answer = lambda head, body: [asyncio.Event().wait()]

    with pytest.raises(Unreachable, match="no whole answer"):
        await _send(service.url, timeout=0.05)


async def test_a_success_whose_body_is_not_wanted_counts_though_the_body_never_comes(service):
    service.answer = lambda head, body: [b"HTTP/1.1 202 OK\r\ncontent-length: 100\r\n\r\n", asyncio.Event().wait()]

    assert (await _send(service.url, body_wanted=False)).status == 202


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", b"garbage\r\n\r\n", b"HTTP/1.1 200"]
)
async def test_a_broken_answer_is_none(service, answer):
    def broken(head, body):
        yield answer
        raise ConnectionError

    service.answer = broken

    with pytest.raises(Unreachable, match="connection failed"):
        await _send(service.url)


async def test_an_endless_head_is_given_up(service):
    def endless(head, body):
        yield b"HTTP/1.1 200 OK\r\n"
        for _ in range(3000):
            yield b"x-filler: " + b"x" * 100 + b"\r\n"

    service.answer = endless

    with pytest.raises(Unreachable):
        await _send(service.url)


async def test_a_host_that_cannot_be_found_or_reached_in_time_has_no_connection():
    async def never(host, port):
        await asyncio.Event().wait()

    with pytest.raises(Unreachable, match=r"no connection within 0\.05 s"):
        await _send("http://shop.example/", outbound=Outbound(connect_timeout=0.05), resolve=never)


async def test_a_closed_port_and_an_unknown_host_are_unreachable():
    async def unknown(host, port):
        raise OSError("no such host")

    with pytest.raises(Unreachable, match="connection failed"):
        await _send("http://127.0.0.1:1/")
    with pytest.raises(Unreachable, match="no such host"):
        await _send("http://nowhere.example/", resolve=unknown)


@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "[::ffff:169.254.169.254]", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518"],
)
async def test_no_spelling_of_a_metadata_address_is_called(host):
    with pytest.raises((AddressRefused, ValueError), match=r"169\.254\.169\.254 is link-local|Invalid IPv4"):
        await _send(f"http://{host}/latest/meta-data", timeout=1)


async def test_a_host_is_called_at_the_address_that_was_checked(service):
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])

    async def rebinding(host, port):
        return next(answers)

    url = f"http://shop.example:{service.port}/"
    async with _client(resolve=rebinding) as client:
        assert (await client.send(_request(url), timeout=5)).status == 200
        assert re.search(r"(?im)^host: shop\.example:", service.requests[0][0])

    async with _client(resolve=rebinding) as client:
        with pytest.raises(AddressRefused, match=r"169\.254\.169\.254"):
            await client.send(_request(url), timeout=5)


async def test_calls_of_a_host_share_one_look_for_its_addresses_though_the_first_is_given_up(service):
    """The next call after them looks again."""
    found, looks = asyncio.Event(), []

    async def slow(host, port):
        looks.append(host)
        await found.wait()
        return ["127.0.0.1"]

    url = f"http://shop.example:{service.port}/"
    async with _client(resolve=slow) as client:
        calls = [asyncio.create_task(client.send(_request(url), timeout=FOREVER)) for _ in range(3)]
        while not looks:
            await asyncio.sleep(0)
        calls.pop(0).cancel()
        await asyncio.sleep(0)
        found.set()
        assert [one.status for one in await asyncio.gather(*calls)] == [200, 200]
        assert looks == ["shop.example"]
        service.close()
        await service.closed.wait()
        assert (await client.send(_request(url), timeout=FOREVER)).status == 200
        assert looks == ["shop.example"] * 2


async def test_one_bad_address_of_several_refuses_the_host(service):
    async def several(host, port):
        return ["127.0.0.1", "169.254.169.254"]

    with pytest.raises(AddressRefused):
        await _send(f"http://shop.example:{service.port}/", resolve=several)
    assert service.connections == 0


async def test_the_next_address_is_tried_if_one_does_not_answer(service):
    async def several(host, port):
        return ["127.0.0.2", "127.0.0.1"]

    assert (await _send(f"http://shop.example:{service.port}/", resolve=several)).status == 200


async def test_a_narrow_list_refuses_the_rest(service):
    with pytest.raises(AddressRefused, match="allow-list"):
        await _send(service.url, outbound=Outbound(allow=("shop.example",)))
    assert (await _send(service.url, outbound=Outbound(allow=("127.0.0.0/8",)))).status == 200


async def test_a_call_that_waits_for_a_connection_does_not_lose_its_time():
    gate = asyncio.Event()
    running = 0

    async def answer(request):
        nonlocal running
        running += 1
        await gate.wait()
        return httpx2.Response(200)

    outbound = Outbound(per_host=2, transport=httpx2.MockTransport(answer))
    async with _client(outbound) as client:
        calls = [asyncio.create_task(client.send(_request("http://h/"), timeout=FOREVER)) for _ in range(5)]
        elsewhere = asyncio.create_task(client.send(_request("http://other/"), timeout=FOREVER))
        for _ in range(10):
            await asyncio.sleep(0)
        assert running == 3
        gate.set()
        assert {one.status for one in await asyncio.gather(*calls, elsewhere)} == {200}


async def test_cancelled_calls_leave_the_pool_usable(service):
    service.answer = lambda head, body: [asyncio.Event().wait()]
    async with _client(Outbound(max_connections=4, per_host=4)) as client:
        for _ in range(3):
            calls = [asyncio.create_task(client.send(_request(service.url), timeout=FOREVER)) for _ in range(8)]
            while len(service.requests) < 4:
                await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            service.requests.clear()
        service.answer = lambda head, body: b"HTTP/1.1 204 OK\r\n\r\n"
        assert (await client.send(_request(service.url), timeout=5)).status == 204


async def test_an_address_that_cannot_be_parsed_is_a_value_error():
    with pytest.raises(ValueError, match="not valid"):
        await _send("http://[::1/")
