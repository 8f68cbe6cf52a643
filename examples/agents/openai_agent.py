"""An agent of the OpenAI Agents SDK in a workflow: answers of the model and calls of tools are recorded.

Watch for: the agent is built as the documentation of the SDK does it. Only `DurableModel` and the activity are new. Run it
as `python openai_agent.py sqlite:///refunds.db`, kill it at any moment and run it again: it continues where it was.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any, cast

from agents import Agent, Model, ModelResponse, RunConfig, RunContextWrapper, Runner, Usage, function_tool
from agents.items import TResponseInputItem, TResponseStreamEvent
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic import TypeAdapter

from resurgam import Context, Engine, activity, workflow

# The agent: ordinary code of the SDK.


class FakeModel(Model):
    """Plays the model: refund an order, then report what the tool has returned."""

    async def get_response(
        self, system_instructions: str | None, input: str | list[TResponseInputItem], *args: Any, **kwargs: Any
    ) -> ModelResponse:
        """Return a call of the tool, or a message."""
        print(f"the model is asked, with {len(input)} items")
        last: Any = input[-1]
        if len(input) == 1:
            call = ResponseFunctionToolCall(
                type="function_call", call_id="call-1", name="refund", arguments='{"order": "o-1", "cents": 4200}'
            )
            return ModelResponse(output=[call], usage=Usage(requests=1), response_id=None)
        text = ResponseOutputText(type="output_text", text=f"Done: {last['output']}.", annotations=[])
        message = ResponseOutputMessage(
            id="message-1", type="message", role="assistant", status="completed", content=[text]
        )
        return ModelResponse(output=[message], usage=Usage(requests=1), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Refuse."""
        raise NotImplementedError


@function_tool
async def refund(run: RunContextWrapper[Context], order: str, cents: int) -> str:
    """Refund an order."""
    return await run.context.activity(pay_back, order, cents)


agent = Agent[Context](name="Refunds", instructions="Refund what customers complain about.", tools=[refund])
model = FakeModel()  # a real one is OpenAIProvider().get_model("gpt-5")

# The durable layer.


@activity
async def pay_back(order: str, cents: int) -> str:
    print(f"{cents} cents are paid back for {order}")
    return f"{cents} cents for {order}"


RESPONSE = TypeAdapter(ModelResponse)


class DurableModel(Model):
    """The model as the workflow sees it: each request is a recorded side effect.

    An activity would have to serialize its arguments, and those of this call are tools, handoffs and output types.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Ask the model, unless its answer is recorded."""

        async def ask_model() -> dict[str, Any]:
            response = await model.get_response(*args, **kwargs)
            # Fields that the model has not set are sent back to it as null otherwise, and it may refuse them.
            return cast("dict[str, Any]", RESPONSE.dump_python(response, mode="json", exclude_unset=True))

        return RESPONSE.validate_python(await self._ctx.run(ask_model))

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Refuse."""
        raise NotImplementedError("a stream cannot be recorded; use Runner.run")


@workflow
async def complaint(ctx: Context, text: str) -> str:
    # Traces are sent by a thread, which a workflow may not start.
    config = RunConfig(model=DurableModel(ctx), tracing_disabled=True)
    result = await Runner.run(agent, [{"role": "user", "content": text}], context=ctx, run_config=config)
    return result.final_output_as(str)


async def main(store: str = "memory://") -> None:
    async with Engine(store) as engine:
        handle = await engine.start(complaint, "Order o-1 is broken.", id="complaint-1", if_exists="attach")
        print(await handle.result())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
