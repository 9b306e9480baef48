"""Conversations to replay: captured ones where they are at hand, and generated ones of every shape that agents have.

Every step is a request body, as a client sends it, and the reply that it gets. Nothing here knows what is made of it.
"""

from __future__ import annotations

import base64
import io
import json
import random
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tests import captures
from tests.house.provider import completion

Json = dict[str, Any]

_WORDS = [
    *("anchor", "basin", "canal", "delta", "ebb", "flood", "groyne", "harbour", "inlet", "jetty", "keel", "lagoon"),
    *("mooring", "neap", "outfall", "pier", "quay", "reach", "sluice", "tide", "undertow", "vessel", "weir", "berth"),
    *("the", "a", "of", "is", "at", "when", "before", "checks", "opens", "holds", "rises", "turns", "carries", "shows"),
]


@dataclass(frozen=True)
class Step:
    """A request, the question that it belongs to (from 1), and the reply that it gets."""

    question: int
    body: bytes
    reply: Json


@dataclass(frozen=True)
class Conversation:
    """A conversation, with the evidence format and the API that its client speaks."""

    name: str
    format: str
    steps: tuple[Step, ...]
    api: str = "chat"
    output_tools: tuple[str, ...] = ("final_result",)

    def until(self, question: int) -> Conversation:
        """The same conversation, ended after this question."""
        return replace(self, steps=tuple(step for step in self.steps if step.question <= question))

    @property
    def questions(self) -> int:
        return self.steps[-1].question


@dataclass(frozen=True)
class Shape:
    """What a generated conversation looks like. `calls`, `results`, `pictures` and `cites` are the most of each."""

    questions: int
    calls: int = 2
    results: int = 10
    characters: int = 1500
    pictures: int = 0
    cites: int = 2
    again: float = 0.0
    answer: int = 300
    format: str = "haiku"


def any_shape(dice: random.Random, most_bytes: int) -> Shape:
    """A shape out of the whole range, with a last request of about `most_bytes` at the most."""
    questions, calls = dice.randint(1, 60), dice.randint(1, 8)
    results = dice.randint(3, 10)
    room = most_bytes / (questions * (calls + 1) / 2 * results)
    return Shape(
        questions=questions,
        calls=calls,
        results=results,
        characters=min(round(room), dice.choice((200, 500, 1000, 1500, 2500))),
        pictures=dice.choice((0, 0, 1, 4)) if questions * calls <= 80 else 0,
        cites=dice.randint(0, 5),
        again=dice.choice((0.0, 0.2, 0.4, 0.6)),
        answer=dice.choice((100, 300, 1200)),
        format=dice.choice(("haiku", "auto")),
    )


def prose(dice: random.Random, size: int) -> str:
    """About this many characters of sentences."""
    text: list[str] = []
    length = 0
    while length < size:
        text.append(" ".join(dice.choices(_WORDS, k=dice.randint(6, 14))).capitalize() + ".")
        length += len(text[-1]) + 1
    return " ".join(text)


@cache
def _drawing(number: int) -> str:
    """A small drawing, as a data URL."""
    from PIL import Image

    dice = random.Random(number)
    image = Image.new("RGB", (160, 120))
    image.putdata([(dice.randrange(256), 0, 99) if y % 9 == 0 else (9, 9, 99) for y in range(120) for _ in range(160)])
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


@dataclass
class _Chunk:
    chunk_id: str
    content: str
    drawing: int | None = None


