"""An app that is mounted in another program."""

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from resurgam import Engine, Registry
from resurgam.flows import HttpStep
from resurgam.web import app, set_public_url
from support.services import FakeServices

PUBLIC = "http://localhost/flows-of/the%20shop"


async def test_an_async_step_answers_below_the_place_where_the_app_is_mounted():
    async def ship(request: httpx2.Request) -> httpx2.Response:
        assert (await client.post(request.headers["Argyll-Webhook-URL"], json={"parcel": "p-1"})).status_code == 200
        return httpx2.Response(202)

    async with Engine("memory://", registry=Registry(), outbound=FakeServices(ship=ship).outbound) as engine:
        program = Starlette(routes=[Mount("/flows-of/the shop", app(engine, keys=False))])
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=program)) as client:
            await set_public_url(engine, f"{PUBLIC}/")
            await engine.register_step(
                HttpStep("ship", "http://carrier.test/ship", outputs=["parcel"], asynchronous=True)
            )
            started = await client.post(f"{PUBLIC}/flows", json={"id": "f", "goals": ["ship"]})
            assert httpx2.URL(PUBLIC).join(started.headers["location"]).path == "/flows-of/the shop/flows/f"
            assert (await client.get(f"{PUBLIC}/flows/f/result")).json()["result"] == {"parcel": "p-1"}


@pytest.mark.parametrize("url", ["shop.example", "ftp://shop.example", "https://", "https://shop.example/?a=b", ""])
async def test_an_address_to_which_no_path_can_be_added_is_refused(url):
    async with Engine("memory://", registry=Registry()) as engine:
        with pytest.raises(ValueError, match="must be the address of the app, such as"):
            await set_public_url(engine, url)


async def test_an_address_with_a_password_is_refused_and_not_repeated():
    async with Engine("memory://", registry=Registry()) as engine:
        with pytest.raises(ValueError, match="must not contain a user or a password") as refused:
            await set_public_url(engine, "https://ann:hidden@shop.example")
        assert "hidden" not in str(refused.value)
