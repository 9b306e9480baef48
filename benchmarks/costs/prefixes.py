"""What of a request a provider has seen before: the longest prefix that it shares with any earlier request.

A prompt cache works on tokens, in the order in which a provider lays them out: the tools first, then the messages.
OpenAI documents whole blocks of 128 tokens, and nothing below 1,024. Bytes are compared as they are sent.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

from benchmarks.costs import tokens

BLOCK = 128
LEAST = 1024
_START, _SPEAKS = 200_006, 200_008
PRICES = (0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Spent:
    """One request: its size, and what of it no earlier request began with. `breaks` says that the one before it is no
    prefix of it."""

    size: int
    uncached: int
    tokens: int
    uncached_tokens: int
    breaks: bool

    def cost(self, cached_price: float) -> float:
        """In tokens at full price."""
        return self.uncached_tokens + cached_price * (self.tokens - self.uncached_tokens)

    def cost_in_bytes(self, cached_price: float) -> float:
        return self.uncached + cached_price * (self.size - self.uncached)


@dataclass
class _Node:
    below: dict[bytes, _Node] = field(default_factory=dict)


class Prefixes:
    """The requests of one conversation, one after another. Other conversations share nothing here but their head."""

    def __init__(self) -> None:
        self._seen = _Node()
        self._last: list[bytes] = []

    def add(self, body: bytes) -> Spent:
        """Take the next request, and say what it costs."""
        head, messages, tail = cut(body)
        shared, shared_tokens = self._shared(messages)
        beside = json.loads(head + tail)
        tools = len(_encoded(json.dumps(beside.get("tools") or [], sort_keys=True)))
        total = tools + sum(len(message_tokens(message)) for message in messages)
        is_first = not self._last
        known = 0 if is_first else tools + shared_tokens
        known = known // BLOCK * BLOCK if known >= LEAST else 0
        breaks = not is_first and messages[: len(self._last)] != self._last
        self._last = messages
        return Spent(
            size=len(body),
            uncached=len(body) if is_first else len(body) - len(head) - shared,
            tokens=total,
            uncached_tokens=total - known,
            breaks=breaks,
        )

    def _shared(self, messages: list[bytes]) -> tuple[int, int]:
        """How many bytes and tokens of these messages an earlier request began with; they are known from now on."""
        node, size, counted, at = self._seen, 0, 0, 0
        while at < len(messages) and messages[at] in node.below:
            node = node.below[messages[at]]
            size += len(messages[at]) + (at > 0)
            counted += len(message_tokens(messages[at]))
            at += 1
        if at < len(messages):
            others = list(node.below)
            size += max((_alike(messages[at], other) + (at > 0) for other in others), default=0)
            counted += max(
                (_alike_tokens(message_tokens(messages[at]), message_tokens(other)) for other in others), default=0
            )
        for message in messages[at:]:
            node = node.below.setdefault(message, _Node())
        return size, counted


def cut(body: bytes) -> tuple[bytes, list[bytes], bytes]:
    """A body's bytes before its first message, each message, and what comes after the last one."""
    text = body.decode("latin-1")
    found = re.search(r'"(?:messages|input)":\[', text)
    assert found is not None, "compact JSON of either API is expected"
    start = found.end()
    decoder = json.JSONDecoder()
    places, at = [], start
    while text[at] != "]":
        _, end = decoder.raw_decode(text, at)
        places.append((at, end))
        at = end + (text[end] == ",")
    assert all(later[0] == before[1] + 1 for before, later in pairwise(places)), "compact JSON is expected"
    return body[:start], [body[a:b] for a, b in places], body[at:]


def _alike(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _alike_tokens(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@lru_cache(maxsize=100_000)
def _encoded(text: str) -> tuple[int, ...]:
    return tuple(tokens.encode(text))


@lru_cache(maxsize=100_000)
def message_tokens(raw: bytes) -> list[int]:
    """The tokens of a message: who speaks, what is said, which pictures, which calls."""
    message: dict[str, Any] = json.loads(raw)
    content = message.get("content", message.get("output"))
    # What marks a message's start and its speaker's end are special tokens, which merge with no text.
    found = [_START, *tokens.encode(message.get("role") or message.get("type") or ""), _SPEAKS]
    text = ""
    for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
        picture = part.get("image_url")
        if picture is not None:
            found += tokens.encode(text)
            found += tokens.of_picture(picture["url"] if isinstance(picture, dict) else picture)
            text = ""
        else:
            text += part.get("text") or ""
    for call in message.get("tool_calls") or ([{"function": message}] if "arguments" in message else []):
        text += call["function"]["name"] + call["function"]["arguments"]
    found += tokens.encode(text)
    return found
