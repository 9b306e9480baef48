"""Read a chat completion's reply, streamed or whole, for what it says about the question.

Source: OpenAI's API reference, "Chat": the completion object and its chunks; finish reasons as other providers
spell them, where they serve the same paths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from proxy.wire.events import EventReader
from proxy.wire.messages import Call, Reply

#: How each ending is spelled. A reply with any other ending (length, content_filter, ...) settles nothing.
ANSWERED = frozenset({"stop", "end_turn", "stop_sequence", "eos", "eos_token", "complete", "completed", "end"})
CALLED = frozenset({"tool_calls", "function_call", "tool_use", "tool_call", "function_calls"})


def finished_normally(finish: str | None) -> bool:
    """Whether a finish reason says that the model ended by itself: an answer, or tool calls."""
    return finish is not None and finish.lower() in ANSWERED | CALLED


@dataclass
class _Choice:
    text: list[str] = field(default_factory=list)
    calls: dict[object, list[str | None]] = field(default_factory=dict)  # by index: id, name, arguments
    finish: str | None = None

    def reply(self) -> Reply:
        calls = tuple(Call(id=c[0], name=c[1] or "", arguments=c[2] or "") for c in self.calls.values())
        return Reply(text="".join(self.text), calls=calls, finish=self.finish)


class ChatReplyReader:
    """Feed it a reply's (decompressed) bytes; `finished()` once each choice that was asked for has ended.

    It never raises: what it cannot read, it says nothing about. Text is kept up to `most_bytes`.
    """

    def __init__(self, choices: int = 1, most_bytes: int = 32 * 1024 * 1024) -> None:
        self._wanted = choices
        self._most = most_bytes
        self._held = 0
        self._events: EventReader | None = None
        self._whole: list[bytes] | None = None
        self._choices: dict[int, _Choice] = {}
        self._broken = False

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the reply."""
        if self._broken or not chunk:
            return
        try:
            if self._events is None and self._whole is None:
                start = chunk.lstrip()
                if not start:
                    return
                # The first character tells a JSON reply from a stream, whatever the request asked for.
                if start.startswith(b"{"):
                    self._whole = []
                else:
                    self._events = EventReader(self._most)
            if self._whole is not None:
                self._hold(len(chunk))
                self._whole.append(chunk)
            elif self._events is not None:
                for data in self._events.feed(chunk):
                    self._event(data)
        except Exception:  # whatever a provider may send: the relayed reply must not suffer from our reading it
            self._broken = True

    def close(self, complete: bool) -> None:
        """The reply ended; `complete` says whether it did so by itself."""
        if self._broken:
            return
        try:
            if not complete:
                # What a stream finished before it broke was relayed, and stands; a broken JSON body says nothing.
                self._broken = self._whole is not None
            elif self._whole is not None:
                self._completion(orjson.loads(b"".join(self._whole)), "message")
                self._whole = []
            elif self._events is not None:
                for data in self._events.close():
                    self._event(data)
        except Exception:
            self._broken = True

    def finished(self) -> bool:
        """Whether every choice has ended."""
        ended = sum(choice.finish is not None for choice in self._choices.values())
        return not self._broken and ended >= max(self._wanted, len(self._choices)) > 0

    def replies(self) -> list[Reply]:
        """The choices that ended, in order of their index; none where the stream reported an error."""
        if self._broken:
            return []
        return [self._choices[index].reply() for index in sorted(self._choices) if self._choices[index].finish]

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > self._most:
            raise ValueError("the reply is larger than what is read of one")

    def _event(self, data: bytes) -> None:
        if data.startswith(b"{"):
            self._completion(orjson.loads(data), "delta")

    def _completion(self, value: Any, said: str) -> None:
        if value.get("error"):
            self._broken = True
            return
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
