"""A conversation of forty questions, and what of its evidence stands in what a provider receives.

The conversation is the one of `benchmarks.sizes`. `text` is as there, in haiku.rag's format; `json` has the same
results as an array of objects, as many tools return them. Only values in, values out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks import sizes
from benchmarks.sizes import Step
from proxy.visibility import vocabularies

_RESULT = re.compile(r'\[(\S+)\] \[rank \d+ of \d+\]\nSource: "([^"]*)"\nType: text\nContent:\n(.*)', re.DOTALL)
_BETWEEN = "\n\n---\n\n"
#: What this project's proxy is told of the conversation's tools.
TABLES = {
    "text": '[[evidence]]\nname = "kb"\nformat = "haiku"\ntools = ["search"]\ncite = "cite"\n',
    "json": '[[evidence]]\nname = "kb"\nformat = "auto"\ntools = ["search"]\ncite = "cite"\n',
}


@dataclass(frozen=True)
class Chunk:
    """A result of a question's search: its text, and whether the question cited it."""

    question: int
    content: str
    cited: bool

    @property
    def sentences(self) -> list[str]:
        return _sentences(self.content)


def _sentences(text: str) -> list[str]:
    return [one.strip() for one in re.split(r"(?<=\.)\s+", text)]


def conversation(shape: str) -> tuple[list[Step], list[Chunk]]:
    """The requests in order, each with the reply that it gets; and every result that its searches gave."""
    history: list[dict[str, Any]] = []
    steps: list[Step] = []
    chunks: list[Chunk] = []
    for number, question in enumerate(sizes.questions(40), 1):
        cited = {chunk for message in question for chunk in _cited(message)}
        for message in question:
            if message["role"] == "assistant":
                steps.append(Step(number, sizes.body(history), sizes.reply(message)))
            if message["role"] == "tool" and _BETWEEN in message["content"]:
                results = [_RESULT.fullmatch(one) for one in message["content"].split(_BETWEEN)]
                found = [one.groups() for one in results if one is not None]
                chunks += [Chunk(number, content, chunk in cited) for chunk, _, content in found]
                if shape == "json":
                    rows = [{"id": chunk, "title": title, "content": content} for chunk, title, content in found]
                    message = {**message, "content": json.dumps(rows)}
            history.append(message)
    return steps, chunks


def _cited(message: dict[str, Any]) -> list[str]:
    calls = [call["function"] for call in message.get("tool_calls", ()) if call["function"]["name"] == "cite"]
    return [chunk for call in calls for chunk in json.loads(call["arguments"])["chunk_ids"]]


@dataclass
class Reached:
    """What reached a provider, of all requests together.

    `cited` and `current` count results: those that earlier questions cited, and those of the question that is asked,
    as (standing whole, all). `others` counts sentences of what earlier questions found and did not cite. `repeated`
    are the bytes with which a request begins just as the one before it, which a provider's prompt cache can use.
    """

    bytes: int = 0
    tokens: int = 0
    cited: tuple[int, int] = (0, 0)
    others: tuple[int, int] = (0, 0)
    current: tuple[int, int] = (0, 0)
    repeated: int = 0
    as_sent: int = 0
    requests: int = 0


def judged(steps: list[Step], received: Iterable[bytes], chunks: list[Chunk]) -> Reached:
    """Look through what a provider received for these requests, one for each."""
    told = Reached()
    before = b""
    for step, body in zip(steps, received, strict=True):
        told.requests += 1
        told.bytes += len(body)
        told.tokens += tokens(body)
        told.repeated += _alike(before, body)
        told.as_sent += json.loads(body)["messages"] == json.loads(step.body)["messages"]
        before = body
        text = "\n".join(_texts(json.loads(body)["messages"]))
        standing = set(re.split(r"(?<=\.)\s+|\n|\"", text))
        for chunk in chunks:
            if chunk.question < step.question and not chunk.cited:
                sentences = chunk.sentences
                told.others = _more(told.others, sum(one in standing for one in sentences), len(sentences))
            elif chunk.question < step.question:
                told.cited = _more(told.cited, chunk.content in text, 1)
            elif chunk.question == step.question and chunk.content[:60].encode() in step.body:
                told.current = _more(told.current, chunk.content in text, 1)
    return told


def _alike(one: bytes, other: bytes) -> int:
    """With how many bytes both begin."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if other.startswith(one[:middle]) else (low, middle - 1)
    return low


def _more(counted: tuple[int, int], standing: int, every: int) -> tuple[int, int]:
    return counted[0] + standing, counted[1] + every


def _texts(value: Any) -> Iterable[str]:
    """Every string of a JSON value, and what JSON inside of one says."""
    if isinstance(value, str):
        yield value
        if value[:1] in "[{":
            try:
                yield from _texts(json.loads(value))
            except ValueError:
                return
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def tokens(body: bytes) -> int:
    """The tokens of a body's messages, as GPT-4o and later models count the text of it."""
    text = json.dumps(json.loads(body)["messages"], ensure_ascii=False)
    return len(vocabularies.encoding("o200k_base").encode_ordinary(text))
