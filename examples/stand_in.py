"""A stand-in for a provider, so that every example runs without a key and without a network.

It plays a model that searches, cites the first passage that it found, and answers with that passage's first sentence,
through whatever tools a request offers. Chat completions and Responses, whole and streamed.

    python examples/stand_in.py            # http://127.0.0.1:9100/v1
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from aiohttp import web

COUNTER = itertools.count(1)
OPENS_A_PASSAGE = re.compile(r"^\[([^\]\n]{1,80})\](.*)$", re.MULTILINE)


def next_step(turns: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """What the model does next: `{"call": name, "arguments": ...}` or `{"text": ...}`.

    `turns` are the conversation in one shape for both APIs: role, text, and for a tool's result the tool's name.
    """
    asked = max((n for n, turn in enumerate(turns) if turn["role"] == "user" and turn["text"]), default=0)
    results = {turn["tool"]: turn["text"] for turn in turns[asked:] if turn["role"] == "tool"}
    search = next((tool for tool in tools if "search" in tool["name"]), None)
    cite = next((tool for tool in tools if "cite" in tool["name"]), None)
    if search is not None and search["name"] not in results:
        return {"call": search["name"], "arguments": {first_field(search): turns[asked]["text"]}}
    found = list(passages(results.get(search["name"], ""))) if search is not None else []
    if cite is not None and cite["name"] not in results:
        return {"call": cite["name"], "arguments": {first_field(cite): [chunk for chunk, _ in found[:1]]}}
    if not found:
        return {"text": "I found nothing about that."}
    chunk, words = found[0]
    return {"text": f"{words.split('. ')[0].rstrip('.')}. [{chunk}]"}


def first_field(tool: dict[str, Any]) -> str:
    return next(iter((tool.get("parameters") or {}).get("properties") or {"query": None}))


def passages(result: str) -> Iterator[tuple[str, str]]:
    """Id and text of each passage in a tool's result: JSON records, their `repr`, or text that opens with `[id]`."""
    try:
        value: Any = json.loads(result)
    except ValueError:
        try:
            value = ast.literal_eval(result) if result[:1] in "[{" else None
        except (ValueError, SyntaxError):
            value = None
    if isinstance(value, dict):
        value = value.get("results", value.get("result"))
    if isinstance(value, str):
        yield from passages(value)
    elif isinstance(value, list):
        for record in value:
            if isinstance(record, dict) and "id" in record:
                yield str(record["id"]), str(record.get("text") or record.get("content"))
            elif isinstance(record, dict) and isinstance(record.get("text"), str):
                yield from passages(record["text"])
    else:
        heads = [head for head in OPENS_A_PASSAGE.finditer(result) if not head[1].startswith("evidence ")]
        for head, following in itertools.zip_longest(heads, heads[1:]):
            text = result[head.end() : following.start() if following else len(result)].strip()
            yield head[1], text


# Chat completions.


