"""LangChain: an agent with two tools, whose messages are handed on from question to question."""

from __future__ import annotations

import json
from typing import Any

from handbook import API_KEY, BASE_URL, MODEL, QUESTIONS
from handbook import search as search_handbook
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def search(query: str) -> str:
    """Search the handbook."""
    return json.dumps(search_handbook(query))


@tool
def cite(ids: list[str]) -> str:
    """Name the passages that the answer rests on."""
    return f"cited {len(ids)}"


model: Any = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key=API_KEY)  # type: ignore[arg-type]
agent = create_agent(model, [search, cite], system_prompt="Search, then cite, then answer.")
messages: list[Any] = []
for question in QUESTIONS:
    messages = agent.invoke({"messages": [*messages, {"role": "user", "content": question}]})["messages"]
    print(f"{question}\n  {messages[-1].content}\n")
