"""Signals whose type is a pydantic model: the sender of one that does not fit is told, and the workflow goes on."""

from typing import Literal

import pytest
from pydantic import BaseModel

from resurgam import Context, Engine, Registry, errors
from resurgam.store.memory.store import MemoryStore
from resurgam.testing import Environment, ManualClock

registry = Registry()


class Answer(BaseModel):
    response: Literal["confirm", "deny"]


@registry.workflow
async def approval(ctx: Context) -> str:
    return (await ctx.listen("answer", type=Answer)).response


@pytest.mark.parametrize("code", [registry, Registry()], ids=["with the code", "without it"])
async def test_a_signal_that_does_not_fit_its_model_is_refused_at_the_sender(code):
    clock = ManualClock()
    store = MemoryStore(clock)
    async with (
        Environment(store=store, clock=clock, registry=registry) as env,
        Engine(store, worker=False, clock=clock, registry=code) as client,
    ):
        handle = await env.start(approval, id="a")
        await env.settle()
        with pytest.raises(errors.SerializationError, match=r"signal 'answer'\.response: Input should be 'confirm'"):
            await client.handle("a").signal("answer", {"response": "perhaps"})
        await client.handle("a").signal("answer", Answer(response="confirm"))
        assert await env.finish(handle.result()) == "confirm"
