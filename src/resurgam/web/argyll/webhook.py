"""The webhook: services of async steps send their answers here."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from resurgam.core.errors import NotFound
from resurgam.engine import Engine
from resurgam.web.argyll.exchange import Refused, path_id, read_json
from resurgam.web.problems import MEDIA_TYPE
from resurgam.web.routing import MAX_BODY


class ProblemBody(msgspec.Struct):
    """Why a service has failed for good."""

    detail: str = ""
    title: str = ""


async def answer_step(engine: Engine, request: Request) -> Response:
    """Take the outputs of an async step, or a problem for a permanent failure; only the first answer counts."""
    flow_id, step_id, token = (path_id(request, name) for name in ("flow", "step", "token"))
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == MEDIA_TYPE:
            problem = await read_json(request, ProblemBody, MAX_BODY)
            reason = problem.detail or problem.title or "the service reported a failure without a reason"
            await engine.fail_work(flow_id, step_id, token, reason)
        else:
            outputs = await read_json(request, dict[str, Any], MAX_BODY)
            await engine.complete_work(flow_id, step_id, token, outputs)
    except NotFound as error:
        raise Refused(400, str(error)) from None
    return Response(status_code=200)