async def chat(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    names: dict[str, str] = {}
    turns = []
    for message in body["messages"]:
        for call in message.get("tool_calls") or []:
            names[call["id"]] = call["function"]["name"]
        text = plain(message.get("content"))
        turns.append({"role": message["role"], "text": text, "tool": names.get(message.get("tool_call_id", ""), "")})
    step = next_step(turns, [tool["function"] for tool in body.get("tools") or [] if "function" in tool])
    finish = "tool_calls" if "call" in step else "stop"
    message: dict[str, Any] = {"role": "assistant", "content": step.get("text")}
    if "call" in step:
        function = {"name": step["call"], "arguments": json.dumps(step["arguments"])}
        message["tool_calls"] = [{"id": f"call_{next(COUNTER)}", "type": "function", "function": function}]
    number = next(COUNTER)
    common: dict[str, Any] = {"id": f"chatcmpl-{number}", "created": number, "model": body.get("model", "stand-in")}
    size = request.content_length or 0
    usage = {"prompt_tokens": size // 4, "completion_tokens": 1, "total_tokens": size // 4 + 1}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return web.json_response({**common, "object": "chat.completion", "choices": [choice], "usage": usage})
    for index, call in enumerate(message.get("tool_calls", [])):
        call["index"] = index
    common["object"] = "chat.completion.chunk"
    choices = [(message, None), ({}, finish)]
    chunks: list[Any] = [{**common, "choices": [{"index": 0, "delta": d, "finish_reason": f}]} for d, f in choices]
    return await stream(request, [*chunks, {**common, "choices": [], "usage": usage}], done=True)


# Responses.


async def responses(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    given = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
    names: dict[str, str] = {}
    turns = []
    for item in given:
        if item.get("type") == "function_call":
            names[item["call_id"]] = item["name"]
        elif item.get("type") == "function_call_output":
            turns.append({"role": "tool", "text": plain(item["output"]), "tool": names.get(item["call_id"], "")})
        elif "role" in item:
            turns.append({"role": item["role"], "text": plain(item["content"]), "tool": ""})
    step = next_step(turns, [tool for tool in body.get("tools") or [] if tool.get("type") == "function"])
    number = next(COUNTER)
    if "call" in step:
        out: dict[str, Any] = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}"}
        out |= {"name": step["call"], "arguments": json.dumps(step["arguments"]), "status": "completed"}
    else:
        content = [{"type": "output_text", "text": step["text"], "annotations": []}]
        out = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": content}
    size = request.content_length or 0
    usage: dict[str, Any] = {"input_tokens": size // 4, "output_tokens": 1, "total_tokens": size // 4 + 1}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    whole: dict[str, Any] = {"id": f"resp_{number}", "object": "response", "created_at": number, "status": "completed"}
    whole |= {
        "model": body.get("model", "stand-in"),
        "output": [out],
        "usage": usage,
        "tools": [],
        "tool_choice": "auto",
    }
    whole |= {"parallel_tool_calls": True, "error": None, "incomplete_details": None}
    if not body.get("stream"):
        return web.json_response(whole)
    begun = {**whole, "status": "in_progress", "output": []}
    place = {"output_index": 0, "item_id": out["id"]}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    if "call" in step:
        events += [
            {"type": "response.output_item.added", "output_index": 0, "item": {**out, "arguments": ""}},
            {"type": "response.function_call_arguments.done", **place, "arguments": out["arguments"]},
        ]
    else:
        empty = {**out, "content": [], "status": "in_progress"}
        part = {"type": "output_text", "text": "", "annotations": []}
        where = {**place, "content_index": 0}
        events += [
            {"type": "response.output_item.added", "output_index": 0, "item": empty},
            {"type": "response.content_part.added", **where, "part": part},
            {"type": "response.output_text.delta", **where, "delta": step["text"]},
            {"type": "response.output_text.done", **where, "text": step["text"]},
            {"type": "response.content_part.done", **where, "part": out["content"][0]},
        ]
    events += [
        {"type": "response.output_item.done", "output_index": 0, "item": out},
        {"type": "response.completed", "response": whole},
    ]
    return await stream(request, [{**event, "sequence_number": n} for n, event in enumerate(events)], done=False)


def plain(content: Any) -> str:
    """The text of a message's content, in either API's shape."""
    parts = content if isinstance(content, list) else [content]
    return "".join(part if isinstance(part, str) else part.get("text", "") for part in parts if part)


async def stream(request: web.Request, events: list[dict[str, Any]], done: bool) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await reply.prepare(request)
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        await reply.write(f"{name}data: {json.dumps(event)}\n\n".encode())
    if done:
        await reply.write(b"data: [DONE]\n\n")
    return reply


def app() -> web.Application:
    made = web.Application(client_max_size=64 * 1024 * 1024)
    made.router.add_post("/v1/chat/completions", chat)
    made.router.add_post("/v1/responses", responses)
    return made


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--port", type=int, default=9100)
    web.run_app(app(), host="127.0.0.1", port=options.parse_args().port)
