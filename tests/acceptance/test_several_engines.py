"""Several engines serve one store without a leader: they are killed, stopped, added and drained under a load of everything.

Each attempt of an activity is noted when it begins and when it ends. Afterwards the notes, the exported histories and the
feed, as each engine has seen it, must agree; and whatever ran twice must have lost its lease in between.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from typing import Any, NamedTuple

import pytest

from acceptance import bakery, marketplace, mixed_engine, parcel_service
from acceptance.mixed_engine import CLOCK
from acceptance.test_flow_kills import check_flow as check_bread
from acceptance.test_service_kills import Line, Post, all_answered, check_answers, outcome_of
from acceptance.test_service_kills import check_flow as check_parcel
from resurgam import Engine
from resurgam.client.handle import Handle
from resurgam.core import event as events
from resurgam.core import flow_event as fe
from resurgam.core.flow_event import HTTP_ACTIVITY
from resurgam.errors import WorkflowFailed
from resurgam.store import export
from resurgam.store.encoding import encode
from resurgam.store.records import Copy, Instance, Query
from resurgam.testing import replay
from support.cluster import check_log, eventually, options_of
from support.limits import HANGS

STORES = ["sqlite", "postgres", "redis", "redis-cluster"]
LEASE = 1.5
FEWEST, MOST = 3, 5
"""Engines at a time."""

UNDER_WAY = 24
"""Runs under way at a time: a slow machine has fewer of them to bring to an end, not more."""

IN_BETWEEN = 10
"""Attempts that are brought to their end from one deed to the next."""

SEED = int(os.environ.get("RESURGAM_SEED") or random.SystemRandom().randrange(10**9))
FOR_EVER = 1 << 62
REASONS = ("killed", "stopped", "process", "renewal")
"""Why leases are lost: what was done to an engine; then what it has noted itself, because it was slow, or its store."""


class Run(NamedTuple):
    """An attempt of an activity on one engine; *end* and *result* are None if it did not get so far."""

    execution: str
    ref: int
    attempt: int
    delivery: int
    begin: int
    end: int | None
    result: str | None
    name: str
    pid: int


class Span(NamedTuple):
    """A time in which an engine was not there to renew its leases."""

    since: int
    until: int
    why: str


class Engines(Post):
    """Engines on one store, the services that they call, a reader of the feed, and what was done to each engine."""

    def __init__(self, folder, **options: Any) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir()
        super().__init__(folder, program=mixed_engine, servers=MOST + 2, **options)
        self.reader = self.spawn(self.command("--read"), MIXED_NOTES=str(self.notes))
        self.spans: dict[int, list[Span]] = defaultdict(list)
        self.started: list[subprocess.Popen] = []
        self.standing: list[subprocess.Popen] = []
        self.drained: list[subprocess.Popen] = []

    async def start_engine(self) -> None:
        """Start an engine at a port that no other process has."""
        port = await eventually(self._free_port, "a drained engine ends")
        engine = self.start_worker(lease=LEASE, PARCEL_PORT=str(port), MIXED_NOTES=str(self.notes))
        self.port_of[engine.pid] = port
        self.started.append(engine)

    def _free_port(self) -> int | None:
        taken = {self.port_of[one.pid] for one in self._all if one.pid in self.port_of and one.poll() is None}
        return next((port for port in self.ports if port not in taken), None)

    def ended(self, engine: subprocess.Popen) -> int:
        """Return how many attempts an engine has brought to their end."""
        file = self.notes / f"runs-{engine.pid}.jsonl"
        return file.read_bytes().count(b'{"what": "end"') if file.exists() else 0

    def at_work(self) -> list[subprocess.Popen]:
        """Return the engines that get something done: others are no loss."""
        return [one for one in self.workers if one not in self.standing and self.ended(one)]

    def noted(self) -> list[Line]:
        """Return the notes of all engines."""
        return [line for file in self.notes.glob("runs-*.jsonl") for line in _lines(file)]

    def runs(self) -> list[Run]:
        """Return all attempts, and take in the times in which engines could not renew their leases."""
        lines = self.noted()
        ends = {(line["pid"], line["number"]): line for line in lines if line["what"] == "end"}
        runs = []
        for line in lines:
            if line["what"] == "lapse":
                self.spans[line["pid"]].append(Span(line["since"], line["at"], line["why"]))
            elif line["what"] == "begin":
                end = ends.get((line["pid"], line["number"]), {"at": None, "result": None})
                about = {name: line[name] for name in ("execution", "ref", "attempt", "delivery", "name", "pid")}
                runs.append(Run(begin=line["at"], end=end["at"], result=end["result"], **about))
        for pid, spans in self.spans.items():  # for the checks of parcels
            self.lost.add(pid)
            self.stopped[pid] = min(span.since for span in spans)
        return runs

    def feed_of(self, process: subprocess.Popen) -> dict[str, list[tuple[int, bytes]]]:
        """Return the events that a process has read from the feed, by their executions."""
        found = defaultdict(list)
        file = self.notes / f"feed-{process.pid}.jsonl"
        for line in file.read_bytes().split(b"\n")[:-1] if file.exists() else ():
            execution, seq, body = line.split(b" ", 2)
            found[execution.decode()].append((int(seq), body))
        return found

    def events_of(self, process: subprocess.Popen) -> int:
        """Return how many events a process has read from the feed."""
        file = self.notes / f"feed-{process.pid}.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    # What is done to engines.

    def kill_one(self, engine: subprocess.Popen) -> None:
        self.spans[engine.pid].append(Span(CLOCK.now(), FOR_EVER, "killed"))
        self.kill(engine)

    async def stop_one(self, engine: subprocess.Popen, seconds: float) -> None:
        """Let an engine stand still for longer than its leases last."""
        self.standing.append(engine)
        since = CLOCK.now()
        await self.stop_for(engine, seconds)
        self.spans[engine.pid].append(Span(since, CLOCK.now(), "stopped"))
        self.standing.remove(engine)

    async def drain_one(self, engine: subprocess.Popen) -> None:
        """Stop an engine as an operator does; it ends by itself."""
        self.workers.remove(engine)
        self.drained.append(engine)
        engine.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(engine.wait, HANGS)
        assert code == 0, f"a drained engine ended with {code}:\n{self.said(engine)}"


def _lines(file) -> Iterator[Line]:
    for line in file.read_text().splitlines():
        if line.endswith("}"):
            yield json.loads(line)


@pytest.fixture
def engines(tmp_path, request):
    engines = Engines(tmp_path, **options_of(request.param))
    try:
        yield engines
    finally:
        engines.close()


async def _disturb(engines: Engines, rng: random.Random, deeds: Sequence[str]) -> None:
    """Do something to an engine now and then; there are always enough of them, and never too many.

    In between some work is done: on a busy machine engines would be killed as soon as they begin, and what is handed
    out 20 times in vain is a dead letter.
    """
    beside: list[asyncio.Task[None]] = []
    ended = 0
    for deed in deeds:
        await asyncio.sleep(rng.uniform(0, 0.6))
        wanted = ended + IN_BETWEEN
        await eventually(lambda: sum(map(engines.ended, engines.started)) >= wanted, "work goes on")
        ended = sum(map(engines.ended, engines.started))
        if deed == "add":
            if len(engines.workers) < MOST:
                await engines.start_engine()
            continue
        busy = await eventually(engines.at_work, "an engine is at work")
        if deed == "kill":
            standing = [one for one in engines.standing if one in engines.workers]
            engines.kill_one(rng.choice([*busy, *standing]))
        elif deed == "stop":
            stopping = engines.stop_one(rng.choice(busy), rng.uniform(1.2, 1.6) * LEASE)
            beside.append(asyncio.create_task(stopping))
        else:
            beside.append(asyncio.create_task(engines.drain_one(rng.choice(busy))))
        await asyncio.sleep(0)
        while len(engines.workers) < FEWEST:
            await engines.start_engine()
    await asyncio.gather(*beside)


class Load:
    """Caravans, loaves and parcels that are sent off, each with its number."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.sent: Counter[str] = Counter()

    async def send(self, rng: random.Random, disturbing: "asyncio.Task[None]") -> None:
        """Start runs for as long as engines are disturbed, and wait until all have ended."""
        under_way: set[asyncio.Task[None]] = set()
        for number in count():
            under_way |= {asyncio.create_task(_any_outcome(one)) for one in await self._start(number)}
            await asyncio.sleep(rng.uniform(0, 0.3))
            while len(under_way) > UNDER_WAY and not disturbing.done():
                ended, _ = await asyncio.wait({*under_way, disturbing}, return_when=asyncio.FIRST_COMPLETED)
                under_way -= ended
            if disturbing.done():
                break
        await disturbing
        async with asyncio.timeout(HANGS):
            await asyncio.gather(*under_way)

    async def _start(self, number: int) -> list[Handle[Any]]:
        """Start a caravan, and now and then a flow."""
        caravan = await self._engine.start(marketplace.caravan, self._next("caravan"), id=f"caravan-{number}")
        started: list[Handle[Any]] = [caravan]
        for every, name, goal in ((2, "bread", bakery.GOAL), (4, "flow", parcel_service.GOAL)):
            if number % every == 0:
                init = {"number": self._next(name)}
                started.append(await self._engine.start_flow([goal], init, id=f"{name}-{init['number']}"))
        return started

    def _next(self, name: str) -> int:
        self.sent[name] += 1
        return self.sent[name] - 1


