"""A pydantic-ai agent in a workflow: answers of the model and calls of tools are recorded, and not repeated after a crash.

Watch for: the agent is built as pydantic-ai's documentation does it. Only `DurableModel` and the activities are new. Run it
as `python pydantic_ai_agent.py sqlite:///trips.db`, kill it at any moment and run it again: it continues where it was.
"""

import asyncio
import sys
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from resurgam import Context, Engine, RetryPolicy, activity, workflow

# The agent: ordinary code of pydantic-ai.


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Play the model: book two tickets, then report what the tools have returned."""
    print(f"the model is asked, with {len(messages)} messages")
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("book", {"city": city}) for city in ("Rome", "Oslo")])
    tickets = [str(part.content) for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    return ModelResponse(parts=[TextPart(f"Booked: {', '.join(tickets)}.")])


model = FunctionModel(answer)  # a real one is OpenAIResponsesModel("gpt-5"), AnthropicModel("claude-sonnet-4-5") ...
agent = Agent(model, deps_type=Context, instructions="Book what the user wants.")


@agent.tool
async def book(run: RunContext[Context], city: str) -> str:
    """Book a ticket to a city."""
    return await run.deps.activity(buy_ticket, city)


# The durable layer.


@activity
async def buy_ticket(city: str) -> str:
    print(f"a ticket to {city} is bought")
    return f"ticket to {city}"


PARAMETERS = TypeAdapter(ModelRequestParameters)


def as_json(messages: list[ModelMessage]) -> list[Any]:
    return cast("list[Any]", ModelMessagesTypeAdapter.dump_python(messages, mode="json"))


@activity(retry=RetryPolicy(max_attempts=8), timeout=120)
async def ask_model(messages: list[Any], settings: dict[str, Any] | None, parameters: dict[str, Any]) -> list[Any]:
    response = await model.request(
        ModelMessagesTypeAdapter.validate_python(messages),
        cast("ModelSettings | None", settings),
        PARAMETERS.validate_python(parameters),
    )
    return as_json([response])


class DurableModel(WrapperModel):
    """The model as the workflow sees it: each request is an activity, whose arguments and result are plain JSON."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(model)
        self._ctx = ctx

    async def request(
        self, messages: list[ModelMessage], model_settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> ModelResponse:
        """Ask the model, unless its answer is recorded."""
        settings = cast("dict[str, Any] | None", model_settings)
        answer = await self._ctx.activity(
            ask_model, as_json(messages), settings, PARAMETERS.dump_python(parameters, mode="json")
        )
        [response] = ModelMessagesTypeAdapter.validate_python(answer)
        assert isinstance(response, ModelResponse)
        return response


@workflow
async def travel(ctx: Context, wish: str) -> str:
    result = await agent.run(wish, deps=ctx, model=DurableModel(ctx))
    return result.output


async def main(store: str = "memory://") -> None:
    async with Engine(store) as engine:
        handle = await engine.start(travel, "To Rome and Oslo!", id="trip-1", if_exists="attach")
        print(await handle.result())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
