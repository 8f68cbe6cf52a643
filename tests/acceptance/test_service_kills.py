"""Servers are killed, or stand still, while services that behave badly work for their flows: nothing is lost or doubled."""

import asyncio
import json
import os
import random
import re
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from acceptance import parcel_server, parcel_service
from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.entry import NULL
from resurgam.engine import Engine
from resurgam.errors import WorkflowFailed
from resurgam.flows.state import LOST, FlowState, FlowStatus, StepStatus, WorkStatus
from resurgam.store.secret import secret_of
from support.cluster import Cluster, eventually, options_of
from support.flow_checks import check_log
from support.health import set_health
from support.limits import HANGS

STORES = [
    *("sqlite", "redis", "redis-uncached", "redis-cluster", "redis-cluster-uncached"),
    *("postgres", "postgres-uncached"),
]
LEASE = 1.0
SERVERS = 3
MOST = 20
"""Flows under way at a time."""

SEED = int(os.environ.get("RESURGAM_SEED") or random.SystemRandom().randrange(10**9))
Line = dict[str, Any]


class Post(Cluster):
    """Servers at ports that stay the same, and the services that they call.

    *lost* are the processes that were killed or stopped, *stopped* when each of those was stopped first.
    """

    def __init__(self, folder, *, servers: int = SERVERS, seed: int = SEED, **options: Any) -> None:
        super().__init__(folder, **{"program": parcel_server, **options})
        self.ledger_file = folder / "ledger.jsonl"
        self.ports = _free_ports(servers)
        self.port_of: dict[int, int] = {}
        self.lost: set[int] = set()
        self.stopped: dict[int, int] = {}
        command = [sys.executable, str(parcel_service.__file__), str(self.ledger_file), str(seed)]
        self.services = self.spawn([*command, ",".join(map(str, self.ports))])

    def start_server(self, port: int) -> None:
        self.port_of[self.start_worker(lease=LEASE, PARCEL_PORT=str(port)).pid] = port

    async def address(self) -> str:
        """Return where the services are."""
        return f"http://127.0.0.1:{(await eventually(lambda: self.said(self.services), 'services begin')).strip()}"

    def ledger(self) -> list[Line]:
        return [json.loads(line) for line in self.ledger_file.read_text().splitlines() if line.endswith("}")]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


@pytest.fixture
def post(tmp_path, request):
    post = Post(tmp_path, **options_of(getattr(request, "param", "sqlite")))
    try:
        yield post
    finally:
        post.close()


async def _trouble(engine: Engine, post: Post, rng: random.Random, kills: int, stops: int) -> None:
    """Kill servers that have been at work, let some stand still for longer than their leases last, and services ail."""

    def at_work():
        pids = {line["worker"] for line in post.ledger() if line["what"] == "call"} if post.ledger_file.exists() else ()
        return [worker for worker in post.workers if worker.pid in pids]

    deeds = ["kill"] * kills + ["stop"] * stops + ["ail"] * stops
    rng.shuffle(deeds)
    for deed in deeds:
        await asyncio.sleep(rng.uniform(0, 0.8))
        if deed == "ail":
            step_id = rng.choice(["label", "pack", "stamp"])
            await set_health(engine, step_id, "unhealthy", "a test says so")
            await asyncio.sleep(rng.uniform(0, 0.5))
            await set_health(engine, step_id, "healthy")
            continue
        server = rng.choice(await eventually(at_work, "a server is at work"))
        post.lost.add(server.pid)
        if deed == "stop":
            post.stopped.setdefault(server.pid, parcel_service.CLOCK.now())
            await post.stop_for(server, rng.uniform(1.2, 1.6) * LEASE)
            continue
        post.kill(server)
        post.start_server(post.port_of[server.pid])


async def _send(engine: Engine, rng: random.Random, trouble: "asyncio.Task[None]") -> range:
    """Start flows for as long as there is trouble; return their numbers."""
    number, under_way = 0, set[asyncio.Task[Any]]()
    while not trouble.done() or number < 6:
        await engine.start_flow([parcel_service.GOAL], {"number": number}, id=f"flow-{number}")
        under_way.add(asyncio.create_task(outcome_of(engine, f"flow-{number}")))
        number += 1
        await asyncio.sleep(rng.uniform(0.1, 0.6))
        while len(under_way) > MOST:  # a slow machine has fewer of them to bring to an end, not more
            _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(trouble, *under_way)
    return range(number)


