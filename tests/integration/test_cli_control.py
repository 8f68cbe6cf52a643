"""The commands that tell workflows something, and the drawing of all that became of one."""

import asyncio
import json
import threading

import pytest
from click.testing import CliRunner
from msgspec import Raw

from resurgam import Context, Engine, Registry, Status
from resurgam.cli.main import main
from resurgam.client.access import ANY
from resurgam.core import event as events
from resurgam.core.location import Location
from resurgam.runtime.rehearsal import query
from resurgam.runtime.system import SystemClock
from resurgam.testing.contract.bench import OpensStores
from support.limits import HANGS
from support.manual_worker import FAILURE, ManualWorker, at

registry = Registry()


@registry.workflow
async def sell(ctx: Context) -> None:
    await ctx.listen("go")


@pytest.fixture
def url(tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("RESURGAM_STORE", f"sqlite:///{tmp_path}/shop.db")
    (tmp_path / "shop.db").touch()
    return f"sqlite:///{tmp_path}/shop.db"


def resurgam(*arguments):
    return CliRunner().invoke(main, arguments, prog_name="resurgam")


def ok(*arguments):
    done = resurgam(*arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def refused(*arguments):
    """Return the one line with which a command fails."""
    done = resurgam(*arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    return line.removeprefix("Error: ")


def workerless_engine(url, act):
    """Do what workers would, in the store that the commands talk to."""

    async def work():
        async with Engine(url, worker=False, registry=Registry()) as engine:
            return await act(engine, ManualWorker(engine.store, SystemClock(), OpensStores()))

    return asyncio.run(work())


def shown(id):
    return json.loads(ok("show", id, "--json"))


def test_a_delayed_start_is_begun_by_hand(url):
    ok("start", "sell", "--id", "o-1", "--delay", "3600")
    assert shown("o-1")["status"] == "scheduled"
    assert "waits for  its start at" in ok("show", "o-1")
    assert any(line.startswith("begins ") for line in ok("show", "o-1").splitlines())

    assert ok("begin", "o-1") == "began o-1\n"
    assert shown("o-1")["status"] == "running"
    assert refused("begin", "o-1") == "workflow 'o-1' is running; only a scheduled workflow can be begun"
    ok("start", "sell", "--id", "o-2", "--delay", "3600")
    assert json.loads(ok("begin", "o-2", "--json")) == {"entity_id": "o-2", "begun": True}


def test_an_id_in_use_is_taken_or_replaced(url):
    first = json.loads(ok("start", "sell", "--id", "o-1", "--json"))
    again = json.loads(ok("start", "sell", "--id", "o-1", "--if-exists", "attach", "--json"))
    attached = ok("start", "sell", "--id", "o-1", "--if-exists", "attach")
    assert attached == f"attached to o-1 (execution {again['execution_id']})\n"
    assert ok("start", "sell", "--id", "o-7", "--if-exists", "attach").startswith("started sell as o-7 (run ")
    assert ok("start", "sell", "--if-exists", "attach").startswith("started sell as ")
    other = json.loads(ok("start", "sell", "--id", "o-1", "--if-exists", "replace", "--json"))

    assert again["run_id"] == first["run_id"] != other["run_id"]
    assert len(json.loads(ok("list", "--all", "--status", "terminated", "--json"))["instances"]) == 1


def test_a_tree_is_paused_and_resumed(url):
    async def family(engine, worker):
        await worker.starts_child("o-1", "c-1")

    ok("start", "sell", "--id", "o-1")
    workerless_engine(url, family)
    assert ok("pause", "o-1", "--tree", "--reason", "lunch") == "paused o-1 and its descendants\n"
    assert [shown(one)["status"] for one in ("o-1", "c-1")] == ["paused", "paused"]
    assert "waits for  a resume: handle.resume()" in ok("show", "o-1")

    assert ok("resume", "o-1") == "resumed o-1\n"
    assert [shown(one)["status"] for one in ("o-1", "c-1")] == ["running", "running"]
    assert refused("resume", "o-1") == "workflow 'o-1' is running, not paused; there is nothing to resume"
    assert json.loads(ok("pause", "o-1", "--json")) == {"entity_id": "o-1", "paused": "alone"}
    assert json.loads(ok("resume", "o-1", "--json")) == {"entity_id": "o-1", "resumed": True}


def test_children_are_listed_and_show_their_parent(url):
    async def family(engine, worker):
        await worker.starts_child("o-1", "c-1")

    ok("start", "sell", "--id", "o-1")
    workerless_engine(url, family)

    [child] = json.loads(ok("list", "--parent", "o-1", "--json"))["instances"]
    assert (child["entity_id"], child["parent"]["entity_id"], child["parent"]["location"]) == ("c-1", "o-1", "{1}")
    assert shown("c-1")["parent"] == child["parent"]
    assert "parent     o-1 at {1} (run " in ok("show", "c-1")
    assert len(ok("list", "--parent", "o-1").splitlines()) == 2


def test_promises_are_settled_by_id_and_by_name(url):
    async def promise(engine, worker):
        await worker.promises("o-1", "pay", "p-1")

    ok("start", "sell", "--id", "o-1")
    workerless_engine(url, promise)

    assert "promise_created" in ok("history", "o-1")
    assert "p-1" in ok("history", "o-1")
    assert ok("resolve", "pay", "5", "--workflow", "o-1") == "resolved promise pay\n"
    assert ok("resolve", "p-1", "5") == "promise p-1 was already settled; nothing was changed\n"
    rejected = json.loads(ok("reject", "p-1", "too late", "--json"))
    assert rejected == {"promise": "p-1", "workflow": None, "rejected": False}
    assert refused("resolve", "p-9").startswith("there is no promise with id 'p-9'")
    assert refused("reject", "ship", "no", "--workflow", "o-1") == "workflow 'o-1' has no promise 'ship'; it has 'pay'"
    assert refused("resolve", "pay", "--workflow", "o-9") == "there is no workflow with id 'o-9'"


def test_a_failed_workflow_is_tried_again(url):
    async def fail(engine, worker):
        await worker.fails("o-1")

    ok("start", "sell", "--id", "o-1")
    assert refused("retry", "o-1").startswith("workflow 'o-1' (running) has nothing to retry")
    workerless_engine(url, fail)

    assert ok("retry", "o-1").startswith("started attempt 2 of o-1 (execution ")
    assert (shown("o-1")["attempt"], shown("o-1")["status"]) == (2, "running")
    assert "previous   " in ok("show", "o-1")
    workerless_engine(url, fail)
    again = json.loads(ok("retry", "o-1", "--json"))
    assert (again["revived"], again["attempt"]) == (1, 3)


class Serving:
    """A worker in a thread, for as long as the block lasts."""

    def __init__(self, url):
        self._url, self._over, self._open = url, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self):
        async with Engine(self._url, registry=registry):
            self._open.set()
            await asyncio.to_thread(self._over.wait)

    def __enter__(self):
        self._thread.start()
        assert self._open.wait(HANGS)

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


def test_a_query_is_answered_by_a_worker(url, monkeypatch):
    def answer(workflow, log, query, written, settings):
        if query == "broken":
            raise ValueError("no total\nat all")
        return Raw(b'{"of":%s}' % bytes(written)), ANY

    monkeypatch.setattr(query, "answer_query", answer)
    ok("start", "sell", "--id", "o-1")
    with Serving(url):
        assert ok("query", "o-1", "total", "[1, 2]") == '{"of":[1,2]}\n'
        assert json.loads(ok("query", "o-1", "total", "--json")) == {
            "entity_id": "o-1",
            "query": "total",
            "answer": {"of": []},
        }
        assert refused("query", "o-1", "broken") == "query 'broken' of o-1 raised ValueError: no total at all"


def test_a_query_without_an_answer_is_one_line(url):
    ok("start", "sell", "--id", "o-1")

    assert "no worker of queue 'default' answered it" in refused("query", "o-1", "total", "--timeout", "0.05")
    assert refused("query", "o-9", "total") == "there is no workflow with id 'o-9'"
    assert resurgam("query", "o-1", "total", "--timeout", "-1").exit_code == 2


def test_an_update_is_done_and_its_result_printed(url):
    async def take(engine, worker):
        waiting = asyncio.ensure_future(engine.handle("o-1").update("add", 1, id="u-1"))
        while not (await engine.store.transfer.copies("o-1"))[0].inbox:
            await asyncio.sleep(0)
        await worker.does("o-1", events.UpdateCompleted(ref=2, id="u-1", result=Raw(b"7")))
        return await waiting

    ok("start", "sell", "--id", "o-1")
    assert workerless_engine(url, take) == 7

    assert ok("update", "o-1", "add", "1", "--id", "u-1") == "7\n"
    done = json.loads(ok("update", "o-1", "add", "1", "--id", "u-1", "--json"))
    assert done == {"entity_id": "o-1", "update": "add", "result": 7}
    assert "update 'add' of workflow 'o-1' is not done yet" in refused("update", "o-1", "add", "--timeout", "0.05")
    assert refused("update", "o-9", "add") == "there is no workflow with id 'o-9'"


# The drawing.


def place(*coordinates):
    return {"location": Location(*((n,) for n in coordinates)), "command": "Some(0)"}


async def a_life(engine, worker):
    """Have o-1 do something of every kind, fail, be tried again, and continue as new."""
    await worker.does(
        "o-1",
        events.ActivityScheduled(name="charge", queue="cards", **place(1)),
        events.ActivityRetryScheduled(ref=2, attempt=1, next_at=0, failure=FAILURE),
        events.ActivityCompleted(ref=2, attempt=2),
        events.OperationStarted(name="draw", **place(2)),
        events.OperationCompleted(ref=5),
        events.SagaStepRegistered(name="book", undo="unbook", **place(3)),
        events.ActivityScheduled(name="book", queue="trips", **place(3, 1, 1)),
        events.ActivityCompleted(ref=8),
        events.SagaCompensationStarted(ref=7),
        events.ActivityScheduled(name="unbook", queue="trips", **place(3, 2, 1)),
        events.ActivityCompleted(ref=11),
        events.SagaClosed(ref=7, outcome="compensated"),
        events.PromiseCreated(name="pay", promise_id="p-1", **place(4)),
        events.TimerStarted(deadline=10**15, **place(5)),
    )
    await engine.handle("o-1").signal("go")
    await worker.starts_child("o-1", "c-1", place=6, queue="slow")
    await worker.does("c-1", events.ActivityScheduled(name="ship", queue="slow", **place(1)))
    await worker.retries("o-1", "second-try")
    await worker.does("o-1", events.OperationStarted(name="draw", **place(2)))
    await engine.handle("o-1").signal("go")
    await worker.continues("o-1", "run-two")


def test_all_that_became_of_a_workflow_is_drawn_with_every_id(url):
    started = json.loads(ok("start", "sell", "--id", "o-1", "--json"))
    workerless_engine(url, a_life)
    run, first = started["run_id"], started["execution_id"]
    child = shown("c-1")

    assert ok("show", "o-1", "--tree", "--ids").splitlines() == [
        f"RunID: {run}  (generation 1 in tree {run})",
        "└── WorkflowEntityID: o-1  (sell on queue default)",
        f"    ├── WorkflowExecutionID: {first}  (attempt 1, failed)",
        f"    ├── WorkflowExecutionID: second-try  (attempt 2, continued, after {first})",
        "    ├── Activity charge at {1} on queue cards: completed",
        f"    │   ├── ActivityEntityID: {run}/1",
        f"    │   ├── ActivityExecutionID: {run}/1#1  (attempt 1, failed, in {first})",
        f"    │   └── ActivityExecutionID: {run}/1#2  (attempt 2, completed, in {first})",
        "    ├── SideEffect draw at {2}: open",
        f"    │   ├── SideEffectEntityID: {run}/2",
        f"    │   ├── SideEffectExecutionID: {run}/2#1  (attempt 1, completed, in {first})",
        f"    │   └── SideEffectExecutionID: {run}/2#2  (attempt 2, open, in second-try)",
        "    ├── Saga at {3}: compensated",
        f"    │   ├── SagaEntityID: {run}/3",
        "    │   └── Step book at {3}: compensated",
        f"    │       ├── SagaExecutionID: {run}/3/1  (Transaction, completed)",
        "    │       │   └── Activity book at {3, 1, 1} on queue trips: completed",
        f"    │       │       ├── ActivityEntityID: {run}/3/1/1",
        f"    │       │       └── ActivityExecutionID: {run}/3/1/1#1  (attempt 1, completed, in {first})",
        f"    │       └── SagaExecutionID: {run}/3/2  (Compensation, completed)",
        "    │           └── Activity unbook at {3, 2, 1} on queue trips: completed",
        f"    │               ├── ActivityEntityID: {run}/3/2/1",
        f"    │               └── ActivityExecutionID: {run}/3/2/1#1  (attempt 1, completed, in {first})",
        "    ├── Promise pay at {4}: open",
        "    │   └── PromiseEntityID: p-1",
        "    ├── Timer at {5}: open",
        f"    │   └── TimerEntityID: {run}/5",
        "    └── Sub-workflow sell at {6}",
        "        ├── WorkflowEntityID: c-1",
        "        ├── TaskQueue: slow",
        f"        └── RunID: {child['run_id']}  (generation 1)",
        f"            ├── WorkflowExecutionID: {child['execution_id']}  (attempt 1, running)",
        "            └── Activity ship at {1} on queue slow: open",
        f"                ├── ActivityEntityID: {child['run_id']}/1",
        f"                └── ActivityExecutionID: {child['run_id']}/1#1  (attempt 1, open, in {child['execution_id']})",
        f"RunID: run-two  (generation 2 in tree {run})",
        "└── WorkflowEntityID: o-1  (sell on queue default)",
        "    └── WorkflowExecutionID: run-two-x  (attempt 1, running, after second-try)",
    ]


def test_all_that_became_of_a_workflow_is_data_for_programs(url):
    run = json.loads(ok("start", "sell", "--id", "o-1", "--json"))["run_id"]
    workerless_engine(url, a_life)
    found = json.loads(ok("show", "o-1", "--tree", "--json"))

    assert (found["entity_id"], found["tree_id"]) == ("o-1", run)
    first, second = found["runs"]
    assert [(e["attempt"], e["status"]) for e in first["executions"]] == [(1, "failed"), (2, "continued")]
    assert [s["kind"] for s in first["steps"]] == ["activity", "side_effect", "saga", "promise", "timer"]
    [child] = first["children"]
    assert (child["location"], child["workflow"]["entity_id"], child["workflow"]["queue"]) == ("{6}", "c-1", "slow")
    assert (second["run_id"], second["generation"]) == ("run-two", 2)


def test_the_tree_of_a_child_is_its_own(url):
    ok("start", "sell", "--id", "o-1")
    workerless_engine(url, a_life)

    assert [run["run_id"] for run in json.loads(ok("show", "c-1", "--tree", "--json"))["runs"]] == [
        shown("c-1")["run_id"]
    ]
    assert refused("show", "o-9", "--tree") == "there is no workflow with id 'o-9'"


def test_a_detached_child_is_drawn_without_what_it_did(url):
    async def detach(engine, worker):
        other = await engine.start("sell", id="d-1")
        await worker.does("d-1", events.ActivityScheduled(name="ship", queue="slow", **at(1)))
        await worker.does(
            "o-1",
            events.ChildScheduled(
                name="sell", queue="default", entity_id="d-1", run_id=other.run_id, detach=True, **at(1)
            ),
            events.ChildScheduled(name="sell", queue="default", entity_id="gone", run_id="r", detach=True, **at(2)),
            events.WorkflowCompleted(),
            status=Status.COMPLETED,
        )

    ok("start", "sell", "--id", "o-1")
    workerless_engine(url, detach)

    drawn = ok("show", "o-1", "--tree", "--ids")
    assert f"Sub-workflow sell at {{1}}, detached, in tree {shown('d-1')['tree_id']}" in drawn
    assert "ship" not in drawn
    assert "WorkflowEntityID: gone" in drawn
