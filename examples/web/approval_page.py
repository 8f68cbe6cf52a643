"""An approval page: a person decides in the browser, and the workflow that waits for it goes on.

Watch for: the address is all that the page needs, because it holds the id of a promise, which cannot be guessed. Stop the
program and start it again: the question is still open, at the same address.
"""

import asyncio
import os

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from resurgam import Context, Engine, activity, errors, workflow

PORT = int(os.environ.get("PORT", "8000"))
FORM = "<form method=post><button formaction=?buy=yes>Buy it</button> <button formaction=?buy=no>No</button></form>"


@activity
async def ask(what: str, promise_id: str) -> None:
    print(f"May we buy {what}? Decide at http://127.0.0.1:{PORT}/{promise_id}", flush=True)


@workflow
async def purchase(ctx: Context, what: str) -> str:
    approval = ctx.promise("approval", type=bool, timeout=7 * 86400)
    await ctx.activity(ask, what, approval.promise_id)
    return f"{what} is bought" if await approval else f"{what} is too expensive"


async def main() -> None:
    async def page(request: Request) -> HTMLResponse:
        if request.method == "GET":
            return HTMLResponse(FORM)
        try:
            first = await engine.resolve(request.path_params["promise_id"], request.query_params.get("buy") == "yes")
        except errors.NotFound:
            return HTMLResponse("There is no such question.", 404)
        return HTMLResponse("Thank you." if first else "This is decided already.")

    async with Engine("sqlite:///purchases.db") as engine:
        handle = await engine.start(purchase, "a piano", id="piano", if_exists="attach")
        site = Starlette(routes=[Route("/{promise_id}", page, methods=["GET", "POST"])])
        server = uvicorn.Server(uvicorn.Config(site, port=PORT, log_level="warning"))
        serving = asyncio.create_task(server.serve())
        print(await handle.result())
        server.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(main())
