"""Read a chat completion's reply, streamed or whole, for what it says about the question.

Source: OpenAI's API reference, "Chat": the completion object and its chunks; finish reasons as other providers
spell them, where they serve the same paths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from proxy.wire.messages import Call, Reply, Usage
from proxy.wire.side_reader import SideReader, read_json, usage

#: How each ending is spelled. A reply with any other ending (length, content_filter, ...) settles nothing.
ANSWERED = frozenset({"stop", "end_turn", "stop_sequence", "eos", "eos_token", "complete", "completed", "end"})
CALLED = frozenset({"tool_calls", "function_call", "tool_use", "tool_call", "function_calls"})


def finished_normally(finish: str | None) -> bool:
    """Whether a finish reason says that the model ended by itself: an answer, or tool calls."""
    return finish is not None and finish.lower() in ANSWERED | CALLED


def _usage(told: dict[str, Any]) -> Usage:
    return usage(told, "prompt_tokens", "completion_tokens")


@dataclass
class _Choice:
    text: list[str] = field(default_factory=list)
    calls: dict[object, list[str | None]] = field(default_factory=dict)  # by index: id, name, arguments
    finish: str | None = None

    def reply(self) -> Reply:
        calls = tuple(Call(id=c[0], name=c[1] or "", arguments=c[2] or "") for c in self.calls.values())
        return Reply(text="".join(self.text), calls=calls, finish=self.finish)


class ChatReplyReader(SideReader):
    """Reads a chat completion with that many choices."""

    def __init__(self, choices: int = 1) -> None:
        super().__init__()
        self._wanted = choices
        self._choices: dict[int, _Choice] = {}

    def _ended(self, over: bool) -> bool:
        ended = sum(choice.finish is not None for choice in self._choices.values())
        return 0 < ended == len(self._choices) and (over or ended >= self._wanted)

    def _said(self) -> list[Reply]:
        return [self._choices[index].reply() for index in sorted(self._choices) if self._choices[index].finish]

    def _body(self, value: Any) -> None:
        self._completion(value, "message")

    def _event(self, data: bytes) -> None:
        if data.startswith(b"{"):
            self._completion(read_json(data), "delta")

    def _completion(self, value: Any, said: str) -> None:
        if value.get("error"):
            self._broken = True
            return
        self._told_beside(value, _usage)
        for position, choice in enumerate(value.get("choices") or []):
            index = choice.get("index")
            known = self._choices.setdefault(index if isinstance(index, int) else position, _Choice())
            # Some servers send a whole message in a stream, or a delta outside of one.
            delta = choice.get(said) or choice.get("message") or choice.get("delta") or {}
            self._delta(known, delta)
            finish = choice.get("finish_reason")
            if isinstance(finish, str) and finish:
                known.finish = finish

    def _delta(self, choice: _Choice, delta: Any) -> None:
        content = delta.get("content")
        pieces = content if isinstance(content, list) else [content]
        for piece in pieces:
            text = piece.get("text") if isinstance(piece, dict) else piece
            if isinstance(text, str) and text:
                self._hold(len(text))
                choice.text.append(text)
        calls = delta.get("tool_calls") or []
        if isinstance(delta.get("function_call"), dict):
            calls = [*calls, {"index": "function", "function": delta["function_call"]}]
        for position, call in enumerate(calls):
            index = call.get("index")
            key = index if index is not None else (call.get("id") or position)
            known = choice.calls.setdefault(key, [None, None, ""])
            function = call.get("function") or call.get("custom") or {}
            if isinstance(call.get("id"), str) and call["id"]:
                known[0] = call["id"]
            if isinstance(function.get("name"), str) and function["name"]:
                known[1] = function["name"]
            arguments = function.get("arguments", function.get("input"))
            if isinstance(arguments, str):
                self._hold(len(arguments))
                known[2] = (known[2] or "") + arguments


class ChatLiveReader(ChatReplyReader):
    """Reads a chat completion while it is held: what has been said so far counts, too."""

    def __init__(self, choices: int = 1) -> None:
        super().__init__(choices)
        self._taken = 0

    def begun(self) -> tuple[str, ...]:
        """The names of the tools that it has begun to call."""
        return tuple(call[1] or "" for choice in self._choices.values() for call in choice.calls.values())

    def news(self) -> str:
        """The text that was said since the last time that this was asked."""
        text = next(iter(self._choices.values())).text if self._choices else []
        fresh = "".join(text[self._taken :])
        self._taken = len(text)
        return fresh
