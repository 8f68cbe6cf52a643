"""The answers of async steps, at the address that their services were given: it has a secret, so that no key is needed."""

from typing import Any, Final

import msgspec
from starlette.requests import Request

from resurgam.engine import Engine
from resurgam.web import wire
from resurgam.web.problems import MEDIA_TYPE, refused_values
from resurgam.web.routing import MAX_BODY, Call, Endpoint, Reply, decode_json, limited_body


class Answered(wire.Answer, frozen=True):
    """*first*: whether this answer was the first for its work item, which is the one that counts."""

    first: bool


class Reason(msgspec.Struct, frozen=True):
    """The part of problem details that says why a step has failed."""

    detail: str = ""
    title: str = ""


async def take_answer(engine: Engine, flow_id: str, step_id: str, token: str, request: Request) -> bool:
    """Take the answer to a call of an async step; return whether it is the first one.

    Problem details fail the step for good; any other content type must be an object of its outputs by name.
    """
    content = await limited_body(request, MAX_BODY)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == MEDIA_TYPE:
        reason: Reason = decode_json(content, Reason)
        text = reason.detail.strip() or reason.title.strip() or "the service has failed without a reason"
        return await engine.fail_work(flow_id, step_id, token, text)
    outputs = decode_json(content, dict[str, Any])
    with refused_values("body"):
        return await engine.complete_work(flow_id, step_id, token, outputs)


async def answer(call: Call[None, None]) -> Reply:
    """Take an answer; one that comes again is accepted, and changes nothing."""
    address = (call.path("flow"), call.path("step"), call.path("token"))
    return Reply(Answered(first=await take_answer(call.engine, *address, call.request)))


ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/webhook/{flow}/{step}/{token}",
        handle=answer,
        role=None,
        summary="Answer the call of an async step.",
        description=(
            "A service gets this address with the call, and answers with the outputs of the step by name. "
            "`application/problem+json` fails the step for good. Only the first answer counts; repeating it is safe."
        ),
        body=dict[str, Any],
        raw=True,
        answers={200: Answered},
        refusals={404: "No call was made with this address.", 413: "The body is too large."},
        example={"receipt": "r-1"},
        reply={"first": True},
        path_examples={"flow": "f-1", "step": "charge", "token": "3-5f2a0192f0c1d2e3"},
    ),
)
