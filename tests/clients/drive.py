"""Plays three questions through a real client, and prints what the client received: a line of JSON for each run.

    python drive.py CLIENT BASE_URL...

CLIENT is openai, agents, agents-previous, agents-session or pydantic-ai. Each address is played whole, then streamed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
from typing import Any

QUESTIONS = ["Q1: What of alpha?", "Q2: And of beta?", "Q3: And of gamma?"]
INSTRUCTIONS = "Search, then cite, then answer."
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mPgYmAAAAAiAAswjz+HAAAAAElFTkSuQmCC"
PICTURE = "data:image/png;base64," + PNG


def chunks(query: str) -> str:
    """What a search finds: two chunks, of which the second is the one that is cited."""
    return json.dumps([{"id": f"{query}-{n}", "text": f"Chunk {n} of {query}. " + "words " * 40} for n in (1, 2)])


def has_picture(query: str) -> bool:
    return query.endswith("left")


# openai


async def openai_run(base_url: str, stream: bool) -> list[Any]:
    from openai import AsyncOpenAI

    tools: Any = [
        {"type": "function", "name": "search", "parameters": _schema("query", {"type": "string"}), "strict": False},
        {
            "type": "function",
            "name": "cite",
            "parameters": _schema("ids", {"type": "array", "items": {"type": "string"}}),
            "strict": False,
        },
    ]
    received: list[Any] = []
    items: list[Any] = []
    async with AsyncOpenAI(base_url=base_url, api_key="sk-test-openai", max_retries=0) as client:
        for question in QUESTIONS:
            items.append({"role": "user", "content": question})
            while True:
                asked: Any = {"model": "m", "input": items, "tools": tools, "instructions": INSTRUCTIONS}
                if stream:
                    async for event in await client.responses.create(**asked, stream=True):
                        received.append(event.to_dict(mode="json"))
                    response = event.response  # type: ignore[union-attr]
                else:
                    response = await client.responses.create(**asked)
                    received.append(response.to_dict(mode="json"))
                items += [item.to_dict(mode="json") for item in response.output]
                calls = [item for item in response.output if item.type == "function_call"]
                for call in calls:
                    items.append({"type": "function_call_output", "call_id": call.call_id, "output": _answered(call)})
                if not calls:
                    break
    return received


def _schema(name: str, kind: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: kind}, "required": [name]}


def _answered(call: Any) -> Any:
    arguments = json.loads(call.arguments)
    if call.name == "cite":
        return f"cited {len(arguments['ids'])}"
    text = chunks(arguments["query"])
    if not has_picture(arguments["query"]):
        return text
    return [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": PICTURE}]


# openai-agents


async def agents_run(base_url: str, stream: bool, memory: str = "list") -> list[Any]:
    from agents import (
        Agent,
        OpenAIResponsesModel,
        Runner,
        SQLiteSession,
        ToolOutputImage,
        ToolOutputText,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    @function_tool
    def search(query: str) -> Any:
        if has_picture(query):
            return [ToolOutputText(text=chunks(query)), ToolOutputImage(image_url=PICTURE)]
        return chunks(query)

    @function_tool
    def cite(ids: list[str]) -> str:
        return f"cited {len(ids)}"

    received: list[Any] = []
    async with AsyncOpenAI(base_url=base_url, api_key=f"sk-test-agents-{memory}", max_retries=0) as client:
        agent = Agent(
            name="a", instructions=INSTRUCTIONS, tools=[search, cite], model=OpenAIResponsesModel("m", client)
        )
        session = SQLiteSession("s") if memory == "session" else None
        items: Any = []
        previous: str | None = None
        for question in QUESTIONS:
            asked = question if memory != "list" else [*items, {"role": "user", "content": question}]
            options: Any = {"session": session}
            if memory == "previous":
                options = {"previous_response_id": previous, "auto_previous_response_id": True}
            if stream:
                result: Any = Runner.run_streamed(agent, asked, **options)
                async for event in result.stream_events():
                    if event.type == "raw_response_event":
                        received.append(event.data.to_dict(mode="json"))
            else:
                result = await Runner.run(agent, asked, **options)
                received += [
                    {"id": raw.response_id, "output": [item.to_dict(mode="json") for item in raw.output]}
                    for raw in result.raw_responses
                ]
            received.append({"final": result.final_output})
            items, previous = result.to_input_list(), result.last_response_id
    return received


# pydantic-ai


async def pydantic_ai_run(base_url: str, stream: bool) -> list[Any]:
    from pydantic_ai import Agent, AgentRunResultEvent, BinaryContent, ToolReturn
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIResponsesModel("m", provider=OpenAIProvider(base_url=base_url, api_key="sk-test-pydantic"))
    agent = Agent(model, instructions=INSTRUCTIONS)

    # Without threads, so that what runs in parallel ends in the order in which it was called.
    @agent.tool_plain
    async def search(query: str) -> Any:
        if has_picture(query):
            picture = BinaryContent(base64.b64decode(PNG), media_type="image/png")
            return ToolReturn(return_value=chunks(query), content=["Picture:", picture])
        return chunks(query)

    @agent.tool_plain
    async def cite(ids: list[str]) -> str:
        return f"cited {len(ids)}"

    received: list[Any] = []
    history: Any = None
    for question in QUESTIONS:
        if stream:
            async with agent.run_stream_events(question, message_history=history) as events:
                async for event in events:
                    if isinstance(event, AgentRunResultEvent):
                        result = event.result
                    else:
                        received.append(_timeless(repr(event)))
        else:
            result = await agent.run(question, message_history=history)
        history = result.all_messages()
        received += [_timeless(repr(message)) for message in result.new_messages()]
    return received


def _timeless(text: str) -> str:
    """Without what a client makes up itself: the times of its own clock, its ids of runs, and its base address."""
    text = re.sub(r"datetime\.datetime\([^()]*(?:\([^()]*\))?[^()]*\)", "TIME", text)
    text = re.sub(r"(?:run_id|conversation_id)='[^']*'", "RUN", text)
    return re.sub(r"http://127\.0\.0\.1:\d+", "ADDRESS", text)


RUNS = {
    "openai": openai_run,
    "agents": agents_run,
    "agents-previous": lambda url, stream: agents_run(url, stream, "previous"),
    "agents-session": lambda url, stream: agents_run(url, stream, "session"),
    "pydantic-ai": pydantic_ai_run,
}


async def main(client: str, addresses: list[str]) -> None:
    for address in addresses:
        for stream in (False, True):
            print(json.dumps(await RUNS[client](address, stream)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
