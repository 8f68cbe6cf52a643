"""Plan, start and show flows."""

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from resurgam.core.entry import Event
from resurgam.core.flow_event import FLOW
from resurgam.engine import Engine
from resurgam.flows.validate import clean_id
from resurgam.store.records import Instance
from resurgam.web.argyll import query
from resurgam.web.argyll.events import flow_events, listing
from resurgam.web.argyll.exchange import Refused, answer, path_id, read_json
from resurgam.web.argyll.shapes import plan_shape
from resurgam.web.argyll.state import flow_shape
from resurgam.web.problems import refused_values

MAX_BODY: Final = 1024 * 1024
MAX_ID: Final = 256
MAX_GOALS: Final = 64
MAX_INIT: Final = 128
MAX_LABELS: Final = 32
"""The limits of the original: bytes of a body, characters of an id, goals, given names and labels of a flow."""


class PlanBody(msgspec.Struct):
    """What a plan shall lead to."""

    goals: list[str] | None = None
    init: dict[str, list[Any] | None] | None = None


class FlowBody(PlanBody):
    """A flow to start."""

    id: str = ""
    labels: dict[str, str] | None = None


async def plan(engine: Engine, request: Request) -> Response:
    """Return the plan that leads to goals, with what is missing for it."""
    body = await read_json(request, PlanBody, MAX_BODY)
    with refused_values("body"):
        made = await engine.plan(_goals(body), _given(body), many=True)
    return answer(plan_shape(made, "preview"))


async def start(engine: Engine, request: Request) -> Response:
    """Start a flow; one that is there with the same goals and values counts as started."""
    body = await read_json(request, FlowBody, MAX_BODY)
    flow_id = clean_id(body.id)
    if not flow_id or len(flow_id) > MAX_ID:
        raise Refused(400, f"flow id must have 1 to {MAX_ID} letters, digits or '_.+-', got {body.id!r}")
    labels = body.labels or {}
    if len(labels) > MAX_LABELS:
        raise Refused(400, f"a flow has at most {MAX_LABELS} labels, got {len(labels)}")
    with refused_values("body"):
        await engine.start_flow(_goals(body), _given(body), id=flow_id, tags=labels, many=True)
    return answer({"flow_id": flow_id, "message": ""}, 201)


async def list_all(engine: Engine, request: Request) -> Response:
    """Return all flows, the newest first."""
    rows = sorted(await query.roots(engine, {}), key=lambda row: (-row.recent, row.id))
    return answer([row.shape(labels=False) for row in rows])


async def search(engine: Engine, request: Request) -> Response:
    """Return a page of the flows that are asked for."""
    return answer(await query.query(engine, await read_json(request, query.QueryBody, MAX_BODY)))


async def show(engine: Engine, request: Request) -> Response:
    """Return the whole state of a flow."""
    return answer(flow_shape(await _log(engine, await _find(engine, request))))


async def status(engine: Engine, request: Request) -> Response:
    """Return the status of a flow as lists show it."""
    found = await _find(engine, request)
    return answer({"id": found.entity_id, "status": query.index_status(found)})


async def events(engine: Engine, request: Request) -> Response:
    """Return the events of a flow."""
    return answer(listing(flow_events(await _log(engine, await _find(engine, request)))))


async def _find(engine: Engine, request: Request) -> Instance:
    """Return the flow that a path names, by its id as it is or cleaned."""
    given = path_id(request)
    for flow_id in dict.fromkeys((given, clean_id(given))):
        found = await engine.inspector.get(flow_id) if flow_id else None
        if found is not None and found.kind == FLOW:
            return found
    raise Refused(404, f"flow not found: {given}")


async def _log(engine: Engine, found: Instance) -> list[Event]:
    return [*await engine.inspector.history(found)]


def _goals(body: PlanBody) -> list[str]:
    goals = list(dict.fromkeys(clean_id(goal) for goal in body.goals or ()))
    if not goals or not all(goals):
        raise Refused(400, "at least one goal step id is required")
    if len(goals) > MAX_GOALS:
        raise Refused(400, f"a flow has at most {MAX_GOALS} goals, got {len(goals)}")
    return goals


def _given(body: PlanBody) -> dict[str, list[Any]]:
    given = {name: values or [] for name, values in (body.init or {}).items()}
    if len(given) > MAX_INIT:
        raise Refused(400, f"a flow is given at most {MAX_INIT} attributes, got {len(given)}")
    return given