async def _storm(post: Post, *, kills: int, stops: int) -> None:
    print(f"RESURGAM_SEED={SEED}")
    rng = random.Random(SEED)
    for port in post.ports:
        post.start_server(port)
    async with post.client() as engine:
        for one in parcel_service.steps(await post.address()):
            await engine.register_step(one)
        await engine.start_flow([parcel_service.GOAL], {"number": -1}, id="first")
        trouble = asyncio.create_task(_trouble(engine, post, rng, kills, stops))
        numbers = await _send(engine, rng, trouble)
        outcomes = await asyncio.gather(*(outcome_of(engine, f"flow-{number}") for number in numbers))
        for number in numbers:
            await deactivated(engine, f"flow-{number}")
        await all_answered(post)
        ledger = post.ledger()
        for number, outcome in zip(numbers, outcomes, strict=True):
            await check_flow(engine, number, outcome, ledger, post)
        await _check_secrets(engine, post, ledger)
    check_answers(ledger)
    assert not post.errors()
    calls = Counter(line["key"] for line in ledger if line["what"] == "call")
    print(f"{len(numbers)} flows, {kills} kills, {stops} stops, {calls.total()} calls for {len(calls)} receipts")


async def outcome_of(engine: Engine, flow_id: str) -> Any:
    try:
        return await engine.handle(flow_id).result(timeout=HANGS)
    except WorkflowFailed as error:
        return str(error)


async def deactivated(engine: Engine, flow_id: str) -> None:
    """Wait until nothing more can come for a flow: answers of accepted calls, compensations."""
    async with asyncio.timeout(HANGS):
        while not (await engine.handle(flow_id).describe()).deactivated:
            await asyncio.sleep(0.05)


async def all_answered(post: Post) -> None:
    """Wait until every answer was taken by some server, also those that come after the end."""

    def all_taken():
        lines = Counter(line["what"] for line in post.ledger())
        return lines["sent"] == lines["answer"] and lines["token"] == lines["sent"]

    await eventually(all_taken, "every answer is taken")


async def check_flow(engine: Engine, number: int, outcome: Any, ledger: Sequence[Line], post: Post) -> None:
    handle = engine.handle(f"flow-{number}")
    history = list(await handle.history())
    check_log(history)
    state = FlowState(history)
    described = await handle.describe()
    assert (str(described.status), described.deactivated) == (str(state.status), True)
    instance = await engine.store.inspector.get(f"flow-{number}")
    work = await engine.store.inspector.open_work(instance)
    assert work is None or not work.activities
    parcels = parcel_service.parcels_of(number)
    fails = any(map(parcel_service.is_torn, parcels)) or any(map(parcel_service.is_unknown, parcels))
    assert state.status is (FlowStatus.FAILED if fails else FlowStatus.COMPLETED), outcome
    mine = [line for line in ledger if line.get("receipt", "").startswith(f"{history[0].run_id}/")]
    _check_work(state, ledger)
    _check_compensations(state, mine)
    _check_calls(history, mine, post)
    if fails:
        assert "torn" in outcome or "unknown" in outcome
    else:
        packed, labels, stamped = outcome["posted"]
        assert [one["labels"] for one in labels] == [f"to {parcel}" for parcel in parcels]
        assert [one["parcels"] for one in packed] == parcels
        assert stamped[0].startswith(history[0].run_id)


def _check_work(state: FlowState, ledger: Sequence[Line]) -> None:
    """Check that what has succeeded was done, once, and that the answer that was the first one is recorded."""
    done = Counter(line["key"] for line in ledger if line["what"] == "done")
    assert set(done.values()) == {1}
    firsts = {line["receipt"]: line["version"] for line in ledger if line["what"] == "answer" and line["first"]}
    for number, item in state.items.items():
        receipt = f"{state.started.run_id}/{number}"
        if item.outputs == NULL:
            continue
        assert done[receipt] == 1
        if item.step in ("pack", "stamp"):
            [[recorded, version]] = msgspec.json.decode(item.outputs).values()
            assert recorded == receipt
            assert version == firsts.get(receipt, version)


