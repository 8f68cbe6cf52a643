"""The commands `resurgam flow` and `resurgam step`: what they print for people and for programs, and how they refuse."""

import asyncio
import json
import sys
from dataclasses import dataclass

import pytest
from click.testing import CliRunner, Result

from resurgam import Engine, Registry, RetryPolicy
from resurgam.cli.main import main
from resurgam.flows import StepDecorator
from support.limits import HANGS

registry = Registry()
step = StepDecorator(registry)


@dataclass
class Order:
    customer: str
    items: list[str]


@step
def order(order_id: str) -> Order:
    """Load the order"""
    return Order("Ada", ["book"])


@step(retry=RetryPolicy(initial_interval=3600, max_interval=3600))
def price(items: list[str]) -> int:
    """Add up the prices"""
    if items == ["nothing"]:
        raise ValueError("no prices\nat all")
    return 1200


@step
def receipt(customer: str, price: int, voucher: str = "none") -> str:
    """Charge the customer"""
    return f"{price} from {customer}"


@step(retry=RetryPolicy(max_attempts=1))
def refund(receipt: str) -> str:
    """Pay back"""
    raise ValueError("no\nmoney")


VAT = {
    "id": "vat",
    "name": "Compute the tax",
    "type": "script",
    "script": {"language": "lua", "script": "return {vat = price * 0.19}"},
    "attributes": {
        "price": {"role": "required", "type": "number"},
        "vat": {"role": "output", "type": "number"},
    },
}
MODULE = """
from resurgam.flows import step

@step
def doubled(number: int) -> int:
    "Double a number"
    return 2 * number
"""


@pytest.fixture
def url(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("RESURGAM_STORE", f"sqlite:///{tmp_path}/shop.db")
    (tmp_path / "shop.db").touch()
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def catalog(url) -> str:
    """Return a store that knows the steps above."""

    async def register() -> None:
        async with Engine(url, registry=registry, worker=False) as engine:
            await engine.steps()

    asyncio.run(register())
    return url


def serve(url: str, id: str) -> None:
    """Run a worker until the flow has ended."""

    async def work() -> None:
        async with Engine(url, registry=registry) as engine:
            await asyncio.gather(engine.handle(id).result(HANGS), return_exceptions=True)

    asyncio.run(work())


def resurgam(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="resurgam")


def ok(*arguments: str) -> str:
    done = resurgam(*arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def refused(*arguments: str) -> str:
    done = resurgam(*arguments)
    assert (done.exit_code in (1, 2), done.stdout) == (True, "")
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("Error: ").rstrip("\n")


def lines(*arguments: str) -> list[str]:
    return [" ".join(line.split()) for line in ok(*arguments).splitlines()]


# Plans.


def test_a_plan_says_of_every_step_why_it_is_there(catalog):
    assert lines("flow", "plan", "receipt", "--init", '{"order_id": "o-1"}') == [
        "STEP WHY",
        "order it provides 'customer' for 'receipt'",
        "it provides 'items' for 'price'",
        "price it provides 'price' for 'receipt'",
        "receipt goal it is a goal",
    ]


def test_a_plan_says_what_is_left_out_and_what_must_be_given(catalog):
    assert lines("flow", "plan", "receipt", "--init", '{"price": 5}') == [
        "STEP WHY",
        "order it provides 'customer' for 'receipt'",
        "receipt goal it is a goal",
        "price left out everything that it provides is given: 'price'",
        "must be given: order_id, needed by order",
    ]


def test_a_strict_plan_leaves_out_what_cannot_be_had(catalog):
    assert lines("flow", "plan", "price", "--strict") == [
        "STEP WHY",
        "price goal it is a goal",
        "order left out it needs 'order_id', not given, and no step that can run provides it",
        "must be given: items, needed by price",
    ]


def test_a_plan_for_programs_is_the_plan(catalog):
    plan = json.loads(ok("flow", "plan", "price", "--init", '{"order_id": 1}', "--json"))
    assert plan["goals"] == ["price"]
    assert sorted(plan["steps"]) == ["order", "price"]
    assert plan["reasons"]["order"] == {"uses": [{"attribute": "items", "consumer": "price"}]}


def test_a_plan_is_drawn_to_a_file(catalog, tmp_path):
    ok("flow", "plan", "price", "--svg", "plan.svg")
    drawing = (tmp_path / "plan.svg").read_text()
    assert drawing.startswith("<svg ")
    assert "Add up the prices" in drawing
    assert (
        refused("flow", "plan", "price", "--svg", "no/plan.svg")
        == "cannot write no/plan.svg: No such file or directory"
    )


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["plan", "unknown"], "there is no step 'unknown' in the catalog; `resurgam step list` shows those there are"),
        (["plan"], "Missing argument 'GOAL...' (see resurgam flow plan --help)"),
        (["plan", "price", "--init", "[1]"], "'[1]' must be a JSON object, as in '{\"order_id\": \"o-1\"}'"),
        (["plan", "price", "--init", "{"], "is not JSON"),
        (["start", "receipt"], "required inputs not provided: order_id"),
        (["start", "price", "--timeout", "1"], "--timeout needs --wait"),
        (["show", "x"], "'x'"),
        (["explain", "x"], "'x'"),
    ],
)
def test_a_refusal_is_one_clear_line(catalog, arguments, part):
    assert part in refused("flow", *arguments)


