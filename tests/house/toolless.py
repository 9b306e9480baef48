"""An agent without a cite tool, in either API, whole or streamed: it keeps the history that it was given, and shows it.

What the provider replies is scripted alike for both; what goes up is read back alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.house.client import Seen, ask
from tests.house.provider import Break, Provider, Received, Reply, completion, events, json_reply, sse_reply
from tests.house.responding import response, response_events

Call = tuple[str, str, Any]
Json = dict[str, Any]
CREDENTIAL = ("Authorization", "Bearer sk-test-agent")


@dataclass(frozen=True)
class Says:
    """What the provider replies: a text, calls as (id, name, arguments), or another status; `breaks` off in its middle,
    `ends` otherwise than by itself."""

    text: str | None = None
    calls: Sequence[Call] = ()
    status: int = 200
    breaks: bool = False
    ends: str | None = None

    def reply(self, responses: bool, streamed: bool, identity: int) -> Reply:
        if self.status != 200:
            error = {"message": f"status {self.status}", "type": "provider_error", "param": None, "code": "scripted"}
            return json_reply({"error": error}, status=self.status)
        if responses:
            status = "incomplete" if self.ends == "length" else "completed"
            whole = response(self.text, self.calls, f"resp_{identity}", status=status)
            pieces = response_events(whole)
        else:
            whole = completion(self.text, self.calls, self.ends, f"chatcmpl-{identity}")
            pieces = events(whole)
        if not streamed:
            if self.breaks:
                raw = json.dumps(whole).encode()
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(raw)
                return Reply(raw=head + raw[: len(raw) // 2])
            return json_reply(whole)
        return sse_reply([*pieces[: len(pieces) // 2], Break()] if self.breaks else pieces)


@dataclass(frozen=True)
class Got:
    """What the client got: its text, its calls as (id, name, arguments), how it finished, and what it cost."""

    seen: Seen
    text: str
    calls: list[Call]
    finish: str | None
    error: Json | None = None
    usage: Json | None = None
    items: list[Json] = field(default_factory=list)

    @property
    def tools(self) -> list[str]:
        return [name for _, name, _ in self.calls]


class Agent:
    """One conversation. `tools` are the names of the tools that it offers."""

    def __init__(
        self,
        url: str,
        provider: Provider,
        api: str = "chat",
        streamed: bool = False,
        tools: Sequence[str] = ("search",),
        credential: tuple[str, str] = CREDENTIAL,
    ) -> None:
        self.url = url
        self.provider = provider
        self.responses = api == "responses"
        self.streamed = streamed
        self.tools = list(tools)
        self.credential = credential
        self.history: list[Json] = []
        self.beside: Json = {}
        self._script: list[Says | Reply] = []
        provider.always(self._next)

    # The provider's part.

    def script(self, *said: Says | Reply | Callable[[Received], Reply]) -> None:
        """What the provider replies to the next requests, in order."""
        self._script += said  # type: ignore[arg-type]

    @property
    def unsaid(self) -> int:
        """How many scripted replies nobody asked for."""
        return len(self._script)

    def _next(self, received: Received) -> Reply:
        if not self._script:
            return json_reply({"error": {"message": "nothing is scripted"}}, status=418)
        said = self._script.pop(0)
        if callable(said):
            return said(received)  # type: ignore[no-any-return]
        if isinstance(said, Reply):
            return said
        streamed = bool(received.json().get("stream"))
        return said.reply(self.responses, streamed, len(self.provider.requests))

    # The client's part.

    def says(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def returns(self, results: Mapping[str, str]) -> None:
        """The tools' results, by the ids of their calls."""
        for call_id, result in results.items():
            if self.responses:
                self.history.append({"type": "function_call_output", "call_id": call_id, "output": result})
            else:
                self.history.append({"role": "tool", "tool_call_id": call_id, "content": result})

    def body(self) -> bytes:
        if self.responses:
            offered = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in self.tools]
            asked: Json = {"model": "m", "input": self.history, "tools": offered, "store": False}
        else:
            offered = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in self.tools]
            asked = {"model": "m", "messages": self.history, "tools": offered}
        if not offered:
            del asked["tools"]
        if self.streamed:
            asked["stream"] = True
        return json.dumps({**asked, **self.beside}).encode()

    async def asks(self, *headers: tuple[str, str]) -> Got:
        """Send the history and take what comes into it."""
        target = "/v1/responses" if self.responses else "/v1/chat/completions"
        lines = [("Content-Type", "application/json"), self.credential, *headers]
        seen = await ask(self.url, self.body(), target=target, headers=lines)
        got = read(seen, self.responses, self.streamed)
        if self.responses:
            self.history += got.items
        elif seen.status == 200 and got.error is None:
            self.history.append(_message(got))
        return got

    async def question(self, text: str, results: Mapping[str, str], *said: Says | Reply) -> Got:
        """A whole question: the provider's replies are scripted, every search is answered. Gives the last one."""
        self.script(*said)
        self.says(text)
        while (got := await self.asks()).calls:
            self.returns({call_id: results[call_id] for call_id, _, _ in got.calls})
        return got


