"""Read a response, streamed or whole, for what it says about the question. Source: OpenAI's API reference, "Responses".

A stream's last event carries the whole response, so its deltas need not be put together.
"""

from __future__ import annotations

from typing import Any

import orjson

from proxy.wire.messages import Call, Reply
from proxy.wire.side_reader import SideReader, read_json

#: Calls that the client runs, and answers with an item of this name plus "_output".
CLIENT_CALLS = frozenset(
    {
        "function_call",
        "custom_tool_call",
        "computer_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "mcp_approval_request",
    }
)


class ResponsesReplyReader(SideReader):
    """Reads a response. `conversation` is the id of the conversation that the request named, if it named one."""

    def __init__(self, conversation: str | None = None) -> None:
        super().__init__()
        self._reply: Reply | None = None
        self._id: str | None = None
        self._conversation = conversation

    def continued_by(self) -> str | None:
        """The conversation's id, or else the response's own."""
        return self._conversation or self._id

    def _ended(self, over: bool) -> bool:
        return self._reply is not None

    def _said(self) -> list[Reply]:
        return [self._reply] if self._reply is not None else []

    def _body(self, value: Any) -> None:
        self._response(value)

    def _event(self, data: bytes) -> None:
        # Every event says what it is near its start; only the last one is worth parsing.
        if b'"response.completed"' in data[:256] or b'"response.completed"' in data[-256:]:
            event = read_json(data)
            if event.get("type") == "response.completed":
                self._response(event.get("response") or {})

    def _response(self, response: Any) -> None:
        if response.get("status", "completed") != "completed" or response.get("error"):
            return
        texts: list[str] = []
        calls: list[Call] = []
        for item in response.get("output") or []:
            kind = item.get("type")
            if kind == "message":
                texts += [_text(part) for part in item.get("content") or []]
            elif isinstance(kind, str) and kind in CLIENT_CALLS:
                written = item.get("arguments", item.get("input"))
                calls.append(
                    Call(
                        id=item.get("call_id") or item.get("id"),
                        name=item.get("name") or kind,
                        arguments=written if isinstance(written, str) else orjson.dumps(written or {}).decode(),
                    )
                )
        identity = response.get("id")
        self._id = identity if isinstance(identity, str) else None
        self._reply = Reply(text="".join(texts), calls=tuple(calls), finish="tool_calls" if calls else "stop")


def _text(part: Any) -> str:
    text = part.get("text") if part.get("type") == "output_text" else None
    return text if isinstance(text, str) else ""
