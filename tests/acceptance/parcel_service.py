"""Services that send parcels, badly, as a process of their own; what happens is written to a ledger, line by line.

``python parcel_service.py LEDGER SEED PORTS`` serves until it is killed. It is slow, breaks off, forgets and repeats
itself; its answers go to any of the servers at PORTS. What it does for a receipt it does once.
"""

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx2

from resurgam import RetryPolicy
from resurgam.flows import HttpStep, Input
from resurgam.flows.model import Step
from resurgam.runtime.system import SystemClock

DEADLINE = 30.0
FORGOTTEN = 1.0
"""Seconds in which the stamp must come: it is forgotten at first, for some."""

RETRY = RetryPolicy(max_attempts=50, initial_interval=0.05, backoff=1)
EACH = Annotated[int, Input(for_each=True)]
GOAL = "post"
CLOCK = SystemClock()


def steps(at: str) -> list[Step]:
    """Return the steps of a parcel, whose services are at an address."""
    plain: dict[str, Any] = {"retry": RETRY, "timeout": 1.5}
    undone: dict[str, Any] = {**plain, "parallelism": 2}
    return [
        HttpStep("weigh", f"{at}/weigh", inputs=["number"], outputs=["parcels"], **plain),
        HttpStep(
            "pack",
            f"{at}/pack",
            inputs={"parcels": EACH},
            outputs=["packed"],
            asynchronous=True,
            deadline=DEADLINE,
            compensate=f"{at}/undo",
            **undone,
        ),
        HttpStep(
            "label", f"{at}/label", inputs={"parcels": EACH}, outputs=["labels"], compensate=f"{at}/undo", **undone
        ),
        HttpStep(
            "stamp",
            f"{at}/stamp",
            inputs=["number"],
            outputs=["stamped"],
            asynchronous=True,
            deadline=FORGOTTEN,
            **plain,
        ),
        HttpStep(GOAL, f"{at}/post", inputs=["packed", "labels", "stamped"], outputs=["posted"], **plain),
    ]


def parcels_of(number: int) -> list[int]:
    return [10 * number + one for one in range(4)]


def is_torn(parcel: int) -> bool:
    """Whether a parcel cannot be packed."""
    return parcel % 30 == 11


def is_unknown(parcel: int) -> bool:
    """Whether a parcel has no address for its label."""
    return parcel % 50 == 42


