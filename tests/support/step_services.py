"""Step services as they are written for Argyll: a look-up, one that breaks at first, and one that answers later."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

PROBLEM = "application/problem+json"


@dataclass
class StepCall:
    """A call that the engine has made."""

    path: str
    body: Any
    headers: dict[str, str]

    @property
    def flow(self) -> str:
        """The flow that it was made for."""
        return self.headers.get("argyll-flow-id", "")


@dataclass
class StepServices:
    """The services, what they were called with, and what the webhook has answered them.

    The first call of */flaky* for a flow that is among *broken* waits for *go_on*, and then fails.
    """

    broken: set[str] = field(default_factory=set)
    calls: list[StepCall] = field(default_factory=list)
    webhooks: list[tuple[int, bytes]] = field(default_factory=list)
    answering: list[asyncio.Future[None]] = field(default_factory=list)
    flaky_called: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def all_answered(self) -> None:
        """Return when the webhook has answered everything that was sent to it."""
        await asyncio.gather(*self.answering)

    @property
    def app(self) -> Starlette:
        """The services as one application."""
        steps = {"/lookup": self._lookup, "/flaky": self._flaky, "/letter": self._letter}
        routes = [Route(path, one, methods=["POST"]) for path, one in steps.items()]
        return Starlette(routes=[*routes, Route("/health", lambda _: JSONResponse({"status": "healthy"}))])

    async def _call(self, request: Request) -> StepCall:
        made = StepCall(request.url.path, await request.json(), dict(request.headers))
        self.calls.append(made)
        return made

    async def _lookup(self, request: Request) -> Response:
        user = (await self._call(request)).body["user_id"]
        if user == "missing":
            problem = {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "no such user"}
            return JSONResponse(problem, 404, media_type=PROBLEM)
        return JSONResponse({"name": user.title(), "undeclared": "is dropped"})

    async def _flaky(self, request: Request) -> Response:
        call = await self._call(request)
        if call.flow in self.broken:
            self.broken.discard(call.flow)
            self.flaky_called.set()
            await self.go_on.wait()
            return JSONResponse({"detail": "the first attempt breaks"}, 500, media_type=PROBLEM)
        return JSONResponse({"score": len(call.body["name"]), "attempt_token": call.headers["argyll-receipt-token"]})

    async def _letter(self, request: Request) -> Response:
        call = await self._call(request)
        self.answering.append(asyncio.ensure_future(self._answer(call)))
        return JSONResponse({})

    async def _answer(self, call: StepCall) -> None:
        """Answer by the webhook, twice: the second time as a service that has missed the reply of the first."""
        refuses = call.body["name"] == "Refuse"
        body = {"detail": "letter refused"} if refuses else {"letter": f"Dear {call.body['name']}"}
        kind = PROBLEM if refuses else "application/json"
        async with httpx2.AsyncClient() as client:
            for _ in range(2):
                answer = await client.post(
                    call.headers["argyll-webhook-url"], json=body, headers={"content-type": kind}
                )
                self.webhooks.append((answer.status_code, answer.content))