def _check_compensations(state: FlowState, mine: Sequence[Line]) -> None:
    """Check that what a failed step has done was undone, and nothing else."""
    undone = {line["receipt"] for line in mine if line["what"] == "call" and line["step"] == "undo"}
    of_failed = {
        f"{state.started.run_id}/{number}"
        for number, item in state.items.items()
        if state.steps[item.step].status is StepStatus.FAILED and item.outputs != NULL
    }
    assert undone == of_failed
    assert all(
        item.status is WorkStatus.COMPENSATED
        for number, item in state.items.items()
        if f"{state.started.run_id}/{number}" in of_failed
    )


def _check_calls(history: Sequence[events.Event], mine: Sequence[Line], post: Post) -> None:
    """Check that no accepted call was repeated before its deadline, unless its server could not record that it was.

    A server that stood still between its claim and its call cannot know what was recorded meanwhile.
    """
    run_id, calls = history[0].run_id, defaultdict[str, list[Line]](list)
    for line in mine:
        if line["what"] == "call" and line["step"] in ("pack", "stamp"):
            calls[line["receipt"]].append(line)
    for entry in history:
        if isinstance(entry, fe.WorkAcknowledged):
            early = [one for one in calls[f"{run_id}/{entry.ref}"] if entry.at < one["at"] < entry.deadline]
            early = [one for one in early if one["at"] < post.stopped.get(one["worker"], one["at"] + 1)]
            assert not early, (entry, early)
    ends = Counter(f"{run_id}/{one.ref}" for one in history if _ends_a_call(one))
    for receipt, made in calls.items():
        # All but the last were followed by another one, though they were not refused: because they were accepted, and
        # that is recorded, or because no answer came, or because their server was lost, or stood still for the store.
        known = [one for one in made[:-1] if one["deed"] not in ("busy", "pause") and one["worker"] not in post.lost]
        assert len(known) <= ends[receipt], (receipt, made)


def _ends_a_call(entry: events.Event) -> bool:
    """Whether an entry says that a call was accepted, or that no answer to it came, or that its lease was lost."""
    if isinstance(entry, fe.WorkNotCompleted):
        return entry.failure == LOST or "gave no answer" in entry.failure.message
    return isinstance(entry, fe.WorkAcknowledged)


def check_answers(ledger: Sequence[Line]) -> None:
    """Check that each receipt has one first answer, all others were accepted too, and forged ones were not."""
    answers = [line for line in ledger if line["what"] == "answer"]
    assert {line["status"] for line in answers} == {200}
    assert max(Counter(line["receipt"] for line in answers if line["first"]).values()) == 1
    assert {line["status"] for line in ledger if line["what"] == "forged"} <= {404}
    assert not [line for line in ledger if line["what"] == "trouble"]


async def _check_secrets(engine: Engine, post: Post, ledger: Sequence[Line]) -> None:
    """Check that neither a token nor the secret of the store is in what anybody can read."""
    tokens = {line["token"].partition("-")[2] for line in ledger if line["what"] == "token"}
    secret = await secret_of(engine.store.values)
    shown = [post.said(process) for process in post._all]
    page = await engine.list(limit=1000)
    shown.append(repr(page.instances))
    for one in page.instances:
        shown.append(msgspec.json.encode(await engine.store.inspector.history(one)).decode())
    text = "\n".join(shown)
    assert tokens
    assert not tokens & set(re.findall(r"[0-9a-f]{32}", text))
    assert secret.hex() not in text


@pytest.mark.parametrize(
    "post",
    ["sqlite", *(pytest.param(one, marks=pytest.mark.long) for one in STORES[1:])],
    indirect=True,
)
async def test_a_few_servers_are_killed_while_services_work(post):
    await _storm(post, kills=2, stops=1)


@pytest.mark.long
@pytest.mark.parametrize("post", STORES, indirect=True)
async def test_a_hundred_servers_are_killed_while_services_work(post):
    await _storm(post, kills=100, stops=25)