class _Service:
    def __init__(self, ledger: Path, seed: str, ports: list[int]) -> None:
        self._ledger = ledger.open("a", buffering=1)
        self._seed = seed
        self._ports = ports
        self._calls: Counter[str] = Counter()
        self._done: set[str] = set()
        self._sending: set[asyncio.Task[None]] = set()
        self._client = httpx2.AsyncClient(timeout=2, trust_env=False)

    def _note(self, what: str, **about: Any) -> None:
        self._ledger.write(json.dumps({"what": what, "at": CLOCK.now(), **about}) + "\n")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path, headers = _parsed(head)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self._call(path, headers, json.loads(body or b"{}"), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _call(
        self, step: str, headers: Mapping[str, str], given: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        receipt = headers["argyll-receipt-token"]
        key = headers["idempotency-key"]
        self._calls[key] += 1
        chance = random.Random(f"{self._seed} {key} {self._calls[key]}")
        deed = chance.choice(["busy", "pause", "reset"] * 4 + ["hang"]) if chance.random() < 0.3 else "do"
        if self._calls[key] > 4:
            deed = "do"
        self._note("call", step=step, receipt=receipt, key=key, deed=deed, worker=int(headers["x-worker"]))
        if deed == "busy":
            _reply(writer, 503)
        elif deed == "pause":
            _reply(writer, 429, extra="Retry-After: 0\r\n")
        elif deed == "reset":
            writer.transport.abort()
        elif deed == "hang":
            await asyncio.sleep(2)
            _reply(writer, 200, {})
        elif "argyll-webhook-url" in headers:
            await self._accept(step, receipt, headers["argyll-webhook-url"], given, writer, chance)
        else:
            self._do(step, key, given, writer)

    def _do(self, step: str, key: str, given: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Answer a call at once."""
        if step == "label" and is_unknown(given["parcels"]):
            _reply(writer, 422, {"detail": "unknown"}, kind="application/problem+json")
            return
        if key not in self._done:
            self._done.add(key)
            self._note("done", step=step, key=key)
        outputs = {
            "weigh": lambda: {"parcels": parcels_of(given["number"])},
            "label": lambda: {"labels": f"to {given['parcels']}"},
            "undo": dict,
            "post": lambda: {"posted": [given["packed"], given["labels"], given["stamped"]]},
        }
        _reply(writer, 200, outputs[step]())

    async def _accept(
        self,
        step: str,
        receipt: str,
        url: str,
        given: dict[str, Any],
        writer: asyncio.StreamWriter,
        chance: random.Random,
    ) -> None:
        """Accept a call, and answer it earlier or later; one that comes again is accepted and already under way."""
        forgotten = step == "stamp" and self._calls[receipt] == 1 and given["number"] % 2
        how = chance.choice(["before", "at once", "soon", "late"])
        if receipt not in self._done and not forgotten:
            self._done.add(receipt)
            self._note("done", step=step, key=receipt)
            pause = {"before": 0.0, "at once": 0.0, "soon": 0.3, "late": 1.0}[how]
            answers = [self._answer(receipt, url, step, given, chance, 1, pause)]
            if chance.random() < 0.5:
                again = chance.choice([0.0, pause, 1.5])
                answers.append(self._answer(receipt, url, step, given, chance, 2, again))
            tasks = {asyncio.create_task(one) for one in answers}
            self._sending |= tasks
            if how == "before":
                await asyncio.wait(tasks, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        whole = chance.random() < 0.8
        _reply(writer, chance.choice([200, 202, 204]) if whole else 202, {} if whole else None)
        self._note("accepted", step=step, receipt=receipt)
        if not whole:
            await asyncio.sleep(0.05)  # the head is sent, the promised body is not
            writer.transport.abort()

    async def _answer(
        self,
        receipt: str,
        url: str,
        step: str,
        given: dict[str, Any],
        chance: random.Random,
        version: int,
        pause: float,
    ) -> None:
        """Send an answer until some server has taken it."""
        await asyncio.sleep(pause)
        if step == "pack" and is_torn(given["parcels"]):
            kind, content = "application/problem+json", json.dumps({"detail": "torn"})
        else:
            value = [receipt, version]
            kind = "application/json"
            content = json.dumps({"stamped": value} if step == "stamp" else {"packed": value})
        path = urlsplit(url).path
        *before, flow, of_step, token = path.split("/")
        self._note("token", token=token)
        if chance.random() < 0.3:
            wrong = "/".join([*before, *chance.choice([("flow-0x", of_step), (flow, "label"), (flow, "weigh")]), token])
            status, _ = await self._send(wrong, "application/json", "{}")
            self._note("forged", status=status)
        self._note("sent", receipt=receipt, version=version)
        status, said = await self._send(path, kind, content)
        self._note("answer", receipt=receipt, version=version, status=status, first=said.get("first"))

    async def _send(self, path: str, kind: str, content: str) -> tuple[int, dict[str, Any]]:
        while True:
            url = f"http://127.0.0.1:{random.choice(self._ports)}{path}"
            try:
                answer = await self._client.post(url, content=content, headers={"Content-Type": kind})
            except httpx2.TransportError:
                await asyncio.sleep(0.05)  # that server is dead, or stands still
                continue
            if answer.status_code < 500:
                return answer.status_code, answer.json()
            self._note("trouble", status=answer.status_code, said=answer.text)


def _parsed(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines if line)
    return first.split(" ")[1].strip("/"), {name.lower(): value for name, value in headers.items()}


def _reply(
    writer: asyncio.StreamWriter,
    status: int,
    content: Any = None,
    *,
    kind: str = "application/json",
    extra: str = "",
) -> None:
    """Write an answer; one without content promises some that never comes, if it is a success."""
    body = b"" if content is None or status == 204 else json.dumps(content).encode()
    length = 100 if content is None and status < 300 else len(body)
    said = "" if status == 204 else f"Content-Type: {kind}\r\nContent-Length: {length}\r\n"
    writer.write(f"HTTP/1.1 {status} X\r\n{said}{extra}\r\n".encode() + body)


async def _main(ledger: str, seed: str, ports: str) -> None:
    service = _Service(Path(ledger), seed, [int(port) for port in ports.split(",")])
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
