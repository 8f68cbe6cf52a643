"""The webhook: services of async steps send their answers here."""

from starlette.requests import Request
from starlette.responses import Response

from resurgam.core.errors import NotFound
from resurgam.engine import Engine
from resurgam.web.argyll.exchange import Refused, path_id
from resurgam.web.webhook import take_answer


async def answer_step(engine: Engine, request: Request) -> Response:
    """Take the outputs of an async step, or a problem for a permanent failure; only the first answer counts."""
    try:
        flow_id, step_id, token = (path_id(request, name) for name in ("flow", "step", "token"))
        await take_answer(engine, flow_id, step_id, token, request)
    except NotFound as error:
        raise Refused(400, str(error)) from None
    return Response(status_code=200)
