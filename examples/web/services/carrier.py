"""An asynchronous step service: it takes a parcel now, and says later that it has arrived.

Watch for: the answer to the call only acknowledges it. The result is sent to the address in the header
`Argyll-Webhook-URL`, whenever it is there; sending it twice does no harm.
"""

import asyncio
import os
import socket

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


async def deliver(webhook: str, item: str, shelf: int, cents: int) -> None:
    await asyncio.sleep(0.1)  # a day or two
    parcel = f"{item} from shelf {shelf}, {cents / 100:.2f} on delivery"
    async with httpx2.AsyncClient() as client:
        await client.post(webhook, json={"parcel": parcel})


async def ship(request: Request) -> Response:
    delivery = BackgroundTask(deliver, request.headers["Argyll-Webhook-URL"], **await request.json())
    return JSONResponse({}, status_code=202, background=delivery)


async def health(request: Request) -> Response:
    return JSONResponse({"status": "healthy"})


app = Starlette(routes=[Route("/ship", ship, methods=["POST"]), Route("/health", health)])

if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", "0"))))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])
