"""pydantic-ai: an agent with two tools, asked three questions of one conversation."""

from __future__ import annotations

from typing import Any

from handbook import API_KEY, BASE_URL, MODEL, QUESTIONS
from handbook import search as search_handbook
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key=API_KEY))
agent = Agent(model, instructions="Search, then cite, then answer.")


@agent.tool_plain
def search(query: str) -> list[dict[str, Any]]:
    """Search the handbook."""
    return search_handbook(query)


@agent.tool_plain
def cite(ids: list[str]) -> str:
    """Name the passages that the answer rests on."""
    return f"cited {len(ids)}"


history: list[Any] = []
for question in QUESTIONS:
    result = agent.run_sync(question, message_history=history)
    history = result.all_messages()
    print(f"{question}\n  {result.output}\n")
