"""LlamaIndex: a function agent with two tools and a memory."""

import asyncio
import json

from handbook import API_KEY, BASE_URL, QUESTIONS
from handbook import search as search_handbook
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import Memory
from llama_index.llms.openai import OpenAI


def search(query: str) -> str:
    """Search the handbook."""
    return json.dumps(search_handbook(query))


def cite(ids: list[str]) -> str:
    """Name the passages that the answer rests on."""
    return f"cited {len(ids)}"


async def main() -> None:
    # LlamaIndex looks the size of the context up by the model's name, so it must be one that it knows.
    model = OpenAI(model="gpt-4.1-mini", api_base=BASE_URL, api_key=API_KEY)
    agent = FunctionAgent(tools=[search, cite], llm=model, system_prompt="Search, then cite, then answer.")
    memory = Memory.from_defaults(session_id="one conversation", token_limit=100_000)
    for question in QUESTIONS:
        print(f"{question}\n  {await agent.run(question, memory=memory)}\n")


asyncio.run(main())
