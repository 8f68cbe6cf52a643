"""The registered steps: the catalog, and the health of their services.

A store knows one health of each step, whichever process has looked: it is shown as that of a single node.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from resurgam.core import flow_event as fe
from resurgam.core.entry import Event
from resurgam.engine import Engine
from resurgam.flows import model as m
from resurgam.flows.catalog import Catalog, Health
from resurgam.flows.planner import steps_toward
from resurgam.flows.validate import clean_id
from resurgam.web.argyll.definitions import StepBody, step_of, with_retries
from resurgam.web.argyll.events import CATALOG, CLUSTER, CatalogTranslator, listing
from resurgam.web.argyll.exchange import Refused, answer, path_id, read_json
from resurgam.web.argyll.shapes import edges_of, moment, step_shape, steps_shape

NODE: Final = "resurgam"
"""The node that is shown."""

_STATUSES: Final = ("healthy", "unknown", "unhealthy")
"""From the best to the worst."""

MAX_BODY: Final = 512 * 1024
"""The most bytes of a step."""


async def list_all(engine: Engine, request: Request) -> Response:
    """Return all steps."""
    steps = [step_shape(step) for step in await engine.steps()]
    return answer({"steps": steps, "count": len(steps)})


async def register(engine: Engine, request: Request) -> Response:
    """Add a step; an equal one that is there counts as added."""
    step = step_of(await read_json(request, StepBody, MAX_BODY))
    await engine.register_step(with_retries(step))
    return answer({"message": "Step registered", "step": step_shape(step)}, 201)


async def show(engine: Engine, request: Request) -> Response:
    """Return one step."""
    return answer(step_shape(await _find(engine, request)))


async def update(engine: Engine, request: Request) -> Response:
    """Replace the definition of a step."""
    step, wanted = step_of(await read_json(request, StepBody, MAX_BODY)), path_id(request)
    if step.id != clean_id(wanted):
        raise Refused(400, f"the step id in the path is {wanted!r}, but the body has {step.id!r}")
    await engine.update_step(with_retries(step))
    return answer({"message": "Step updated", "step": step_shape(step)})


async def remove(engine: Engine, request: Request) -> Response:
    """Remove a step."""
    step = await _find(engine, request)
    await engine.remove_step(step.id)
    return answer({"message": "Step unregistered"})


async def _find(engine: Engine, request: Request) -> m.Step:
    wanted = path_id(request)
    for step in await engine.steps():
        if step.id == clean_id(wanted):
            return step
    raise Refused(404, f"step not found: {wanted}")


# The catalog as a whole, and the cluster.


async def overview(engine: Engine, request: Request) -> Response:
    """Return the catalog and the health of its steps."""
    catalog, cluster = await catalog_shape(engine), await cluster_shape(engine)
    last = max(catalog["last_updated"], cluster["last_updated"])
    return answer({**catalog, "health": cluster["nodes"], "last_updated": last})


async def catalog(engine: Engine, request: Request) -> Response:
    """Return the steps, and which of them provide and take each attribute."""
    return answer(await catalog_shape(engine))


async def cluster(engine: Engine, request: Request) -> Response:
    """Return the nodes, with the health of steps as each sees it."""
    return answer(await cluster_shape(engine))


async def catalog_events(engine: Engine, request: Request) -> Response:
    """Return the changes of the catalog."""
    return answer(await _events(engine, CATALOG))


async def cluster_events(engine: Engine, request: Request) -> Response:
    """Return the changes of the health of steps."""
    return answer(await _events(engine, CLUSTER))


async def health(engine: Engine, request: Request) -> Response:
    """Return the health of every step: by node, as clients expect it, and as part of the state of the cluster."""
    shape = await cluster_shape(engine)
    return answer({**shape, "health": {name: node["health"] for name, node in shape["nodes"].items()}})


async def step_health(engine: Engine, request: Request) -> Response:
    """Return the health of one step."""
    wanted = await _find(engine, request)
    steps = await engine.steps()
    return answer(_healths(steps, await _known_health(engine, steps))[wanted.id])


async def catalog_shape(engine: Engine) -> dict[str, Any]:
    """Return the state of the catalog."""
    return catalog_of(await engine.steps(), await _last_change(engine))


def catalog_of(steps: Sequence[m.Step], last: int | None) -> dict[str, Any]:
    """Return the state of a catalog with these steps; *last* is the moment of its last change."""
    return {"steps": steps_shape(steps), "attributes": edges_of(steps), "last_updated": moment(last)}


async def cluster_shape(engine: Engine) -> dict[str, Any]:
    """Return the state of the cluster."""
    last, steps = await _last_change(engine), await engine.steps()
    return cluster_of(steps, await _known_health(engine, steps), last)


async def _known_health(engine: Engine, steps: Sequence[m.Step]) -> dict[str, Health]:
    return {step.id: await engine.step_health(step.id) for step in steps if step.http is not None}


def cluster_of(steps: Sequence[m.Step], known: Mapping[str, Health], last: int | None) -> dict[str, Any]:
    """Return the state of a cluster with these steps, of whose services the health is known."""
    node = {"last_seen": moment(last), "health": _healths(steps, known)}
    return {"nodes": {NODE: node}, "last_updated": moment(last)}


def _healths(steps: Sequence[m.Step], known: Mapping[str, Health]) -> dict[str, dict[str, str]]:
    """Return the health of every step. That of a flow step is the worst of the steps that it leads to."""
    catalog = Catalog(steps)
    states = {step.id: _own_health(step, known) for step in steps}
    for step in steps:
        if step.flow is not None:
            below = [states[one] for one in _steps_below(catalog, step.flow.goals)]
            states[step.id] = max(below, key=_badness, default={"status": "unknown"})
    return states


def _own_health(step: m.Step, known: Mapping[str, Health]) -> dict[str, str]:
    """Return the health of a step by itself: a script was compiled when it was registered."""
    if step.http is None:
        return {"status": "healthy" if step.script is not None else "unknown"}
    found = known.get(step.id, Health())
    return {"status": found.status, "error": found.error} if found.error else {"status": found.status}


def _badness(state: dict[str, str]) -> int:
    return _STATUSES.index(state["status"])


def _steps_below(catalog: Catalog, goals: Sequence[str]) -> set[str]:
    """Return the steps that a flow with these goals could run, those of its flow steps in place of these."""
    if not all(goal in catalog for goal in goals):
        return set()
    return {step.id for step in steps_toward(catalog, goals) if step.flow is None}


async def _last_change(engine: Engine) -> int | None:
    found = await engine.inspector.get(fe.CATALOG)
    last = [] if found is None else await engine.inspector.history(found, 1)
    return last[-1].at if last else None


async def _events(engine: Engine, aggregate: tuple[str, ...]) -> dict[str, Any]:
    found = await engine.inspector.get(fe.CATALOG)
    log: Sequence[Event] = () if found is None else await engine.inspector.history(found, forgotten=True)
    translator = CatalogTranslator(NODE)
    told = (translator.translate(entry) for entry in log)
    return listing(event for event in told if event is not None and event.aggregate_id == aggregate)
