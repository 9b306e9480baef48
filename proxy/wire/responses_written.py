"""Responses that this proxy writes: one that calls a tool of the client's. Source: OpenAI's reference, "Responses"."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from proxy.wire.bodies import json_text
from proxy.wire.events import EventReader
from proxy.wire.messages import Call
from proxy.wire.side_reader import read_json

_NOTHING = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def call(made: Call) -> bytes:
    """A call as an item of a request. Without an id of its own: with one, the provider would look for the reasoning
    before it."""
    named = b'"name":' + json_text(made.name) + b',"arguments":' + json_text(made.arguments)
    return b'{"type":"function_call","call_id":' + json_text(made.id or "") + b"," + named + b"}"


def reply(calls: Sequence[Call], like: bytes, streamed: bool, created: int, identity: str) -> list[bytes]:
    """A response that calls tools: a whole body, or the events of a stream. See `messages.Api`.

    The provider's own response tells the rest: settings that it was asked for with, which clients may expect there.
    """
    items = [
        {
            "id": f"fc_{identity}{position}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }
        for position, call in enumerate(calls)
    ]
    response: dict[str, Any] = {
        "object": "response",
        "error": None,
        "incomplete_details": None,
        **_response_of(like),
        "id": f"resp_{identity}",
        "created_at": created,
        "status": "completed",
        "output": items,
        "usage": _NOTHING,
    }
    if not streamed:
        return [_json(response)]
    return _events(response, items)


def _events(response: dict[str, Any], items: list[dict[str, Any]]) -> list[bytes]:
    events: list[bytes] = []

    def event(kind: str, **fields: Any) -> None:
        value = {"type": kind, "sequence_number": len(events), **fields}
        events.append(b"event: " + kind.encode() + b"\ndata: " + _json(value) + b"\n\n")

    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    event("response.created", response=begun)
    event("response.in_progress", response=begun)
    for index, item in enumerate(items):
        place = {"item_id": item["id"], "output_index": index}
        event("response.output_item.added", output_index=index, item={**item, "status": "in_progress", "arguments": ""})
        event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        event("response.function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"])
        event("response.output_item.done", output_index=index, item=item)
    event("response.completed", response=response)
    return events


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _response_of(like: bytes) -> dict[str, Any]:
    """The response as the provider told it last; an empty one where it cannot be read."""
    told: dict[str, Any] = {}
    try:
        if like.lstrip().startswith(b"{"):
            value = read_json(like)
            return value if isinstance(value, dict) else {}
        for data in EventReader(len(like) + 1).feed(like):
            if b'"response"' in data[:512] and isinstance(value := read_json(data), dict):
                response = value.get("response")
                told = response if isinstance(response, dict) else told
    except ValueError:
        pass
    return told
