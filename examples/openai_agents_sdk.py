"""The OpenAI Agents SDK, over the Responses API, with a session that keeps the history on the client's side."""

import asyncio
import json

from agents import Agent, OpenAIResponsesModel, Runner, SQLiteSession, function_tool, set_tracing_disabled
from handbook import API_KEY, BASE_URL, MODEL, QUESTIONS
from handbook import search as search_handbook
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def search(query: str) -> str:
    """Search the handbook."""
    return json.dumps(search_handbook(query))


@function_tool
def cite(ids: list[str]) -> str:
    """Name the passages that the answer rests on."""
    return f"cited {len(ids)}"


async def main() -> None:
    model = OpenAIResponsesModel(MODEL, openai_client=AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY))
    agent = Agent(name="keeper", instructions="Search, then cite, then answer.", model=model, tools=[search, cite])
    session = SQLiteSession("one conversation")
    for question in QUESTIONS:
        result = await Runner.run(agent, question, session=session)
        print(f"{question}\n  {result.final_output}\n")


asyncio.run(main())
