"""A chat completion that this proxy writes: it calls a tool of the client's. Source: OpenAI's reference, "Chat"."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from proxy.wire.bodies import json_text
from proxy.wire.events import EventReader
from proxy.wire.messages import Call
from proxy.wire.side_reader import read_json


def call(made: Call) -> bytes:
    """A call as it stands in a message."""
    function = b'{"name":' + json_text(made.name) + b',"arguments":' + json_text(made.arguments) + b"}"
    return b'{"id":' + json_text(made.id or "") + b',"type":"function","function":' + function + b"}"


def reply(calls: Sequence[Call], like: bytes, streamed: bool, created: int, identity: str) -> list[bytes]:
    """A completion that calls tools: a whole body, or the events of a stream. See `messages.Api`."""
    said = _first_of(like).get("model")
    head = {
        "id": f"chatcmpl-{identity}",
        "object": "chat.completion.chunk" if streamed else "chat.completion",
        "created": created,
        "model": said if isinstance(said, str) else "",
    }
    made = [json.loads(call(one)) for one in calls]
    if not streamed:
        message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": made}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
        return [_json({**head, "choices": [choice], "usage": _NOTHING})]
    usage = {"usage": None} if _tells_usage(like) else {}
    numbered = [{"index": number, **one} for number, one in enumerate(made)]
    begun = {"role": "assistant", "content": None, "tool_calls": numbered}

    def event(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}], **usage}

    events = [event(begun, None), event({}, "tool_calls")]
    if usage:
        events.append({**head, "choices": [], "usage": _NOTHING})
    return [b"data: " + _json(one) + b"\n\n" for one in events] + [b"data: [DONE]\n\n"]


_NOTHING = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _first_of(like: bytes) -> dict[str, Any]:
    """The completion, or the first chunk of its stream that says something; an empty one where it cannot be read."""
    try:
        if like.lstrip().startswith(b"{"):
            value = read_json(like)
            return value if isinstance(value, dict) else {}
        for data in EventReader(len(like) + 1).feed(like):
            if data.startswith(b"{") and isinstance(value := read_json(data), dict) and value.get("model"):
                return value
    except ValueError:
        pass
    return {}


def _tells_usage(like: bytes) -> bool:
    """Whether the client wants to be told the usage of a stream: then the provider did so, too."""
    return b'"usage"' in like
