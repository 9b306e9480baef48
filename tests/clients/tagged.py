"""Real agents of Python SDKs whose search tool tags what it found: `tagged.py CLIENT BASE_URL`, three questions.

It runs in the clients' own environment, with this repository on PYTHONPATH: `proxy.tagging` needs nothing else.
"""

# No postponed annotations here: the SDKs read those of tools, whose types are imported where they are used.
import asyncio
import struct
import sys
import zlib
from typing import Any

from proxy.tagging import Keys, Picture, Result, Tagged, tag

KEYS = Keys(["a key that only these tests have"])
INSTRUCTIONS = "Search, cite, answer."
QUESTIONS = ["Q1: What about alpha?", "Q2: What about beta?", "Q3: What about gamma?"]
API_KEY = "sk-test-tagged"


def png(color: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0))
    rows = (b"\0" + bytes([color, 0, 0]) * 2) * 2
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def found(subject: str) -> Tagged:
    """Two chunks, each with a picture; only the first will be cited."""
    results = [
        Result(
            f"{subject}-{number}",
            f"What {subject} says, number {number}: naïve “café” 😀.\n\n---\n\n[c9] not a chunk",
            document_id=f"doc-{subject}",
            title=f"About {subject}",
            uri=f"https://kb.example/{subject}",
            pictures=[Picture(png(ord(subject[0]) + number), f"#/pictures/{number}")],
        )
        for number in (1, 2)
    ]
    return tag(results, KEYS)


async def pydantic_ai(url: str) -> None:
    from pydantic_ai import Agent, BinaryContent, ToolReturn
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    agent = Agent(
        OpenAIChatModel("gpt-4.1", provider=OpenAIProvider(base_url=url, api_key=API_KEY)), instructions=INSTRUCTIONS
    )

    @agent.tool_plain
    def search(query: str) -> ToolReturn:
        """Search."""
        done = found(query)
        shown: list[Any] = []
        for picture in done.pictures:
            shown += [picture.label, BinaryContent(picture.data, media_type=picture.media_type)]
        return ToolReturn(return_value=done.text, content=shown)

    @agent.tool_plain
    def cite(ids: list[str]) -> str:
        """Cite."""
        return f"cited {len(ids)}"

    history: list[Any] = []
    for question in QUESTIONS:
        history = (await agent.run(question, message_history=history)).all_messages()


async def openai_agents(url: str) -> None:
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        Runner,
        ToolOutputImage,
        ToolOutputText,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    @function_tool
    def search(query: str) -> list[ToolOutputText | ToolOutputImage]:
        """Search."""
        done = found(query)
        parts: list[ToolOutputText | ToolOutputImage] = [ToolOutputText(text=done.text)]
        for picture in done.pictures:
            parts += [ToolOutputText(text=picture.label), ToolOutputImage(image_url=picture.url)]
        return parts

    @function_tool
    def cite(ids: list[str]) -> str:
        """Cite."""
        return f"cited {len(ids)}"

    model = OpenAIChatCompletionsModel("gpt-4.1", openai_client=AsyncOpenAI(base_url=url, api_key=API_KEY))
    agent = Agent(name="a", instructions=INSTRUCTIONS, model=model, tools=[search, cite])
    history: list[Any] = []
    for question in QUESTIONS:
        history = (await Runner.run(agent, [*history, {"role": "user", "content": question}])).to_input_list()


async def langchain(url: str) -> None:
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def search(query: str) -> list[Any]:
        """Search."""
        return list(found(query).chat())

    @tool
    def cite(ids: list[str]) -> str:
        """Cite."""
        return f"cited {len(ids)}"

    agent = create_agent(ChatOpenAI(model="gpt-4.1", base_url=url, api_key=API_KEY), [search, cite])  # type: ignore[arg-type]
    history: list[Any] = []
    for question in QUESTIONS:
        asked = [*history, {"role": "user", "content": question}]
        history = (await agent.ainvoke({"messages": asked}))["messages"]


async def google_adk(url: str) -> None:
    from google.adk.agents import LlmAgent
    from google.adk.models.lite_llm import LiteLlm
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    def search(query: str) -> str:
        """Search."""
        return found(query).text  # the SDK wraps it: {"result": "..."}

    def cite(ids: list[str]) -> str:
        """Cite."""
        return f"cited {len(ids)}"

    model = LiteLlm(model="openai/gpt-4.1", api_base=url, api_key=API_KEY)
    runner = InMemoryRunner(
        LlmAgent(name="rag", model=model, instruction=INSTRUCTIONS, tools=[search, cite]), app_name="rag"
    )
    session = await runner.session_service.create_session(app_name="rag", user_id="u")
    for question in QUESTIONS:
        asked = types.Content(role="user", parts=[types.Part(text=question)])
        async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=asked):
            pass


CLIENTS = {
    "pydantic-ai": pydantic_ai,
    "openai-agents": openai_agents,
    "langchain": langchain,
    "google-adk": google_adk,
}

if __name__ == "__main__":
    asyncio.run(CLIENTS[sys.argv[1]](sys.argv[2]))
