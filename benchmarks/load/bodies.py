"""Conversations of a given size: the request that settles their last question, and the one that asks the next.

Each conversation of a kind differs from the others in one word of its first message, so that thousands of them cost
the load generator no memory.
"""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.sizes import prose

MARK = b"conversation-00000000"

CONFIG = """
[[evidence]]
name = "kb"
format = "auto"
tools = ["search"]
cite = "cite"
"""


@dataclass(frozen=True)
class Body:
    """A request body that names its conversation where `MARK` stands."""

    before: bytes
    after: bytes

    @classmethod
    def of(cls, raw: bytes) -> Body:
        before, found, after = raw.partition(MARK)
        if not found:
            raise ValueError("expected the body to name its conversation")
        return cls(before, after)

    def __len__(self) -> int:
        return len(self.before) + len(MARK) + len(self.after)

    def pieces(self, number: int) -> tuple[bytes, bytes, bytes]:
        return self.before, b"conversation-%08d" % number, self.after

    def raw(self, number: int = 0) -> bytes:
        return b"".join(self.pieces(number))


@dataclass(frozen=True)
class Kind:
    """`settles` is the request whose reply settles a conversation's last question, `asks` the first of the next one;
    `before` settles the last but one."""

    name: str
    before: Body
    settles: Body
    asks: Body


def body(messages: list[dict[str, Any]], stream: bool = False) -> bytes:
    whole = {"model": "m", "stream": stream, "messages": messages}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()


def call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def _question(number: int, content: Any, cited: list[str]) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": f"Question {number}?" if number else f"{MARK.decode()}: what is it?"},
        call(f"s{number}", "search", {"query": f"topic {number}"}),
        {"role": "tool", "tool_call_id": f"s{number}", "content": content},
        call(f"c{number}", "cite", {"ids": cited}),
        {"role": "tool", "tool_call_id": f"c{number}", "content": "Registered."},
    ]


def _kind(name: str, questions: list[list[dict[str, Any]]]) -> Kind:
    history: list[dict[str, Any]] = []
    before = history
    for question in questions:
        before = history
        history = [*history, *([{"role": "assistant", "content": "Yes."}] if history else []), *question]
    asked = [
        *history,
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And what follows from it?"},
    ]
    return Kind(name, Body.of(body(before or history)), Body.of(body(history)), Body.of(body(asked)))


def _results(dice: random.Random, number: int, count: int, size: int) -> tuple[str, list[str]]:
    ids = [f"q{number}-{index}" for index in range(count)]
    return json.dumps([{"id": one, "content": prose(dice, size)} for one in ids]), ids[:1]


def _sized(name: str, want: int, make: Callable[[int], list[list[dict[str, Any]]]]) -> Kind:
    """The kind whose next question is about so many bytes: `make` takes how many characters a result has."""
    size = 60
    kind = _kind(name, make(size))
    for _ in range(6):
        size = max(10, round(size * want / len(kind.asks)))
        kind = _kind(name, make(size))
    return kind


@cache
def text(name: str, want: int, questions: int, results: int) -> Kind:
    """Text only: so many questions, each with one search of so many results, of which one is cited."""

    def make(size: int) -> list[list[dict[str, Any]]]:
        dice = random.Random(7)
        return [_question(n, *_results(dice, n, results, size)) for n in range(questions)]

    return _sized(name, want, make)


@cache
def png(seed: int, side: int) -> str:
    """A picture of noise, as a data URL."""
    from PIL import Image

    raw = random.Random(seed).randbytes(3 * side * side)
    out = io.BytesIO()
    Image.frombytes("RGB", (side, side), raw).save(out, "PNG", compress_level=0)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


@cache
def pictures(name: str, questions: int = 10, each: int = 4, side: int = 224) -> Kind:
    """`each` pictures in each question's return, one of its results cited."""
    dice = random.Random(8)
    made = []
    for number in range(questions):
        text_part, cited = _results(dice, number, each, 300)
        parts: list[dict[str, Any]] = []
        for index, result in enumerate(json.loads(text_part)):
            parts.append({"type": "text", "text": json.dumps(result)})
            url = png(number * each + index, side)
            parts.append({"type": "image_url", "image_url": {"url": url}})
        made.append(_question(number, parts, cited))
    return _kind(name, made)


@cache
def plain(name: str, want: int) -> Kind:
    """A chat without any tool: nothing of it can be ours."""
    dice = random.Random(9)
    history: list[dict[str, Any]] = [{"role": "user", "content": f"{MARK.decode()}: hello"}]
    turns = max(1, min(40, want // 1500))
    for _ in range(turns):
        history.append({"role": "assistant", "content": prose(dice, want // turns // 2)})
        history.append({"role": "user", "content": prose(dice, want // turns // 2)})
    raw = Body.of(body(history))
    return Kind(name, raw, raw, raw)