def went_up(received: Received) -> Json:
    """A request's conversation as chat completions would say it, and the names of its tools."""
    body = received.json()
    tools = [tool.get("function", tool)["name"] for tool in body.get("tools") or ()]
    if "messages" in body:
        return {"messages": body["messages"], "tools": tools, "body": body}
    messages: list[Json] = []
    given = body["input"]
    for one in given if isinstance(given, list) else [{"role": "user", "content": given}]:
        kind = one.get("type")
        if kind == "function_call":
            call = {"id": one["call_id"], "function": {"name": one["name"], "arguments": one["arguments"]}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": one["call_id"], "content": one["output"]})
        elif kind in (None, "message"):
            content = one["content"]
            text = content if isinstance(content, str) else "".join(part["text"] for part in content)
            messages.append({"role": one["role"], "content": text})
    return {"messages": messages, "tools": tools, "body": body}


def read(seen: Seen, responses: bool, streamed: bool) -> Got:
    """What a client makes of a reply."""
    if seen.status != 200:
        return Got(seen, "", [], None, error=seen.json().get("error"))
    if responses:
        return _read_response(seen, streamed)
    return _read_chat(seen, streamed)


def _data(seen: Seen) -> list[Any]:
    blocks = seen.body.decode().split("\n\n")
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("data:")]
    return [json.loads(line[5:]) for line in lines if line[5:].strip() != "[DONE]"]


def _read_chat(seen: Seen, streamed: bool) -> Got:
    text, calls, finish, usage, error = "", {}, None, None, None
    ids, roles = set(), 0
    if streamed:
        for chunk in _data(seen):
            if chunk.get("error"):
                error = chunk["error"]
                continue
            ids.add(chunk["id"])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                delta = choice["delta"]
                roles += "role" in delta
                text += delta.get("content") or ""
                for call in delta.get("tool_calls") or ():
                    known = calls.setdefault(call["index"], ["", "", ""])
                    known[0] += call.get("id") or ""
                    known[1] += call["function"].get("name") or ""
                    known[2] += call["function"].get("arguments") or ""
                finish = choice["finish_reason"] or finish
        assert len(ids) <= 1, "one reply has one id"
        assert roles == 1, "a reply says once whose it is"
        assert list(calls) == list(range(len(calls))), "calls are counted from 0"
        return Got(seen, text, [tuple(c) for c in calls.values()], finish, error, usage)  # type: ignore[misc]
    value = seen.json()
    message = value["choices"][0]["message"]
    made = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
    return Got(seen, message.get("content") or "", made, value["choices"][0]["finish_reason"], None, value["usage"])


def _read_response(seen: Seen, streamed: bool) -> Got:
    if streamed:
        told = _data(seen)
        assert [event["sequence_number"] for event in told] == list(range(len(told))), "events are numbered on"
        errors = [event for event in told if event["type"] == "error"]
        if errors:
            return Got(seen, "", [], None, errors[0])
        value = told[-1]["response"]
        done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
        assert done == value["output"], "the last event says what the others said"
    else:
        value = seen.json()
    items = value["output"]
    texts = [part["text"] for one in items if one["type"] == "message" for part in one["content"]]
    text = "\n\n".join(said for said in texts if said)
    made = [(one["call_id"], one["name"], one["arguments"]) for one in items if one["type"] == "function_call"]
    finish = {"completed": "tool_calls" if made else "stop", "incomplete": "length"}.get(value["status"])
    return Got(seen, text, made, finish, value.get("error"), value["usage"], items)


def _message(got: Got) -> Json:
    message: Json = {"role": "assistant", "content": got.text or None}
    if got.calls:
        message["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in got.calls
        ]
    return message
