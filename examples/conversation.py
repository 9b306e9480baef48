"""A retrieval agent over a LanceDB corpus, with tagged evidence and pictures: the loop that the other examples show.

It tells what happens as it happens. Where the tools tag what they return, the proxy needs no table of their names.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import corpus
from handbook import API_KEY, BASE_URL, MODEL
from openai import AsyncOpenAI


def _tool(name: str, about: str, field: str, kind: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {field: kind}, "required": [field]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


SEARCH = _tool("search", "Search the handbook.", "query", {"type": "string"})
CITE = _tool("cite", "Name what the answer rests on.", "ids", {"type": "array", "items": {"type": "string"}})


@dataclass(frozen=True)
class Sent:
    """A request went up: bytes as this program sent them and as the provider got them, and the proxy's word on it."""

    before: int
    after: int
    header: str


@dataclass(frozen=True)
class Searched:
    query: str
    ids: list[str]


@dataclass(frozen=True)
class Cited:
    ids: list[str]


@dataclass(frozen=True)
class Said:
    """A piece of the answer."""

    text: str


Event = Sent | Searched | Cited | Said


class Conversation:
    """One conversation. `cites` is whether it has a cite tool of its own; without one, the proxy must bring its own."""

    def __init__(self, cites: bool = True) -> None:
        self._client = AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY)
        self._tools: Any = [SEARCH, CITE] if cites else [SEARCH]
        self._messages: list[Any] = [{"role": "system", "content": "Answer from the handbook: search first."}]

    async def ask(self, question: str) -> AsyncIterator[Event]:
        """Everything that happens until the answer is whole."""
        self._messages.append({"role": "user", "content": question})
        while True:
            reply: dict[str, Any] = {"role": "assistant", "content": ""}
            async for event in self._complete(reply):
                yield event
            self._messages.append(reply)
            if "tool_calls" not in reply:
                return
            for call in reply["tool_calls"]:
                given = json.loads(call["function"]["arguments"])
                content: Any = f"cited {len(given.get('ids', []))}"
                if call["function"]["name"] == "search":
                    results = await asyncio.to_thread(corpus.search, given["query"])
                    content = corpus.as_evidence(results).chat()
                    yield Searched(given["query"], [result.id for result in results])
                else:
                    yield Cited(given["ids"])
                self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    async def _complete(self, reply: dict[str, Any]) -> AsyncIterator[Event]:
        raw = await self._client.chat.completions.with_raw_response.create(
            model=MODEL, messages=self._messages, tools=self._tools, stream=True
        )
        header = raw.headers.get("Evidence-Proxy", "")
        before = int(raw.http_request.headers["Content-Length"])
        after = re.search(r"\bafter=(\d+)", header)
        yield Sent(before, int(after[1]) if after and header.startswith("compacted") else before, header)
        async for chunk in raw.parse():
            delta = chunk.choices[0].delta if chunk.choices else None
            if delta is not None and delta.content:
                reply["content"] += delta.content
                yield Said(delta.content)
            for part in (delta.tool_calls or []) if delta is not None else []:
                calls = reply.setdefault("tool_calls", [])
                if part.id:
                    calls.append({"id": part.id, "type": "function", "function": {"name": "", "arguments": ""}})
                assert part.function is not None
                calls[-1]["function"]["name"] += part.function.name or ""
                calls[-1]["function"]["arguments"] += part.function.arguments or ""