# Flows.


def test_a_flow_from_start_to_end_for_people(catalog):
    started = ok("flow", "start", "receipt", "--init", '{"order_id": "o-1"}', "--id", "f-1", "--tag", "shop=b")
    assert started.startswith("started a flow for receipt as f-1 (run ")
    serve(catalog, "f-1")

    page = lines("flow", "show", "f-1")
    assert page[:3] == ["id f-1", "goals receipt", "status completed"]
    assert "tags shop=b" in page
    assert 'result {"receipt":"1200 from Ada"}' in page
    assert any(line.startswith("price completed 1 of 1 ") for line in page)
    assert any(line.startswith("order_id given ") and line.endswith('"o-1"') for line in page)
    assert any(line.startswith("customer order ") and line.endswith('"Ada"') for line in page)


def test_a_flow_from_start_to_end_for_programs(catalog):
    started = json.loads(ok("flow", "start", "price", "--init", '{"items": ["book"]}', "--id", "f-1", "--json"))
    assert (started["entity_id"], set(started)) == ("f-1", {"entity_id", "execution_id", "run_id"})
    serve(catalog, "f-1")

    page = json.loads(ok("flow", "show", "f-1", "--json"))
    assert (page["id"], page["goals"], page["status"], page["result"]) == (
        "f-1",
        ["price"],
        "completed",
        {"price": 1200},
    )
    told = page["steps"]["price"]
    assert (told["status"], told["goal"], told["error"]) == ("completed", True, None)
    assert (told["inputs"], told["outputs"]) == ({"items": ["book"]}, {"price": 1200})
    assert [(one["number"], one["status"], one["attempts"]) for one in told["items"]] == [(1, "succeeded", 1)]
    assert page["created_at"] <= told["started_at"] <= told["ended_at"] <= page["closed_at"]
    providers = {name: [one["step"] for one in values] for name, values in page["attributes"].items()}
    assert providers == {"items": [None], "price": ["price"]}
    explained = json.loads(ok("flow", "explain", "f-1", "--json"))
    assert (explained["id"], explained["status"]) == ("f-1", "completed")
    assert explained["steps"][0]["because"] == ["it provided 'price'"]


def test_the_same_flow_is_not_started_twice_and_another_is_refused(catalog):
    same = ("flow", "start", "price", "--init", '{"items": ["book"]}', "--id", "f-1")
    assert ok(*same) == ok(*same)
    assert "'f-1'" in refused("flow", "start", "price", "--init", '{"items": []}', "--id", "f-1")


