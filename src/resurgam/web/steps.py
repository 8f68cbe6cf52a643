"""The routes of the catalog of steps."""

from typing import Final

from resurgam.core.flow_event import HealthStatus
from resurgam.flows.model import Step
from resurgam.web import wire
from resurgam.web.access import Role
from resurgam.web.paging import PageQuery, page_of
from resurgam.web.problems import Problem, refused_values
from resurgam.web.routing import Call, Endpoint, Reply


class StepPage(wire.Answer, frozen=True):
    """A page of steps, in the order of their ids; *cursor* gives the next page, null on the last."""

    steps: tuple[Step, ...]
    cursor: str | None


class StepHealth(wire.Answer, frozen=True):
    """The health of the service of a step as it was last probed, and why it is not healthy."""

    status: HealthStatus
    error: str


async def register(call: Call[None, Step]) -> Reply:
    """Add a step to the catalog."""
    _check_text(call.body.id)
    with refused_values("body"):
        await call.engine.register_step(call.body)
    return Reply(call.body, 201, {"Location": call.url_of("steps", call.body.id)})


async def list_(call: Call[PageQuery, None]) -> Reply:
    """Return a page of the steps."""
    shown, cursor = page_of(await call.engine.steps(), lambda step: step.id, call.query)
    return Reply(StepPage(steps=tuple(shown), cursor=cursor))


async def show(call: Call[None, None]) -> Reply:
    """Return the definition of a step."""
    step_id = call.path("id")
    found = next((step for step in await call.engine.steps() if step.id == step_id), None)
    if found is None:
        raise Problem(404, "not_found", f"there is no step {step_id!r}", field="path.id")
    return Reply(found)


async def replace(call: Call[None, Step]) -> Reply:
    """Replace the definition of a step."""
    step_id = call.path("id")
    if call.body.id != step_id:
        detail = f"id must be that of the path, {step_id!r}, got {call.body.id!r}"
        raise Problem(400, "bad_body", detail, field="body.id")
    with refused_values("body"):
        await call.engine.update_step(call.body)
    return Reply(call.body)


async def remove(call: Call[None, None]) -> Reply:
    """Remove a step from the catalog."""
    await call.engine.remove_step(call.path("id"))
    return Reply(status=204)


async def health(call: Call[None, None]) -> Reply:
    """Return the health of the service of a step."""
    found = await call.engine.step_health(call.path("id"))
    return Reply(StepHealth(status=found.status, error=found.error))


def _check_text(step_id: str) -> None:
    """Refuse an id that no path could name."""
    if "\0" in step_id:
        raise Problem(400, "bad_body", "id must not contain the character NUL", field="body.id")


_EXAMPLE: Final = {
    "id": "price",
    "name": "Price an order",
    "type": "sync",
    "attributes": {
        "order": {"role": "required", "type": "object"},
        "total": {"role": "output", "type": "number"},
    },
    "http": {"endpoint": "http://127.0.0.1:9000/price", "health_check": "http://127.0.0.1:9000/health"},
}
_IDS: Final = {"id": "price"}
_UNKNOWN: Final = {404: "There is no step with this id."}

ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/steps",
        handle=register,
        role=Role.ADMIN,
        summary="Add a step to the catalog.",
        description="The same definition again changes nothing and is answered alike.",
        body=Step,
        answers={201: Step},
        refusals={409: "There is a different step with this id; replace it with PUT."},
        example=_EXAMPLE,
        reply=_EXAMPLE,
    ),
    Endpoint(
        method="GET",
        path="/steps",
        handle=list_,
        role=Role.READ,
        summary="List the steps of the catalog.",
        query=PageQuery,
        answers={200: StepPage},
    ),
    Endpoint(
        method="GET",
        path="/steps/{id}",
        handle=show,
        role=Role.READ,
        summary="Show the definition of a step.",
        answers={200: Step},
        refusals=_UNKNOWN,
        reply=_EXAMPLE,
        path_examples=_IDS,
    ),
    Endpoint(
        method="PUT",
        path="/steps/{id}",
        handle=replace,
        role=Role.ADMIN,
        summary="Replace the definition of a step.",
        description="Flows that have started keep the definitions that they started with.",
        body=Step,
        answers={200: Step},
        refusals=_UNKNOWN,
        example=_EXAMPLE,
        reply=_EXAMPLE,
        path_examples=_IDS,
    ),
    Endpoint(
        method="DELETE",
        path="/steps/{id}",
        handle=remove,
        role=Role.ADMIN,
        summary="Remove a step from the catalog; steps that need it stay.",
        answers={204: None},
        refusals=_UNKNOWN,
        path_examples=_IDS,
    ),
    Endpoint(
        method="GET",
        path="/steps/{id}/health",
        handle=health,
        role=Role.READ,
        summary="Tell the health of the service of a step.",
        answers={200: StepHealth},
        refusals=_UNKNOWN,
        reply={"status": "unhealthy", "error": "the health check answered 503 Service Unavailable"},
        path_examples=_IDS,
    ),
)
