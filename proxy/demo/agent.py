"""The agent: the loop that every tool-calling program has, around the real `openai` client.

It knows nothing of the proxy but a base URL, and it never forgets anything: it sends the whole conversation with every
request, search results and pictures included. Two things are watched from outside, through the client's own HTTP
hooks: the bytes that left, and the `Evidence-Proxy` header that came back.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proxy.demo.handbook import Handbook, Passage
from proxy.demo.pictures import png_of
from proxy.demo.provider import MODEL
from proxy.demo.script import SYSTEM

if TYPE_CHECKING:
    from openai import AsyncOpenAI

HEADER = "Evidence-Proxy"

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the handbook of the light.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}},
                "required": ["query"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "cite",
            "description": "Name the passages that the answer rests on.",
            "parameters": {
                "type": "object",
                "properties": {"chunk_ids": {"type": "array", "items": {"type": "string"}}},
                "required": ["chunk_ids"],
                "additionalProperties": False,
            },
        },
    },
]


@dataclass(frozen=True)
class Sent:
    """One request as the client sent it, and the proxy's word on it (`None`: no such header came)."""

    body: bytes
    header: str | None


@dataclass(frozen=True)
class Answered:
    """What came of one question: the answer, the requests that it took, and what was searched, found and cited."""

    text: str
    requests: list[Sent]
    queries: list[str]
    found: list[str]
    cited: list[str]


class Agent:
    """A conversation with tools. `messages` is its whole memory, in the shape of chat completions."""

    def __init__(self, client: AsyncOpenAI, handbook: Handbook, sent: list[bytes]) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        self._client = client
        self._handbook = handbook
        self._sent = sent

    async def ask(self, question: str) -> Answered:
        """Ask one question and go round the loop until an answer without a tool call has come."""
        self.messages.append({"role": "user", "content": question})
        requests: list[Sent] = []
        queries: list[str] = []
        found: list[str] = []
        cited: list[str] = []
        while True:
            reply, header = await self._complete()
            requests.append(Sent(self._sent[-1], header))
            self.messages.append(reply)
            if not reply.get("tool_calls"):
                return Answered(reply["content"], requests, queries, found, cited)
            for call in reply["tool_calls"]:
                arguments = json.loads(call["function"]["arguments"])
                content: str | list[dict[str, Any]]
                if call["function"]["name"] == "search":
                    queries.append(arguments["query"])
                    passages = await asyncio.to_thread(self._handbook.search, arguments["query"])
                    found.extend(passage.id for passage in passages)
                    content = search_result(passages)
                else:
                    cited.extend(arguments["chunk_ids"])
                    content = f"Cited {len(arguments['chunk_ids'])}."
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    async def _complete(self) -> tuple[dict[str, Any], str | None]:
        """One streamed request: the assistant's message, put together, and the proxy's header."""
        messages: Any = self.messages
        tools: Any = TOOLS
        raw = await self._client.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, tools=tools, stream=True, stream_options={"include_usage": True}
        )
        text = ""
        calls: dict[int, dict[str, Any]] = {}
        async for chunk in raw.parse():
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for piece in choice.delta.tool_calls or []:
                    call = calls.setdefault(
                        piece.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                    )
                    call["id"] += piece.id or ""
                    if piece.function is not None:
                        call["function"]["name"] += piece.function.name or ""
                        call["function"]["arguments"] += piece.function.arguments or ""
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [calls[index] for index in sorted(calls)]
        return message, raw.headers.get(HEADER)


def search_result(passages: Iterable[Passage]) -> str | list[dict[str, Any]]:
    """What the search tool returns: JSON, and after it each drawing behind a line that names its passage."""
    passages = list(passages)
    results = [{"id": p.id, "title": p.title, "url": p.url, "text": p.text} for p in passages]
    text = json.dumps({"results": results}, ensure_ascii=False)
    drawn = [passage for passage in passages if passage.picture]
    if not drawn:
        return text
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    for passage in drawn:
        url = "data:image/png;base64," + base64.b64encode(png_of(passage.id)).decode()
        parts.append({"type": "text", "text": f"Drawing for {passage.id}:"})
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


def watched_client(base_url: str) -> tuple[AsyncOpenAI, list[bytes]]:
    """The real client, pointed at `base_url`, and the list that its request bodies are noted in as they leave."""
    import openai

    sent: list[bytes] = []

    async def note(request: Any) -> None:
        sent.append(request.content)

    # The client insists on a key; the proxy keeps its records by it (`[tenant] by`), and the provider ignores it.
    http_client = openai.DefaultAsyncHttpxClient(event_hooks={"request": [note]}, trust_env=False)
    client = openai.AsyncOpenAI(base_url=base_url, api_key="scripted", http_client=http_client, max_retries=0)
    return client, sent
