"""A client's agent in either API, streamed or not: it asks, runs the tools that it is told to, and keeps its history.

It reads replies as any client does, and knows nothing of what the proxy does to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.wire import chat, responses
from proxy.wire.messages import Api, Call, Reply
from tests.house import provider as house
from tests.house.client import Seen, ask
from tests.house.responding import of_completion, response_events

FOUND = json.dumps([{"id": "c1", "text": "The pump runs at 3 bar."}, {"id": "c2", "text": "Seals last two years."}])
APIS: dict[str, Api] = {"chat": chat, "responses": responses}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}


def replied(
    api: str, streamed: bool, text: str | None = None, calls: Sequence[tuple[str, str, Any]] = (), **beside: Any
) -> list[bytes]:
    """What a provider says, as the pieces of its body."""
    said = house.completion(text, calls, **beside)
    if api == "chat":
        return house.events(said) if streamed else [json.dumps(said).encode()]
    whole = of_completion(said, said["id"])
    return response_events(whole) if streamed else [json.dumps(whole).encode()]


def reply(api: str, streamed: bool, text: str | None = None, calls: Any = (), **beside: Any) -> house.Reply:
    """The same as a reply that the scripted provider gives."""
    pieces = replied(api, streamed, text, calls, **beside)
    return house.sse_reply(pieces) if streamed else house.json_reply(pieces[0])


@dataclass
class Agent:
    """One conversation. `tools` answers a call by its name and arguments."""

    url: str
    api: str = "chat"
    streamed: bool = False
    offers: tuple[str, ...] = ("search", "cite")
    key: str = "k"
    beside: dict[str, Any] = field(default_factory=dict)
    tools: dict[str, Callable[[Any], str]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tools = {"search": lambda _: FOUND, "cite": lambda _: "Registered 1 citation(s).", **self.tools}

    def body(self) -> dict[str, Any]:
        member = APIS[self.api].MEMBER
        listed = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in self.offers]
        if self.api == "chat":
            listed = [{"type": "function", "function": {k: v for k, v in t.items() if k != "type"}} for t in listed]
        body = {"model": "m", "tools": listed, member: self.history, **self.beside}
        return {**body, "stream": True} if self.streamed else body

    async def send(self, headers: Sequence[tuple[str, str]] = ()) -> Reply:
        """Send the conversation as it is; the reply goes into the history."""
        lines = [("Authorization", f"Bearer {self.key}"), ("Content-Type", "application/json"), *headers]
        seen = await ask(self.url, self.body(), target=PATHS[self.api], headers=lines)  # type: ignore[arg-type]
        self.seen.append(seen)
        said = self.read(seen)
        self.keep(said)
        return said

    def read(self, seen: Seen) -> Reply:
        """What a reply says."""
        assert seen.status == 200, seen.body
        reader = APIS[self.api].reader(APIS[self.api].cut(json.dumps(self.body()).encode()))
        reader.feed(seen.body)
        reader.close(True)
        (said,) = reader.replies()
        return said

    def keep(self, said: Reply) -> None:
        if self.api == "responses":
            if said.text:
                part = {"type": "output_text", "text": said.text, "annotations": []}
                self.history.append({"type": "message", "role": "assistant", "content": [part]})
            self.history += [
                {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": c.arguments} for c in said.calls
            ]
            return
        made = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in said.calls
        ]
        self.history.append(
            {"role": "assistant", "content": said.text or None, **({"tool_calls": made} if made else {})}
        )

    def returns(self, call: Call, content: str) -> None:
        if self.api == "responses":
            self.history.append({"type": "function_call_output", "call_id": call.id, "output": content})
        else:
            self.history.append({"role": "tool", "tool_call_id": call.id, "content": content})

    def run(self, said: Reply) -> None:
        """Run the tools that a reply calls."""
        for call in said.calls:
            self.returns(call, self.tools[call.name](json.loads(call.arguments)))

    async def ask(self, question: str, most: int = 10) -> Reply:
        """One question to its end: every tool is run, until a reply calls none."""
        self.history.append({"role": "user", "content": question})
        for _ in range(most):
            said = await self.send()
            if not said.calls or any(call.name not in self.tools for call in said.calls):
                return said
            self.run(said)
        raise AssertionError(f"no answer after {most} requests")
