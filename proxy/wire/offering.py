"""The tools that a request offers, and the one addition to it: another tool, in the last place.

Where in the bytes that goes; whether it does is `policy`'s business.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from proxy.wire import spans
from proxy.wire.messages import NotJson, Request, Span, Splice


@dataclass(frozen=True, slots=True)
class Offer:
    """What a request offers. `names` are those of its tools, `model` whom it asks, `choices` how many replies it wants.

    `place` is where another tool goes: None where it cannot be added without touching what is there (two members of
    one name, something that is no list, the deprecated `functions`).
    """

    names: tuple[str, ...]
    model: str
    choices: int
    place: Place | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tool goes in: the bytes between `start` and `end` are replaced, `before` and `after` stand around it."""

    start: int
    end: int
    before: bytes
    after: bytes


def read(request: Request) -> Offer:
    """What a request offers."""
    body = request.body
    text = body.decode("latin-1")
    found: dict[str, list[Span]] = {}
    walk = spans.members(text, 0)
    last = 0
    try:
        key, at = next(walk)
        while True:
            end = _end_of_conversation(request, text, key, at) or spans.value_end(text, at)
            found.setdefault(key, []).append(Span(at, end))
            last = end
            key, at = walk.send(end)
    except StopIteration:
        pass
    values = {name: _value(body, found[name][-1]) for name in ("tools", "functions", "model", "n") if name in found}
    tools = values.get("tools")
    place: Place | None = None
    if len(found.get("tools", ())) <= 1 and not values.get("functions") and last:
        place = _place(body, found["tools"][0] if "tools" in found else None, tools, last)
    model, n = values.get("model"), values.get("n")
    return Offer(
        names=tuple(_names(tools)),
        model=model if isinstance(model, str) else "",
        choices=n if isinstance(n, int) and not isinstance(n, bool) else 1,
        place=place,
    )


def add(place: Place, tool: bytes) -> Splice:
    """Put a tool in its place."""
    return Splice(place.start, place.end, place.before + tool + place.after)


def moved(change: Splice, request: Request, length: int) -> Splice:
    """The same change in a body of another length, of which only the conversation is another."""
    if not request.messages or change.start < request.messages[0].span.start:
        return change
    by = length - len(request.body)
    return Splice(change.start + by, change.end + by, change.data)


def _end_of_conversation(request: Request, text: str, key: str, at: int) -> int | None:
    """Where the conversation ends, which need not be read again; None for any other member."""
    if key != request.api.MEMBER or not request.messages or not at <= request.messages[0].span.start:
        return None
    last = request.messages[-1].span.end
    if text.startswith('"', at):
        return last
    closed = text.find("]", last)
    return closed + 1 if closed >= 0 and not text[last:closed].strip() else None


def _value(body: bytes, span: Span) -> Any:
    try:
        return json.loads(body[span.start : span.end])
    except (ValueError, RecursionError):
        return None


def _place(body: bytes, span: Span | None, tools: Any, last: int) -> Place | None:
    if span is None:
        return Place(last, last, b',"tools":[', b"]")
    if body.startswith(b"null", span.start):
        return Place(span.start, span.end, b"[", b"]")
    if not isinstance(tools, list):
        return None
    try:
        own = spans.element_spans(body, span)
    except NotJson:
        return None
    if not own:
        return Place(span.start, span.end, b"[", b"]")
    return Place(own[-1].end, own[-1].end, b",", b"")


def _names(tools: Any) -> list[str]:
    names: list[str] = []
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            described = tool.get("function") or tool.get("custom") or tool
            name = described.get("name") if isinstance(described, dict) else None
            names.append(name if isinstance(name, str) else str(tool.get("type")))
    return names
