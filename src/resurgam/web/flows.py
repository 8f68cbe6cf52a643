"""The routes of goal flows and of plans."""

from typing import Final

from resurgam.flows.state import FlowState
from resurgam.web import flow_wire, wire
from resurgam.web.access import Role
from resurgam.web.instances import IDS, NOT_FOUND, STARTED, Kind, cancel, pause, resume, terminate
from resurgam.web.problems import Problem, refused_values
from resurgam.web.routing import Call, Endpoint, Reply

_FLOWS: Final = Kind("flow")


async def start(call: Call[None, flow_wire.StartFlow]) -> Reply:
    """Start a flow; the same id, goals and values give the flow that is there."""
    body = call.body
    with refused_values("body.init"):
        handle = await call.engine.start_flow(
            body.goals, body.init, id=body.id, queue=body.queue, tags=body.tags, metadata=body.metadata
        )
    ids = wire.Started(entity_id=handle.entity_id, run_id=handle.run_id, execution_id=handle.execution_id)
    return Reply(ids, 201, {"Location": call.url_of("flows", handle.entity_id)})


async def plan(call: Call[None, flow_wire.PlanRequest]) -> Reply:
    """Return a plan with the reasons for its steps."""
    body = call.body
    with refused_values("body.init"):
        made = await call.engine.plan(body.goals, body.init, mode=body.mode)
    return Reply(flow_wire.planned_of(made))


async def list_(call: Call[wire.ListQuery, None]) -> Reply:
    """Return a page of flows."""
    page = await _FLOWS.page(call.engine, call.query)
    shown = tuple(wire.Summary(**wire.summary_fields(one)) for one in page.instances)
    return Reply(flow_wire.FlowPage(flows=shown, cursor=page.cursor))


async def show(call: Call[flow_wire.ShowFlow, None]) -> Reply:
    """Return a flow with its steps and attributes."""
    found = await _FLOWS.find(call, run=call.query.run)
    handle = call.engine.handle(found.entity_id, execution_id=found.execution_id)
    described = await handle.describe()
    log = await call.engine.inspector.history(found)
    if not log:
        raise Problem(404, "not_found", f"flow {found.entity_id!r} was removed meanwhile", field="path.id")
    now = call.engine.clock.now()
    return Reply(flow_wire.flow_of(found, FlowState(log), described.waiting_for, call.query, now))


ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/flows",
        handle=start,
        role=Role.OPERATE,
        summary="Start a flow that leads to goals.",
        description="`Location` names it. With the id of a flow that is there, open or closed, nothing is started: the same "
        "goals and values are answered alike, others are a conflict (409).",
        body=flow_wire.StartFlow,
        answers={201: wire.Started},
        refusals={
            404: "A goal is no step of the catalog.",
            409: "The id belongs to a flow with other goals or values.",
        },
        example={"goals": ["ship"], "init": {"order_id": "o-1"}, "id": "o-1"},
        reply=STARTED,
    ),
    Endpoint(
        method="GET",
        path="/flows",
        handle=list_,
        role=Role.READ,
        summary="List flows, newest first.",
        query=wire.ListQuery,
        answers={200: flow_wire.FlowPage},
    ),
    Endpoint(
        method="GET",
        path="/flows/{id}",
        handle=show,
        role=Role.READ,
        summary="Show a flow: its steps, work items and attributes.",
        query=flow_wire.ShowFlow,
        answers={200: flow_wire.Flow},
        refusals=NOT_FOUND,
        path_examples=IDS,
    ),
    Endpoint(
        method="GET",
        path="/flows/{id}/events",
        handle=_FLOWS.history,
        role=Role.READ,
        summary="Return the events of a flow, page by page.",
        query=wire.HistoryQuery,
        answers={200: wire.HistoryPage},
        refusals=NOT_FOUND,
        path_examples=IDS,
    ),
    Endpoint(
        method="GET",
        path="/flows/{id}/result",
        handle=_FLOWS.result,
        role=Role.READ,
        summary="Wait for the end of a flow, and tell how it ended.",
        description="The answer is 200 once it has ended, however it did, and 202 if it has not within `timeout` seconds: ask "
        "again.",
        query=wire.ResultQuery,
        answers={200: wire.Outcome, 202: wire.Outcome},
        refusals=NOT_FOUND,
        reply={**STARTED, "status": "completed", "result": {"tracking": "T-1"}, "error": None},
        path_examples=IDS,
    ),
    _FLOWS.control(
        "cancel",
        cancel,
        "Cancel a flow; work that runs is finished.",
        body=wire.Because,
        example={"reason": "sold out"},
    ),
    _FLOWS.control("terminate", terminate, "End a flow at once.", body=wire.Because, example={"reason": "stuck"}),
    _FLOWS.control("pause", pause, "Pause a flow.", body=wire.PauseRequest, example={"reason": "audit"}),
    _FLOWS.control("resume", resume, "Resume a paused flow."),
    Endpoint(
        method="POST",
        path="/plan",
        handle=plan,
        role=Role.READ,
        summary="Plan a flow without starting it: which steps, why each, and what must be given.",
        body=flow_wire.PlanRequest,
        answers={200: flow_wire.Planned},
        refusals={404: "A goal is no step of the catalog."},
        example={"goals": ["ship"], "init": {"order_id": "o-1"}},
    ),
)