def test_a_flow_is_waited_for(catalog):
    ok("flow", "start", "price", "--init", '{"items": []}', "--id", "f-1")
    serve(catalog, "f-1")
    again = lines("flow", "start", "price", "--init", '{"items": []}', "--id", "f-1", "--wait")
    assert again[1:] == ['{"price":1200}']


def test_a_failed_flow_is_one_clear_line_for_who_waits(catalog):
    failing = ("flow", "start", "refund", "--init", '{"receipt": "r"}', "--id", "f-1")
    ok(*failing)
    serve(catalog, "f-1")
    done = resurgam(*failing, "--wait")
    assert (done.exit_code, done.stdout.count("\n"), done.stderr.count("\n")) == (1, 1, 1)
    assert "no money" in done.stderr
    page = lines("flow", "explain", "f-1")
    start = page.index("refund (goal): failed")
    assert page[start + 1 : start + 3] == ["in the plan: it is a goal", "ValueError: no money"]
    told = json.loads(ok("flow", "show", "f-1", "--json"))["steps"]["refund"]
    assert told["error"]["error"] == told["items"][0]["error"]["error"] == "ValueError: no\nmoney"


def test_a_waiting_flow_is_explained(catalog):
    ok("flow", "start", "receipt", "--init", '{"order_id": "o-1"}', "--id", "f-1")
    page = lines("flow", "explain", "f-1")
    assert page[0] == "flow f-1 for receipt: active"
    start = page.index("receipt (goal): pending")
    assert page[start + 1 : start + 4] == [
        "in the plan: it is a goal",
        "waits for a value of 'customer' from 'order' (pending)",
        "waits for a value of 'price' from 'price' (pending)",
    ]
    assert page[-5:] == [
        "customer: no value; order provides it",
        "items: no value; order provides it",
        'order_id: given: "o-1"',
        "price: no value; price provides it",
        "receipt: no value; receipt provides it",
    ]


def run_until(url: str, id: str, type: str, *, cancel: bool = False) -> None:
    """Run a worker until the flow has an event of this type."""

    async def work() -> None:
        async with Engine(url, registry=registry) as engine:
            handle = engine.handle(id)
            if cancel:
                await handle.cancel()
            while not any(event.type == type for event in await handle.history()):
                await asyncio.sleep(0.01)

    asyncio.run(work())


def test_an_attempt_that_failed_is_explained_in_a_line_and_so_is_the_end(catalog):
    given = '{"items": ["nothing"], "customer": "Ada"}'
    ok("flow", "start", "receipt", "--init", given, "--id", "f-1")
    run_until(catalog, "f-1", "retry_scheduled")
    page = lines("flow", "explain", "f-1")
    assert page[0] == "flow f-1 for receipt: active"
    assert any("after ValueError: no prices at all, until " in line for line in page)

    run_until(catalog, "f-1", "flow_deactivated", cancel=True)
    page = lines("flow", "explain", "f-1")
    assert page[0] == "flow f-1 for receipt: cancelled"
    assert page[page.index("price: active") + 2] == "the flow ended before it was done"
    assert page[page.index("receipt (goal): pending") + 2] == "the flow ended before it started"


def test_a_workflow_is_no_flow(catalog):
    ok("start", "checkout", "--id", "w-1")
    assert refused("flow", "show", "w-1") == "'w-1' is not a flow; resurgam show prints workflows"


def test_the_history_of_a_flow_names_its_steps_and_attributes(catalog):
    ok("flow", "start", "price", "--init", '{"items": ["book"]}', "--id", "f-1")
    serve(catalog, "f-1")
    told = [line.split()[3:] for line in lines("history", "f-1")[1:]]
    page = lines("history", "f-1")
    assert any("step_started price" in line and line.endswith('{"items":["book"]}') for line in page), told
    assert any("attribute_set price" in line and line.endswith("1200") for line in page)


# Steps.


def write(tmp_path, name: str, content: object) -> str:
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return name


