"""Responses, as the provider of the Responses API gives them: whole, and as the events of a stream."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any


def response(
    text: str | None = None,
    calls: Sequence[tuple[str, str, Any]] = (),
    identity: str = "resp_1",
    status: str = "completed",
    before: Sequence[dict[str, Any]] = (),
    annotations: Sequence[dict[str, Any]] = (),
    **beside: Any,
) -> dict[str, Any]:
    """A response: items that came `before`, an answer, and calls as (id, name, arguments)."""
    output = list(before)
    if text is not None:
        part = {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}
        output.append(item("message", text, status="completed", role="assistant", content=[part]))
    for call_id, name, args in calls:
        written = args if isinstance(args, str) else json.dumps(args)
        output.append(item("function_call", call_id, status="completed", call_id=call_id, name=name, arguments=written))
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    }
    return {
        "id": identity,
        "object": "response",
        "created_at": 1,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "scripted",
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage,
        **beside,
    }


_PREFIX = {"message": "msg", "function_call": "fc", "reasoning": "rs", "file_search_call": "fs", "compaction": "cmp"}


def item(kind: str, seed: str, **fields: Any) -> dict[str, Any]:
    """An item of this type, with an id that depends on `seed`."""
    digest = hashlib.sha256(f"{kind} {seed}".encode()).hexdigest()[:48]
    return {"id": f"{_PREFIX.get(kind, kind)}_{digest}", "type": kind, **fields}


def of_completion(completion: dict[str, Any], identity: str = "resp_1") -> dict[str, Any]:
    """What a chat completion says, as a response."""
    message = completion["choices"][0]["message"]
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    return response(message.get("content"), calls, identity)


def response_events(whole: dict[str, Any], piece: int = 12) -> list[bytes]:
    """The same response as a stream: each event as one piece, numbered, with the whole response in the last one."""
    number = 0
    pieces: list[bytes] = []

    def event(kind: str, **fields: Any) -> None:
        nonlocal number
        value = {"type": kind, "sequence_number": number, **fields}
        pieces.append(f"event: {kind}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n".encode())
        number += 1

    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    event("response.created", response=begun)
    event("response.in_progress", response=begun)
    for index, done in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": done.get("id")}
        if done["type"] == "message":
            event(
                "response.output_item.added", output_index=index, item={**done, "status": "in_progress", "content": []}
            )
            for position, part in enumerate(done["content"]):
                at = {**place, "content_index": position}
                event("response.content_part.added", **at, part={**part, "text": "", "annotations": []})
                text = part["text"]
                for start in range(0, len(text), piece):
                    event("response.output_text.delta", **at, delta=text[start : start + piece], logprobs=[])
                for order, annotation in enumerate(part["annotations"]):
                    event("response.output_text.annotation.added", **at, annotation_index=order, annotation=annotation)
                event("response.output_text.done", **at, text=text, logprobs=[])
                event("response.content_part.done", **at, part=part)
        elif done["type"] == "function_call":
            event(
                "response.output_item.added",
                output_index=index,
                item={**done, "status": "in_progress", "arguments": ""},
            )
            text = done["arguments"]
            for start in range(0, len(text), piece):
                event("response.function_call_arguments.delta", **place, delta=text[start : start + piece])
            event("response.function_call_arguments.done", **place, name=done["name"], arguments=text)
        else:
            event("response.output_item.added", output_index=index, item=done)
        event("response.output_item.done", output_index=index, item=done)
    event(f"response.{whole['status']}", response=whole)
    return pieces