async def _any_outcome(run: Handle[Any]) -> None:
    """Wait for the end of a run; which one it must be is checked later."""
    with contextlib.suppress(WorkflowFailed):
        await run.result()


async def _serve_under(engines: Engines, seed: int, deeds: Sequence[str]) -> None:
    print(f"RESURGAM_SEED={seed}")
    rng = random.Random(seed)
    deeds = rng.sample(deeds, len(deeds))
    for _ in range(FEWEST):
        await engines.start_engine()
    async with engines.client() as engine:
        for one in (*bakery.STEPS, *parcel_service.steps(await engines.address())):
            await engine.register_step(one)
        book = await engine.start(marketplace.clerk, [], id=marketplace.CLERK)
        load = Load(engine)
        try:
            await load.send(rng, asyncio.create_task(_disturb(engines, rng, deeds)))
            await book.signal("close", ("", 0))
            entered = await book.result(timeout=HANGS)
            await _all_over(engine)
        except (TimeoutError, AssertionError):
            await _tell_what_hangs(engine, engines)
            raise
        assert sorted(entered) == list(range(load.sent["caravan"]))
        await all_answered(engines)
        runs, copies = engines.runs(), await _exported(engine)
        await _check_outcomes(engine, engines, load.sent)
    assert not engines.errors()
    check_answers(engines.ledger())
    await _check_histories_agree(copies, runs)
    again = _check_nothing_ran_twice(engines, runs)
    await _check_feeds(engines, copies)
    _print_figures(engines, load.sent, runs, again)


