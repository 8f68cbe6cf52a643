"""The route by which promises are settled from outside."""

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, UnsetType

from resurgam.web import wire
from resurgam.web.access import Role
from resurgam.web.problems import Problem, refused_values
from resurgam.web.routing import Call, Endpoint, Reply


class Settlement(wire.Request, frozen=True):
    """How a promise is settled: with a *value*, or with an *error*, never both."""

    value: Annotated[Any, Meta(description="Resolve it with this value.", examples=[True])] | UnsetType = UNSET
    error: Annotated[str, Meta(description="Reject it with this message.", max_length=10_000)] | UnsetType = UNSET


_EITHER: Final = {"oneOf": [{"required": ["value"]}, {"required": ["error"]}]}


class Settled(wire.Answer, frozen=True):
    """*first*: whether this settlement was the first, which is the one that counts."""

    promise_id: str
    first: bool


async def settle(call: Call[None, Settlement]) -> Reply:
    """Resolve or reject a promise."""
    promise_id, body = call.path("promise_id"), call.body
    if (body.value is UNSET) == (body.error is UNSET):
        raise Problem(400, "bad_body", 'the body must have "value" or "error", and not both', field="body")
    with refused_values("body.value"):
        if body.error is UNSET:
            first = await call.engine.resolve(promise_id, body.value)
        else:
            first = await call.engine.reject(promise_id, body.error)
    return Reply(Settled(promise_id=promise_id, first=first))


ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/promises/{promise_id}",
        handle=settle,
        role=Role.OPERATE,
        summary="Settle a promise of a workflow, with a value or an error.",
        description="Only the first settlement counts; repeating it is safe.",
        body=Annotated[Settlement, Meta(extra_json_schema=_EITHER)],
        answers={200: Settled},
        refusals={404: "There is no promise with this id."},
        example={"value": True},
        reply={"promise_id": "5f2a0192f0c1d2e3", "first": True},
        path_examples={"promise_id": "5f2a0192f0c1d2e3"},
    ),
)