class _Writer:
    """Writes a conversation as a client does: every request repeats all that was said."""

    def __init__(self, shape: Shape, dice: random.Random, name: str) -> None:
        self.shape, self.dice, self.name = shape, dice, name
        self.messages: list[bytes] = []
        self.steps: list[Step] = []
        self.cited: dict[str, _Chunk] = {}
        self.made = 0
        self.drawn = 0
        tools = [
            {"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in ("search", "cite")
        ]
        self.tail = b'],"tools":' + _compact(tools) + b"}"

    def write(self) -> Conversation:
        self.say({"role": "system", "content": "You answer questions about a harbour. " + prose(self.dice, 2000)})
        for number in range(1, self.shape.questions + 1):
            self.question(number)
        return Conversation(self.name, self.shape.format, tuple(self.steps))

    def say(self, message: Json) -> None:
        self.messages.append(_compact(message))

    def ask(self, number: int, text: str | None, calls: list[tuple[str, str, Json]]) -> None:
        body = b'{"model":"m","messages":[' + b",".join(self.messages) + self.tail
        self.steps.append(Step(number, body, completion(text, calls)))
        said: Json = {"role": "assistant", "content": text}
        if calls:
            said["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": n, "arguments": _compact(a).decode()}}
                for i, n, a in calls
            ]
        self.say(said)

    def question(self, number: int) -> None:
        dice, shape = self.dice, self.shape
        self.say({"role": "user", "content": f"Question {number}: {prose(dice, 60)}"})
        found: dict[str, _Chunk] = {}
        again = [chunk for chunk in self.cited.values() if dice.random() < shape.again / max(1, len(self.cited))]
        for _ in range(dice.randint(1, shape.calls)):
            self.made += 1
            call = f"call_{self.made}"
            self.ask(number, None, [(call, "search", {"query": prose(dice, 30)})])
            chunks = [self.chunk() for _ in range(dice.randint(max(1, shape.results // 2), shape.results))]
            if again and dice.random() < 0.5:
                chunks[0] = dice.choice(again)  # found again, as it was
            self.return_of(call, chunks)
            found |= {chunk.chunk_id: chunk for chunk in chunks}
        wanted = dice.randint(0, shape.cites)
        fresh = [chunk for chunk in found.values() if chunk.chunk_id not in self.cited]
        cites = dice.sample(fresh, min(len(fresh), wanted))
        for position in range(len(cites)):
            if self.cited and dice.random() < shape.again:
                cites[position] = dice.choice(list(self.cited.values()))
        cites = list({chunk.chunk_id: chunk for chunk in cites}.values())
        self.made += 1
        call = f"call_{self.made}"
        self.ask(number, None, [(call, "cite", {"chunk_ids": [chunk.chunk_id for chunk in cites]})])
        self.say({"role": "tool", "tool_call_id": call, "content": f"Registered {len(cites)} citation(s)."})
        self.cited |= {chunk.chunk_id: chunk for chunk in cites}
        self.ask(number, prose(dice, shape.answer), [])

    def chunk(self) -> _Chunk:
        chunk_id = str(uuid.UUID(int=self.dice.getrandbits(128), version=4))
        size = self.dice.randint(self.shape.characters // 2, self.shape.characters * 3 // 2)
        return _Chunk(chunk_id, prose(self.dice, size))

    def return_of(self, call: str, chunks: list[_Chunk]) -> None:
        for chunk in self.dice.sample(chunks, min(len(chunks), self.dice.randint(0, self.shape.pictures))):
            if chunk.drawing is None:
                self.drawn += 1
                chunk.drawing = self.drawn
        if self.shape.format == "haiku":
            self.haiku_return(call, chunks)
        else:
            self.auto_return(call, chunks)

    def haiku_return(self, call: str, chunks: list[_Chunk]) -> None:
        entries = [
            f'[{chunk.chunk_id}] [rank {rank} of {len(chunks)}]\nSource: "Harbour guide"\nType: text\n'
            f"Content:\n{chunk.content}"
            for rank, chunk in enumerate(chunks, 1)
        ]
        self.say({"role": "tool", "tool_call_id": call, "content": "\n\n---\n\n".join(entries)})
        parts: list[Json] = []
        for chunk in chunks:
            if chunk.drawing is not None:
                label = (
                    f"Page image retrieved for search result [{chunk.chunk_id}] (#/pictures/{chunk.drawing}). "
                    "Not provided by the user. [haiku.rag/retrieved-image]"
                )
                parts += [{"type": "text", "text": label}, _picture(chunk.drawing)]
        if parts:
            self.say({"role": "user", "content": parts})

    def auto_return(self, call: str, chunks: list[_Chunk]) -> None:
        parts: list[Json] = []
        for chunk in chunks:
            value = {"id": chunk.chunk_id, "title": "Harbour guide", "text": chunk.content}
            parts.append({"type": "text", "text": json.dumps(value)})
            if chunk.drawing is not None:
                parts.append(_picture(chunk.drawing))
        self.say({"role": "tool", "tool_call_id": call, "content": parts})


def _picture(number: int) -> Json:
    return {"type": "image_url", "image_url": {"url": _drawing(number)}}


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def generated(shape: Shape, seed: int, name: str = "") -> Conversation:
    """A conversation of this shape; equal seeds give equal ones."""
    return _Writer(shape, random.Random(seed), name or f"generated {seed}").write()


def generated_ones(count: int, most_bytes: int, seed: int = 9) -> Iterator[Conversation]:
    """Conversations of shapes out of the whole range."""
    dice = random.Random(seed)
    for number in range(count):
        yield generated(any_shape(dice, most_bytes), dice.getrandbits(32), f"generated {number + 1}")


def forty_questions() -> Conversation:
    """40 questions of one search with 10 results, one or two of them cited: the captured conversation where the
    captures stand beside this repository, else one of our own of the same shape."""
    if not captures.HERE:
        shape = Shape(questions=40, calls=1, results=10, characters=1500, cites=2, again=0.1, answer=300)
        return generated(shape, 20, "a twin of s20")
    told = captures.scenario("s20").arms["B"]
    return Conversation("s20", "haiku", tuple(Step(a.question, a.sent, a.completion) for a in told))


def client_captures() -> Iterator[Conversation]:
    """What real agent SDKs sent, where it is at hand: one script, in the way of each."""
    for api in ("chat", "responses"):
        for name in captures.clients(api):
            bodies = captures.client(name)
            if api == "chat" and all(b'"messages":[' in body for body in bodies):
                steps = tuple(_answered(bodies))
                if steps:
                    yield Conversation(name, "auto", steps, api, ("final_result", "Verdict"))


def _answered(bodies: list[bytes]) -> Iterator[Step]:
    """Each request with the reply that it got: the assistant message that a later request shows in its place."""
    spoken = [[m for m in json.loads(body)["messages"] if m["role"] not in ("system", "developer")] for body in bodies]
    for position, (body, messages) in enumerate(zip(bodies, spoken, strict=True)):
        later = next((found for found in spoken[position + 1 :] if len(found) > len(messages)), None)
        said = later[len(messages)] if later is not None else {"role": "assistant", "content": "Yes."}
        if said["role"] != "assistant":
            said = {"role": "assistant", "content": "Yes."}  # a side request of the host
        content = said.get("content")
        text = content if isinstance(content, str) else "".join(part["text"] for part in content or ())
        calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in said.get("tool_calls") or ()]
        numbers = [int(found[1]) for m in messages if m["role"] == "user" and (found := _NUMBERED.match(_text(m)))]
        yield Step(max(numbers, default=1), body, completion(text or None, calls))


_NUMBERED = re.compile(r"Q(\d+): ")


def _text(message: Json) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content or ())
