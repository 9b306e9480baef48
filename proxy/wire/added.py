"""What a request of our own needs beside the client's bytes: members taken out, and messages put at the end.

Everything else stays as it came. The shapes of the two APIs stand in `chat` and `responses`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from proxy.wire import spans
from proxy.wire.bodies import json_text
from proxy.wire.messages import Request, Splice

_PAST_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")


def members(body: bytes, *names: str) -> dict[str, Any]:
    """The values of the body's members of these names; one that is not there, or cannot be read, is None."""
    found: dict[str, Any] = dict.fromkeys(names)
    text = body.decode("latin-1")
    walk = spans.members(text, 0)
    try:
        key, at = next(walk)
        while True:
            end = None
            if key in found:
                end = spans.value_end(text, at)
                found[key] = _read(body[at:end])
            key, at = walk.send(end)
    except StopIteration:
        return found


def _read(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def without(body: bytes, names: Collection[str]) -> list[Splice]:
    """Take the members of these names out of a body, wherever and however often they stand."""
    text = body.decode("latin-1")
    cuts: list[Splice] = []
    start = text.index("{") + 1
    before, kept_one = start, False
    walk = spans.members(text, 0)
    try:
        key, at = next(walk)
        while True:
            end = spans.value_end(text, at)
            if key not in names:
                kept_one = True
            elif kept_one:
                cuts.append(Splice(before, end))  # with the comma before it
            else:
                comma = _PAST_COMMA.match(text, end)
                start, end_of_cut = max(before, start), comma.end() if comma else end
                cuts.append(Splice(start, end_of_cut))
                start = end_of_cut
            before = end
            key, at = walk.send(end)
    except StopIteration:
        return cuts


def at_the_end(request: Request, items: Sequence[bytes]) -> Splice:
    """Put elements after the last one of the array that holds the conversation, which must hold one. A conversation
    that is a string becomes a list."""
    last = request.messages[-1].span
    if request.body.startswith(b'"', last.start):
        said = b'{"role":"user","content":' + request.body[last.start : last.end] + b"}"
        return Splice(last.start, last.end, b"[" + b",".join([said, *items]) + b"]")
    return Splice(last.end, last.end, b"".join(b"," + item for item in items))


def at_the_start(request: Request, items: Sequence[bytes]) -> Splice:
    """Put elements before the first one of the conversation, which must hold one."""
    first = request.messages[0].span
    if request.body.startswith(b'"', first.start):
        said = b'{"role":"user","content":' + request.body[first.start : first.end] + b"}"
        return Splice(first.start, first.end, b"[" + b",".join([*items, said]) + b"]")
    return Splice(first.start, first.start, b"".join(item + b"," for item in items))


def described(name: str, description: str, parameters: dict[str, Any]) -> bytes:
    """The members that describe a function, which both APIs share."""
    schema = json.dumps(parameters, separators=(",", ":"), ensure_ascii=False).encode()
    return b'"name":' + json_text(name) + b',"description":' + json_text(description) + b',"parameters":' + schema


def tied_choice(body: bytes) -> list[str]:
    """The members that tie the model to one tool or to none: with them a cite call could not be made."""
    free = {"tool_choice": (None, "auto", "required"), "function_call": (None, "auto")}
    return [name for name, value in members(body, *free).items() if value not in free[name]]


def callable_tools(body: bytes) -> list[dict[str, Any]]:
    """The descriptions of the tools that a reply may call: none where the client wants no call."""
    found = members(body, "tools", "tool_choice")
    tools = found["tools"] if found["tool_choice"] != "none" and isinstance(found["tools"], list) else []
    return [tool for tool in tools if isinstance(tool, dict)]
