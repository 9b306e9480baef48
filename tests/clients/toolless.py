"""Real agents of Python SDKs that have no cite tool: `toolless.py CLIENT BASE_URL VARIANT...`, three questions each.

A variant is API/HOW/MODEL: chat or responses, whole or streamed, and the model to ask (each has a credential of its
own). A client whose SDK has a step limit has it at two: one more request than its search and its answer take would be
too many. API/HOW/MODEL/cite gives the client a cite tool of its own, and one step more. Prints a line for each variant:
of each question, the answer and the names of the tools that the client saw called.
"""

# No postponed annotations here: the SDKs read those of tools, whose types are imported where they are used.
import asyncio
import json
import sys
from typing import Any

INSTRUCTIONS = "Search, then answer."
QUESTIONS = ["Q1: What about alpha?", "Q2: What about beta?", "Q3: What about gamma?"]


def found(query: str) -> str:
    """What a search finds: two chunks."""
    return json.dumps([{"id": f"{query}-{n}", "text": f"Chunk {n} of {query}. " + "words " * 40} for n in (1, 2)])


def registered(ids: list[str]) -> str:
    """What the client's own cite tool says."""
    return f"Registered {len(ids)} citation(s)."


class Variant:
    """What to play, and what came of it."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.api, how, self.model, *rest = name.split("/")
        self.stream = how == "streamed"
        self.cites = rest == ["cite"]
        self.steps = 3 if self.cites else 2
        self.key = f"sk-test-toolless-{name}"
        self.told: list[dict[str, Any]] = []

    def tell(self, answer: str, calls: list[str]) -> None:
        self.told.append({"answer": answer, "calls": calls})


async def openai(play: Variant) -> None:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=play.url, api_key=play.key, max_retries=0)
    properties: Any = {"search": {"query": {"type": "string"}}}
    if play.cites:
        properties["cite"] = {"ids": {"type": "array", "items": {"type": "string"}}}
    schemas = {
        name: {"type": "object", "properties": fields, "required": list(fields)} for name, fields in properties.items()
    }
    history: list[Any] = []
    for question in QUESTIONS:
        history.append({"role": "user", "content": question})
        calls: list[str] = []
        while True:
            step = _openai_chat if play.api == "chat" else _openai_responses
            answer, made = await step(client, history, schemas, play)
            calls += [name for name, _, _ in made]
            if not made:
                break
            for name, call_id, arguments in made:
                given = json.loads(arguments)
                result = found(given["query"]) if name == "search" else registered(given["ids"])
                if play.api == "chat":
                    history.append({"role": "tool", "tool_call_id": call_id, "content": result})
                else:
                    history.append({"type": "function_call_output", "call_id": call_id, "output": result})
        play.tell(answer, calls)


async def _openai_chat(client: Any, history: list[Any], schemas: Any, play: Variant) -> Any:
    tools = [{"type": "function", "function": {"name": n, "parameters": schema}} for n, schema in schemas.items()]
    asked = {"model": play.model, "messages": history, "tools": tools}
    if play.stream:
        async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
            message = (await events.get_final_completion()).choices[0].message
    else:
        message = (await client.chat.completions.create(**asked)).choices[0].message
    made = [(call.function.name, call.id, call.function.arguments) for call in message.tool_calls or ()]
    said = message.to_dict(mode="json")
    for call in said.get("tool_calls") or ():
        call["function"].pop("parsed_arguments", None)
    said.pop("parsed", None)
    history.append(said)
    return message.content, made


async def _openai_responses(client: Any, history: list[Any], schemas: Any, play: Variant) -> Any:
    tools = [{"type": "function", "name": n, "parameters": schema, "strict": False} for n, schema in schemas.items()]
    asked = {"model": play.model, "input": history, "tools": tools}
    if play.stream:
        async with client.responses.stream(**asked) as events:
            response = await events.get_final_response()
    else:
        response = await client.responses.create(**asked)
    items = [item.to_dict(mode="json") for item in response.output]
    for item in items:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    history += items
    made = [(item.name, item.call_id, item.arguments) for item in response.output if item.type == "function_call"]
    return response.output_text, made


async def pydantic_ai(play: Variant) -> None:
    from pydantic_ai import Agent, UsageLimits
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=play.url, api_key=play.key)
    model = (
        OpenAIChatModel(play.model, provider=provider)
        if play.api == "chat"
        else OpenAIResponsesModel(play.model, provider=provider)
    )
    agent = Agent(model, instructions=INSTRUCTIONS)

    @agent.tool_plain
    def search(query: str) -> str:
        """Search."""
        return found(query)

    if play.cites:

        @agent.tool_plain
        def cite(ids: list[str]) -> str:
            """Cite."""
            return registered(ids)

    history: list[Any] = []
    for question in QUESTIONS:
        asked: Any = {"message_history": history, "usage_limits": UsageLimits(request_limit=play.steps)}
        if play.stream:
            async with agent.run_stream(question, **asked) as result:
                answer = await result.get_output()
        else:
            result = await agent.run(question, **asked)  # type: ignore[assignment]
            answer = result.output  # type: ignore[attr-defined]
        history = result.all_messages()
        parts = [part for message in result.new_messages() for part in message.parts]
        play.tell(answer, [part.tool_name for part in parts if isinstance(part, ToolCallPart)])


async def openai_agents(play: Variant) -> None:
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    @function_tool
    def search(query: str) -> str:
        """Search."""
        return found(query)

    @function_tool
    def cite(ids: list[str]) -> str:
        """Cite."""
        return registered(ids)

    client = AsyncOpenAI(base_url=play.url, api_key=play.key, max_retries=0)
    model: Any = (OpenAIChatCompletionsModel if play.api == "chat" else OpenAIResponsesModel)(play.model, client)
    agent = Agent(name="a", instructions=INSTRUCTIONS, model=model, tools=[search, cite] if play.cites else [search])
    history: list[Any] = []
    for question in QUESTIONS:
        asked = [*history, {"role": "user", "content": question}]
        if play.stream:
            result: Any = Runner.run_streamed(agent, asked, max_turns=play.steps)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, asked, max_turns=play.steps)
        calls = [item.raw_item.name for item in result.new_items if item.type == "tool_call_item"]
        history = result.to_input_list()
        play.tell(result.final_output, calls)


async def langchain(play: Variant) -> None:
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def search(query: str) -> str:
        """Search."""
        return found(query)

    @tool
    def cite(ids: list[str]) -> str:
        """Cite."""
        return registered(ids)

    model = ChatOpenAI(
        model=play.model, base_url=play.url, api_key=play.key, max_retries=0, use_responses_api=play.api == "responses"
    )  # type: ignore[arg-type]
    agent = create_agent(model, [search, cite] if play.cites else [search])
    history: list[Any] = []
    for question in QUESTIONS:
        asked: Any = {"messages": [*history, {"role": "user", "content": question}]}
        known = len(history)
        if play.stream:
            async for mode, event in agent.astream(asked, stream_mode=["messages", "values"]):
                if mode == "values":
                    history = event["messages"]  # type: ignore[call-overload]
        else:
            history = (await agent.ainvoke(asked))["messages"]
        fresh = history[known:]
        calls = [call["name"] for message in fresh for call in getattr(message, "tool_calls", None) or ()]
        play.tell(str(fresh[-1].text), calls)


CLIENTS = {
    "openai": openai,
    "pydantic-ai": pydantic_ai,
    "openai-agents": openai_agents,
    "langchain": langchain,
}


async def main(client: str, url: str, variants: list[str]) -> None:
    for name in variants:
        play = Variant(url, name)
        await CLIENTS[client](play)
        print(json.dumps(play.told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
