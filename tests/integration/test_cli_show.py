"""The command `resurgam show`: a page for people, a document for programs."""

import asyncio
import json

import pytest
from click.testing import CliRunner
from msgspec import Raw

from resurgam import Context, Engine, Registry
from resurgam.cli.main import main
from resurgam.cli.tree import shortened
from resurgam.core import event as events
from resurgam.flows import HttpStep
from resurgam.flows.services import PUBLIC_URL
from resurgam.runtime.system import SystemClock
from resurgam.store import records as r
from resurgam.testing import Environment
from resurgam.testing.contract.bench import OpensStores, lease_of, request, retried
from support.limits import HANGS
from support.manual_worker import FAILURE, ManualWorker, at
from support.services import PUBLIC, FakeServices, answers, service


@pytest.fixture
def url(tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("RESURGAM_STORE", f"sqlite:///{tmp_path}/shop.db")
    (tmp_path / "shop.db").touch()
    return f"sqlite:///{tmp_path}/shop.db"


def ok(*arguments):
    done = CliRunner().invoke(main, arguments, prog_name="resurgam")
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def rows(*arguments):
    return [" ".join(line.split()) for line in ok("show", *arguments).splitlines()]


def workerless_engine(url, act):
    """Do what workers would, in the store that the commands talk to."""

    async def work():
        async with Engine(url, worker=False, registry=Registry(), name="worker") as engine:
            return await act(engine, ManualWorker(engine.store, SystemClock(), OpensStores()))

    return asyncio.run(work())


async def _busy(engine, worker):
    """Begin a workflow with open work of several kinds: one activity runs, one failed, one is on a queue without a worker."""
    await engine.start("sell", {"id": 7}, 2, id="o-1", tags={"shop": "b"})
    intents = tuple(request(ref, "q" if ref < 4 else "unknown") for ref in (2, 3, 4))
    activities = [
        events.ActivityScheduled(name="charge", queue=intent.queue, **at(intent.ref - 1)) for intent in intents
    ]
    others = [
        events.ListenStarted(name="go", names=("go", "no"), deadline=9000, **at(4)),
        events.PromiseCreated(name="pay", promise_id="p-1", **at(5)),
        events.StateSet(name="step", value=Raw(b'"charging"'), **at(6)),
    ]
    await worker.does("o-1", *activities, *others, activities=intents)
    first, second = await worker.tasks(queues=["q"])
    held = lease_of(first)
    await worker.store.extend(
        [r.Lease(entity_id=held.entity_id, execution_id=held.execution_id, epoch=held.epoch, ref=held.ref, details=Raw(b'{"page":3}'), heartbeat_at=7000)]
    )  # fmt: skip
    await worker.answer(second, retried(second, 4102444800000))


def test_what_a_service_has_accepted_is_shown_with_its_deadline(url):
    services = FakeServices(pay=answers(202))

    async def work():
        async with Engine(url, registry=Registry(), outbound=services.outbound) as engine:
            await engine.store.values.put(PUBLIC_URL, PUBLIC.encode())
            await engine.register_step(HttpStep("pay", service("pay"), asynchronous=True))
            flow = await engine.start_flow(["pay"], id="f-1")
            async with asyncio.timeout(HANGS):
                while (await flow.history())[-1].type != "work_acknowledged":
                    await asyncio.sleep(0)

    asyncio.run(work())
    [shown] = [row for row in rows("f-1") if row.startswith("attempt 1 of 5")]
    assert shown.startswith("attempt 1 of 5, accepted by its service, which has until 20")


def test_open_work_is_shown_with_attempts_errors_heartbeats_and_workers(url):
    workerless_engine(url, _busy)

    page = rows("o-1")
    assert 'input [{"id":7},2]' in page
    assert 'state step = "charging"' in page
    start = page.index("waits for activity 'charge' on queue 'q' at {1}")
    assert page[start + 1].startswith("attempt 1 of 5, ")
    assert "worker-" in page[start + 1]
    assert page[start + 2 : start + 12] == [
        'heartbeat 1970-01-01 00:00:07.000Z {"page":3}',
        "waits for activity 'charge' on queue 'q' at {2}",
        "attempt 2 of 5, next attempt at 2100-01-01 00:00:00.000Z",
        "last error ValueError: no",
        "waits for activity 'charge' on queue 'unknown' at {3}",
        "attempt 1 of 5, waits for a worker that serves queue 'unknown'",
        "waits for signal 'go' or 'no' at {4}",
        "until 1970-01-01 00:00:09.000Z",
        "waits for promise 'pay' at {5}",
        "id p-1",
    ]


def test_open_work_is_a_document_for_programs(url):
    workerless_engine(url, _busy)

    found = json.loads(ok("show", "o-1", "--json"))
    assert (found["input"], found["state"], found["result"]) == ([{"id": 7}, 2], {"step": "charging"}, None)
    first, second, *_ = found["pending"]
    assert (first["kind"], first["location"], first["attempt"], first["details"]) == ("activity", "{1}", 1, {"page": 3})
    assert first["worker"].startswith("worker-")
    assert first["heartbeat_at"] == "1970-01-01T00:00:07Z"
    assert (second["status"], second["error"]["error"]) == ("retrying", "ValueError: no")
    assert second["next_try"] == "2100-01-01T00:00:00Z"


def test_the_result_and_the_failure_before_it_are_shown(url):
    async def act(engine, worker):
        await engine.start("sell", id="o-1")
        await worker.retries("o-1", "second")
        await worker.completes("o-1", b'{"total":3}')

    workerless_engine(url, act)
    page = rows("o-1")
    assert 'result {"total":3}' in page
    assert "failed before ValueError: no" in page
    assert not [line for line in page if line.startswith("waits for")]
    assert json.loads(ok("show", "o-1", "--json"))["previous_error"]["error"] == "ValueError: no"


def test_redeliveries_are_shown(url):
    async def act(engine, worker):
        await engine.start("sell", id="o-1")
        intent = request(2, "q")
        await worker.does("o-1", events.ActivityScheduled(name="charge", queue="q", **at(1)), activities=(intent,))
        for _ in range(3):
            await worker.release(await worker.task(queues=["q"]), failed="out of memory")

    workerless_engine(url, act)
    assert "redelivered 2 times" in rows("o-1")
    [work] = json.loads(ok("show", "o-1", "--json"))["pending"]
    assert work["redeliveries"] == 2


def test_a_long_list_of_open_work_and_a_long_value_are_cut(url):
    async def act(engine, worker):
        await engine.start("sell", "x" * 1000, id="o-1")
        await worker.does("o-1", *(events.TimerStarted(deadline=9000, **at(n)) for n in range(1, 31)))

    workerless_engine(url, act)
    page = rows("o-1")
    assert sum(line.startswith("waits for timer") for line in page) == 20
    assert "waits for 10 more; --json shows all" in page
    assert all(len(line) <= 420 for line in page)
    assert len(json.loads(ok("show", "o-1", "--json"))["input"][0]) == 1000


def test_an_error_is_shown_with_its_causes(url):
    async def act(engine, worker):
        await engine.start("sell", id="o-1")
        cause = events.Failure(type="builtins.KeyError", message="'x'", args=Raw(b'["x"]'))
        await worker.fails("o-1", events.Failure(type=FAILURE.type, message="no", args=Raw(b'["no"]'), cause=cause))

    workerless_engine(url, act)
    assert rows("o-1")[-2:] == ["error ValueError: no", "caused by KeyError: 'x'"]


def test_ids_in_a_tree_are_cut_to_what_tells_them_apart(url):
    user = "order-01ARZ3NDEKTSV4RRFFQ69G5FAV"
    ids = json.loads(ok("start", "sell", "--id", user, "--json"))

    cut, whole = ok("show", user, "--tree"), ok("show", user, "--tree", "--ids")
    assert f"RunID: …{ids['run_id'][-6:]}  (generation 1" in cut
    assert ids["run_id"] not in cut
    assert ids["run_id"] in whole
    assert f"WorkflowEntityID: {user}  (" in cut


def test_ids_with_the_same_end_keep_what_tells_them_apart():
    one, other = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFZQ69G5FAV"
    assert shortened([f"RunID: {one}/1#1", f"in {other}, {one}"]) == [
        "RunID: …FQ69G5FAV/1#1",
        "in …ZQ69G5FAV, …FQ69G5FAV",
    ]


def test_a_tree_shows_redeliveries_and_who_holds_an_activity(url):
    async def act(engine, worker):
        await engine.start("sell", id="o-1")
        intent = request(2, "q")
        await worker.does("o-1", events.ActivityScheduled(name="charge", queue="q", **at(1)), activities=(intent,))
        for _ in range(2):
            await worker.release(await worker.task(queues=["q"]), failed="out of memory")
        await worker.task(queues=["q"])

    workerless_engine(url, act)
    [line] = [line for line in ok("show", "o-1", "--tree").splitlines() if "ActivityExecutionID" in line]
    assert ", held by worker-" in line
    assert line.endswith(", redelivered 2 times)")
    [run] = json.loads(ok("show", "o-1", "--tree", "--json"))["runs"]
    [attempt] = run["steps"][0]["executions"]
    assert (attempt["redeliveries"], attempt["worker"].startswith("worker-")) == (2, True)


def test_whole_ids_are_asked_for_with_a_tree(url):
    done = CliRunner().invoke(main, ["show", "o-1", "--ids"], prog_name="resurgam")
    line = "Error: --ids needs --tree; give both (see resurgam show --help)\n"
    assert (done.exit_code, done.stderr) == (2, line)


def _diverge(url, **options):
    """Run a workflow, and go on with code that asks for something else."""

    async def run():
        for step in ("pay", "bill"):
            registry = Registry()

            @registry.activity(name=step)
            async def charge() -> None: ...

            @registry.workflow(name="order", **options)
            async def order(ctx: Context, charge=charge) -> None:
                await ctx.activity(charge)
                await ctx.listen("go")

            async with Environment(store=url, registry=registry) as env:
                if step == "pay":
                    await env.start("order", id="o-1")
                else:
                    await env.engine.handle("o-1").signal("go")
                    await env.settle()

    asyncio.run(run())


def test_a_run_that_failed_because_it_diverged_tells_where(url):
    _diverge(url, matching="sequence")

    page = rows("o-1")
    start = next(n for n, line in enumerate(page) if line.startswith("error DETERMINISM_VIOLATION: "))
    told = dict(line.split(" ", 1) for line in page[start + 1 :])
    assert told["class"] == "DeterminismViolation"
    assert told["source"].rpartition(":")[0].endswith("test_cli_show.py")
    assert "pay" in told["recorded"]
    assert "bill" in told["code"]
    assert "location" in told
    found = json.loads(ok("show", "o-1", "--json"))["error"]["fields"]
    assert (found["error"], found["code_value"]) == ("DeterminismViolation", told["code"])
    assert "DETERMINISM_VIOLATION (DeterminismViolation): " in ok("history", "o-1")
    assert [one["entity_id"] for one in json.loads(ok("list", "--failure", "DETERMINISM_VIOLATION", "--json"))["instances"]] == ["o-1"]  # fmt: skip


def test_a_run_that_is_parked_names_its_error(url):
    _diverge(url)

    assert any(line.startswith("error HistoryDiverged: ") for line in rows("o-1"))
    assert json.loads(ok("show", "o-1", "--json"))["error"].startswith("HistoryDiverged: ")
    assert "HistoryDiverged: " in ok("history", "o-1")