async def _instances(engine: Engine) -> list[Instance]:
    """Return all executions, the catalog of steps among them."""
    page = await engine.store.inspector.list(Query(limit=1000))
    found = [*page.instances]
    while page.cursor is not None:
        page = await engine.store.inspector.list(Query(limit=1000, cursor=page.cursor))
        found += page.instances
    return found


async def _all_over(engine: Engine) -> None:
    """Wait until nothing more can come for any execution."""
    async with asyncio.timeout(HANGS):
        while [one for one in await _instances(engine) if not one.deactivated and one.kind != "catalog"]:
            await asyncio.sleep(0.1)


async def _tell_what_hangs(engine: Engine, engines: Engines) -> None:
    """Print what is known about runs that have not ended, and what the engines have said."""
    print(await engine.store.inspector.stats())
    for worker in await engine.store.workers.list():
        print(worker)
    hanging = [one for one in await _instances(engine) if not one.deactivated and one.kind != "catalog"]
    for one in hanging:
        print(one, await engine.store.inspector.open_work(one), sep="\n    ")
    for process in engines._all:
        print(f"process {process.pid}, {process.poll()}, {engines.spans.get(process.pid)}:")
        print(engines.said(process)[-3000:])


async def _exported(engine: Engine) -> list[Copy]:
    entities = dict.fromkeys(one.entity_id for one in await _instances(engine))
    return [copy for entity in entities for copy in export.read(await engine.export(entity))]


async def _check_outcomes(engine: Engine, engines: Engines, sent: Counter[str]) -> None:
    """Check the one outcome of each entity: its value, and the whole log of each of its executions."""
    for number in range(sent["caravan"]):
        assert await engine.handle(f"caravan-{number}").result(timeout=0) == marketplace.arrived(number)
    effects = engines.effects()
    for number in range(sent["bread"]):
        handle = engine.handle(f"bread-{number}")
        assert await handle.result(timeout=0) == {bakery.GOAL: bakery.delivered(number)}
        check_bread(await handle.history(), effects)
    ledger = engines.ledger()
    for number in range(sent["flow"]):
        await check_parcel(engine, number, await outcome_of(engine, f"flow-{number}"), ledger, engines)
    found = Counter(one.name for one in await _instances(engine) if one.kind == "workflow")
    caravans = sent["caravan"]
    assert found == {
        "caravan": caravans,
        "load": marketplace.TRIPS * caravans,
        "clerk": caravans // marketplace.PAGE + 1,
        "wrap": sent["bread"],
    }
    stats = await engine.store.inspector.stats()
    assert (stats.dead_activities, stats.dead_instances) == (0, 0)


async def _check_histories_agree(copies: Sequence[Copy], runs: Sequence[Run]) -> None:
    """Check that nothing is left over, that what is recorded was done, and that nothing was done without a record."""
    of_execution = defaultdict[str, list[Run]](list)
    for run in runs:
        of_execution[run.execution].append(run)
    for copy in copies:
        assert (copy.inbox, copy.activities) == ((), ()), copy.instance
        mine = of_execution.pop(copy.instance.execution_id, [])
        if copy.instance.kind == "workflow":
            check_log(copy.log)
            report = await replay(mixed_engine.registry.workflows.find(copy.instance.name), copy.log)
            assert (report.diverged, report.new) == (None, ())
            _check_answers_were_given(copy.log, mine)
        elif copy.instance.kind == "flow":
            _check_beginnings_are_recorded(copy.log, mine)
    assert not of_execution


