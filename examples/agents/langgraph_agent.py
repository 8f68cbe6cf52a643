"""A LangGraph agent in a workflow: answers of the model and calls of tools are recorded, and not repeated after a crash.

Watch for: the graph is built as LangGraph's documentation does it. Only `DurableModel` and the activities are new. Run it as
`python langgraph_agent.py sqlite:///stock.db`, kill it at any moment and run it again: it continues where it was.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    message_to_dict,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableBinding
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import get_runtime

from resurgam import Context, Engine, RetryPolicy, activity, workflow


class FakeModel(BaseChatModel):
    """Plays the model: order two articles, then report what the tools have returned."""

    _llm_type = "fake"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Describe the tools as OpenAI's models expect them."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **options)

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        print(f"the model is asked, with {len(messages)} messages")
        message = AIMessage(f"Ordered: {', '.join(str(one.content) for one in messages[2:])}.")
        if len(messages) == 1:
            calls = [{"name": "order", "args": {"article": one}, "id": one} for one in ("tea", "milk")]
            message = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


model = FakeModel()  # a real one is ChatOpenAI(model="gpt-5"), ChatAnthropic(model="claude-sonnet-4-5") ...

# The durable layer.


@dataclass
class Dependencies:
    """The context that nodes, tools and models find in LangGraph's runtime."""

    ctx: Context


@activity(retry=RetryPolicy(max_attempts=8), timeout=120)
async def ask_model(messages: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    return message_to_dict(await model.ainvoke(messages_from_dict(messages), **options))


class DurableModel(BaseChatModel):
    """The model as the workflow sees it: each request is an activity."""

    _llm_type = "durable"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Describe the tools as the real model expects them."""
        return self.bind(**cast("RunnableBinding[Any, Any]", model.bind_tools(tools, **options)).kwargs)

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        ctx = get_runtime(Dependencies).context.ctx
        answer = await ctx.activity(ask_model, messages_to_dict(messages), {**options, "stop": stop})
        return ChatResult(generations=[ChatGeneration(message=messages_from_dict([answer])[0])])

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError("use await model.ainvoke(...)")


@activity
async def send_order(article: str) -> str:
    print(f"{article} is ordered")
    return f"a box of {article}"


# The graph: ordinary code of LangGraph.


@tool
async def order(article: str) -> str:
    """Order an article."""
    return await get_runtime(Dependencies).context.ctx.activity(send_order, article)


chat = DurableModel().bind_tools([order])


async def think(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await chat.ainvoke(state["messages"])]}


builder = StateGraph(MessagesState, context_schema=Dependencies)
builder.add_node("think", think)
builder.add_node("tools", ToolNode([order]))
builder.add_edge(START, "think")
builder.add_conditional_edges("think", tools_condition)
builder.add_edge("tools", "think")
graph = builder.compile()


@workflow
async def restock(ctx: Context, wish: str) -> str:
    state = await graph.ainvoke({"messages": [HumanMessage(wish)]}, context=Dependencies(ctx))
    return str(state["messages"][-1].content)


async def main(store: str = "memory://") -> None:
    async with Engine(store) as engine:
        handle = await engine.start(restock, "We have no tea and no milk.", id="restock-1", if_exists="attach")
        print(await handle.result())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