def test_steps_are_registered_updated_listed_and_removed(url, tmp_path):
    write(tmp_path, "vat.json", VAT)
    assert ok("step", "register", "vat.json") == "registered vat\n"
    assert ok("step", "register", "vat.json") == "vat is registered already\n"
    assert ok("step", "update", "vat.json") == "vat is unchanged\n"
    write(tmp_path, "vat.json", VAT | {"name": "Tax"})
    assert "resurgam step update" in refused("step", "register", "vat.json")
    assert ok("step", "update", "vat.json") == "updated vat\n"
    assert lines("step", "list") == ["ID TYPE TAKES PROVIDES NAME", "vat script price vat Tax"]
    assert ok("step", "remove", "vat") == "removed vat\n"
    assert lines("step", "list") == ["ID TYPE TAKES PROVIDES NAME"]
    assert "'vat'" in refused("step", "remove", "vat")
    assert "'vat'" in refused("step", "update", "vat.json")


def test_steps_for_programs(url, tmp_path):
    write(tmp_path, "vat.json", VAT)
    assert json.loads(ok("step", "register", "vat.json", "--json")) == [{"id": "vat", "changed": True}]
    assert json.loads(ok("step", "update", "vat.json", "--json")) == [{"id": "vat", "changed": False}]
    listed = json.loads(ok("step", "list", "--json"))
    assert (listed["count"], listed["steps"][0]["script"]["language"]) == (1, "lua")
    assert json.loads(ok("step", "remove", "vat", "--json")) == {"removed": ["vat"]}


def test_what_a_list_prints_can_be_registered_elsewhere(catalog, tmp_path):
    write(tmp_path, "steps.json", ok("step", "list", "--json"))
    elsewhere = ("--store", f"sqlite:///{tmp_path}/other.db")
    assert ok("step", "register", "steps.json", *elsewhere).splitlines() == [
        *("registered order", "registered price", "registered receipt", "registered refund")
    ]
    assert ok("step", "list", "--json", *elsewhere) == ok("step", "list", "--json")


def test_the_functions_of_a_module_are_registered(url, tmp_path):
    write(tmp_path, "doubling_steps.py", MODULE)
    assert ok("step", "register", "doubling_steps.py") == "registered doubled\n"
    assert lines("step", "list")[1:] == ["doubled python number doubled Double a number"]


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("no.json", None, "cannot read no.json: No such file or directory"),
        ("bad.json", "{", "bad.json is not JSON: "),
        ("bad.json", "[]", "bad.json has no steps"),
        ("bad.json", "7", "bad.json: step number 1: Expected `object`, got `int`"),
        ("bad.json", [VAT, {"id": "x"}], "bad.json: step 'x': Object missing required field `name`"),
        ("bad.json", VAT | {"retries": 3}, "bad.json: step 'vat': Object contains unknown field `retries`"),
        ("bad.json", [VAT, VAT | {"name": "x"}], "bad.json: step 'vat' is defined differently in bad.json"),
        ("bad.json", VAT | {"id": "V A T"}, "use 'v-a-t'"),
        ("empty_of_steps.py", "", "empty_of_steps.py defines no steps; write them with @step"),
        ("broken_steps.py", "1 / 0", "cannot import broken_steps.py"),
    ],
)
def test_a_source_that_cannot_be_read_is_one_clear_line(url, tmp_path, name, content, part):
    if content is not None:
        write(tmp_path, name, content)
    assert part in refused("step", "register", name)


def test_the_steps_before_a_refused_one_are_registered(url, tmp_path):
    write(
        tmp_path,
        "steps.json",
        [VAT, VAT | {"id": "other", "attributes": {"vat": {"role": "output", "type": "string"}}}],
    )
    done = resurgam("step", "register", "steps.json")
    assert (done.exit_code, done.stdout) == (1, "registered vat\n")
    assert "attribute 'vat' has type 'string' here and 'number' in step 'vat'" in done.stderr