def _check_answers_were_given(log: Sequence[events.Event], runs: Sequence[Run]) -> None:
    """Check that each activity was run as it was recorded, and that its answer is the one of some attempt."""
    for run in runs:
        command = log[run.ref - 1]
        assert isinstance(command, events.ActivityScheduled)
        assert command.name == run.name
    given = {(run.ref, run.attempt, run.result) for run in runs}
    recorded = [one for one in log if isinstance(one, events.ActivityCompleted | events.ActivityFailed)]
    missing = [one for one in recorded if (one.ref, one.attempt, one.type) not in given]
    assert not missing


def _check_beginnings_are_recorded(log: Sequence[events.Event], runs: Sequence[Run]) -> None:
    """Check that a flow knows of each attempt of its functions and scripts that was begun; calls are checked by themselves."""
    begun = {(run.ref, run.attempt, run.delivery) for run in runs if run.name != HTTP_ACTIVITY}
    recorded = Counter(one.item for one in log if isinstance(one, fe.WorkStarted))
    times = Counter(ref for ref, *_ in begun)
    assert not {ref: times[ref] for ref in times if times[ref] > recorded[ref]}


def _check_nothing_ran_twice(engines: Engines, runs: Sequence[Run]) -> Counter[str]:
    """Check that an attempt followed another only if that was to be retried, or its engine had lost its lease.

    Deliveries are counted by the store, so they tell which claim was first. An engine that stands still between its
    claim and the attempt begins it when it goes on. Return how often leases were lost, by reason.
    """
    again: Counter[str] = Counter()
    of_activity = defaultdict[tuple[str, int], list[Run]](list)
    for run in runs:
        of_activity[run.execution, run.ref].append(run)
    for of_one in of_activity.values():
        of_one.sort(key=lambda run: (run.attempt, run.delivery, run.begin))
        for run, later in pairwise(of_one):
            if later.attempt == run.attempt + 1 and run.result == "activity_retry_scheduled":
                continue
            reasons = {
                span.why
                for span in engines.spans.get(run.pid, ())
                if span.since <= later.begin and span.until >= run.begin - 1000 * LEASE
            }
            assert reasons, (run, later, engines.spans.get(run.pid))
            again[min(reasons, key=REASONS.index)] += 1
    return again


async def _check_feeds(engines: Engines, copies: Sequence[Copy]) -> None:
    """Check that every engine has seen each event of all executions once, in order, and nothing else.

    Those that have ended have seen the first ones of each execution.
    """
    expected = {copy.instance.execution_id: [(one.seq, encode(one)) for one in copy.log] for copy in copies}
    total = sum(map(len, expected.values()))
    for process in engines._all:
        for execution, entries in engines.feed_of(process).items():
            assert [seq for seq, _ in entries] == list(range(1, len(entries) + 1)), (execution, process.pid)
    for process in (engines.reader, *engines.workers):
        deadline = CLOCK.now() + 1000 * HANGS
        while engines.events_of(process) < total and process.poll() is None and CLOCK.now() < deadline:
            await asyncio.sleep(0.05)
        assert process.poll() is None, engines.said(process)
        found = engines.feed_of(process)
        seen = {execution: [seq for seq, _ in entries] for execution, entries in found.items()}
        assert seen == {execution: [seq for seq, _ in entries] for execution, entries in expected.items()}
        for execution, entries in expected.items():
            assert [json.loads(body) for _, body in found[execution]] == [json.loads(body) for _, body in entries]


def _print_figures(engines: Engines, sent: Counter[str], runs: Sequence[Run], again: Counter[str]) -> None:
    spans = Counter(span.why for of_one in engines.spans.values() for span in of_one)
    print(f"{dict(sent)} sent; {len(engines.started)} engines, {len(engines.drained)} drained, {dict(spans)}")
    refused = len(engines.refusals())
    print(f"{len(runs)} attempts, {again.total()} repeated {dict(again)}, {refused} refusals")


@pytest.mark.parametrize("engines", STORES, indirect=True)
async def test_engines_are_killed_stopped_added_and_drained(engines):
    await _serve_under(engines, SEED, ["kill", "kill", "stop", "add", "drain"])


@pytest.mark.long
@pytest.mark.parametrize("engines", STORES, indirect=True)
@pytest.mark.parametrize("nth", range(3))
async def test_engines_are_disturbed_sixty_times(engines, nth):
    await _serve_under(engines, SEED + nth, ["kill"] * 25 + ["stop"] * 13 + ["add"] * 11 + ["drain"] * 11)
