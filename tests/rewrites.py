"""What a rewrite did, read from the bytes of a request before and after it; and sending a conversation through a proxy.

Nothing here uses the product's own reading of bodies, so that a fault there cannot hide itself. Only its wording is
taken from it: what the words are is not what these tests are about.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from proxy.compaction import wording
from tests.house.client import ask
from tests.house.provider import Provider, events, json_reply, sse_reply
from tests.house.responding import of_completion, response_events

CREDENTIAL = ("Authorization", "Bearer sk-test-one")

# Cutting.


@dataclass(frozen=True)
class Cut:
    """A body as its raw pieces: what stands before its messages (or items), each one, what stands between and after."""

    head: bytes
    messages: list[bytes]
    gaps: list[bytes]
    tail: bytes

    @property
    def parsed(self) -> list[dict[str, Any]]:
        """The messages as values; items of the Responses API as chat completions would say the same."""
        return [view(message) for message in self.messages]

    def through_last_message(self) -> bytes:
        """The body up to the end of its last message: what a provider's prompt cache can share."""
        pieces = [self.head]
        for gap, message in zip([b"", *self.gaps], self.messages, strict=True):
            pieces += [gap, message]
        return b"".join(pieces)


_decoder = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def cut(body: bytes) -> Cut:
    """Cut a body that holds one `messages`, or one `input` that is an array."""
    text = body.decode("latin-1")  # one character per byte; what JSON's structure is made of is ASCII
    start, _ = _member(text, 0, "messages", "input")
    at = _skip(text, start + 1)
    head, places = at, []
    while text[at] != "]":
        _, end = _decoder.raw_decode(text, at)
        places.append((at, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    ends = places[-1][1] if places else head
    return Cut(
        head=body[:head],
        messages=[body[start:end] for start, end in places],
        gaps=[body[end:start] for (_, end), (start, _) in pairwise(places)],
        tail=body[ends:],
    )


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _member(text: str, at: int, *wanted: str) -> tuple[int, int]:
    """Where the value of the first of these keys of the object at `at` stands."""
    at = _skip(text, _skip(text, at) + 1)
    while True:
        key, at = _decoder.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        _, end = _decoder.raw_decode(text, at)
        if key in wanted:
            return at, end
        at = _skip(text, _skip(text, end) + 1)


def around_content(message: bytes) -> tuple[bytes, bytes]:
    """A message's bytes before and after the value of its `content`, or of what an item has in its place."""
    start, end = _member(message.decode("latin-1"), 0, "content", "output", "results")
    return message[:start], message[end:]


def view(raw: bytes) -> dict[str, Any]:
    """A message as a value. An item of the Responses API (`item` is then set) as a chat completion would say it."""
    value = json.loads(raw)
    kind = value.get("type")
    if kind in (None, "message") and "role" in value:
        content = value.get("content")
        return {**value, "content": [_part(part) for part in content]} if isinstance(content, list) else value
    if kind == "function_call":
        function = {"name": value["name"], "arguments": value["arguments"]}
        calls = [{"id": value["call_id"], "type": "function", "function": function}]
        return {"role": "assistant", "content": None, "tool_calls": calls, "item": kind}
    if kind == "function_call_output":
        output = value["output"]
        content = [_part(part) for part in output] if isinstance(output, list) else output
        return {"role": "tool", "tool_call_id": value["call_id"], "content": content, "item": kind}
    if kind == "file_search_call" and value.get("results"):
        results = value["results"]
        content = results[0]["text"] if list(results[0]) == ["text"] else json.dumps(results, ensure_ascii=False)
        return {"role": "tool", "tool_call_id": None, "content": content, "item": kind}
    if kind == "item_reference" and not value["id"].startswith("rs_"):
        return {"role": "assistant", "content": "", "item": kind}
    return {"role": "item", "content": "", "item": kind}


def _part(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") in ("input_text", "output_text"):
        return {"type": "text", "text": part["text"]}
    if isinstance(part, dict) and part.get("type") == "input_image" and "image_url" in part:
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return part


# Reading a rewrite.


@dataclass(frozen=True)
class Entry:
    """A chunk of a capsule, as it is shown."""

    ids: tuple[str, ...]
    content: str
    source: str | None = None
    collection: str | None = None


@dataclass(frozen=True)
class Shown:
    """A picture that was sent again: what its label says, and its decoded bytes."""

    chunk_id: str
    reference: str | None
    collection: str | None
    picture: bytes


@dataclass
class Rewrite:
    """What changed, by the index of the messages that came.

    `removed` are messages that are gone, `pictures_after` the message behind which a user message of pictures was put
    (-1: they stand in the carrier itself).
    """

    receipts: list[int] = field(default_factory=list)
    carrier: int | None = None
    groups: list[list[Entry]] = field(default_factory=list)
    pictures: list[Shown] = field(default_factory=list)
    pictures_after: int | None = None
    removed: list[int] = field(default_factory=list)

    @property
    def replaced(self) -> list[int]:
        return sorted([*self.receipts, *([self.carrier] if self.carrier is not None else [])])

    @property
    def ids(self) -> list[list[tuple[str, ...]]]:
        return [[entry.ids for entry in group] for group in self.groups]

    @property
    def entries(self) -> list[Entry]:
        return [entry for group in self.groups for entry in group]

    @property
    def content(self) -> dict[str, str]:
        return {chunk_id: entry.content for entry in self.entries for chunk_id in entry.ids}


@dataclass(frozen=True)
class Dialect:
    """Whose words a rewrite is in."""

    receipt: Callable[[str], bool]
    capsule: Callable[[str], list[list[Entry]] | None]
    label: Callable[[str], tuple[str, str | None, str | None] | None]


class NotARewrite(AssertionError):
    """Something changed that no rewrite may change."""


def read_rewrite(before: bytes, after: bytes, words: Dialect) -> Rewrite:
    """What was done to a request. Raises NotARewrite where anything else than evidence changed, to the byte."""
    came, went = cut(before), cut(after)
    if (came.head, came.tail) != (went.head, went.tail):
        raise NotARewrite("what stands around the messages changed")
    if not set(went.gaps) <= {*came.gaps, b","}:
        raise NotARewrite("what stands between the messages changed")
    done = Rewrite()
    old = new = 0
    while old < len(came.messages) or new < len(went.messages):
        is_old = came.messages[old] if old < len(came.messages) else None
        is_new = went.messages[new] if new < len(went.messages) else None
        if is_old is not None and is_old == is_new:
            old, new = old + 1, new + 1
        elif is_new is not None and (pictures := _attachment(view(is_new), words)):
            if done.pictures:
                raise NotARewrite("pictures were sent again in two places")
            done.pictures, done.pictures_after, new = pictures, old - 1, new + 1
        elif is_old is not None and view(is_old)["role"] == "user":
            done.removed.append(old)
            old += 1
        elif is_old is not None and is_new is not None:
            _read_return(old, is_old, is_new, words, done)
            old, new = old + 1, new + 1
        else:
            raise NotARewrite(f"message {old} is gone, or one was added at its place")
    return done


def _read_return(index: int, before: bytes, after: bytes, words: Dialect, done: Rewrite) -> None:
    value = view(after)
    if value["role"] != "tool" or around_content(before) != around_content(after):
        raise NotARewrite(f"message {index} changed beyond its content: {before[:200]!r} -> {after[:200]!r}")
    parts = value["content"]
    text = parts if isinstance(parts, str) else parts[0]["text"]
    inside = [] if isinstance(parts, str) else _labelled(parts[1:], words)
    if words.receipt(text) and not inside:
        done.receipts.append(index)
        return
    groups = words.capsule(text)
    if groups is None or inside is None:
        raise NotARewrite(f"message {index} became neither a receipt nor a capsule: {text[:200]!r}")
    if done.carrier is not None:
        raise NotARewrite("there are two capsules")
    done.carrier, done.groups = index, groups
    if inside:
        done.pictures, done.pictures_after = inside, -1


def _attachment(message: dict[str, Any], words: Dialect) -> list[Shown] | None:
    content = message.get("content")
    return _labelled(content, words) if message["role"] == "user" and isinstance(content, list) else None


def _labelled(parts: list[dict[str, Any]], words: Dialect) -> list[Shown] | None:
    """Label and picture pairs; None for anything else."""
    found = []
    for line, picture in zip(parts[::2], parts[1::2], strict=False):
        said = words.label(line["text"]) if line.get("type") == "text" else None
        if said is None or picture.get("type") != "image_url":
            return None
        found.append(Shown(*said, picture_bytes(picture["image_url"]["url"])))
    return found if len(parts) % 2 == 0 else None


def picture_bytes(url: str) -> bytes:
    return base64.b64decode(url.partition("base64,")[2], validate=True)


# Our words.

_GROUP = re.escape(wording.group(7)).replace("7", r"\d+")


def _our_capsule(text: str) -> list[list[Entry]] | None:
    if not text.startswith(wording.HEADER + "\n\n"):
        return None
    head, *groups = re.split(rf"(?m)(?:^|\n\n){_GROUP}\n\n", text)
    assert head == wording.HEADER, head
    return [_our_entries(group) for group in groups]


# Ids of these tests hold no white space; a line of content that looks like an id alone would be a fault of the test.
_ENTRY = re.compile(
    r"(?m)(?:\A|\n\n)(?P<ids>\[[^\[\]\s]+\](?:\n\[[^\[\]\s]+\])*)"
    r"(?: Source: (?P<source>[^\n]*)|\nCollection: (?P<collection>[^\n]*)(?:\nSource: (?P<named>[^\n]*))?)?(?:\n|\Z)"
)


def _our_entries(group: str) -> list[Entry]:
    found = list(_ENTRY.finditer(group))
    ends = [following.start() for following in found[1:]] + [len(group)]
    return [
        Entry(
            ids=tuple(re.findall(r"\[([^\[\]\s]+)\]", match["ids"])),
            content=group[match.end() : end],
            source=match["source"] or match["named"],
            collection=match["collection"],
        )
        for match, end in zip(found, ends, strict=True)
    ]


def _pattern(reference: bool, collection: bool) -> re.Pattern[str]:
    words = wording.label("<chunk>", "<reference>" if reference else None, "<collection>" if collection else None)
    named = re.sub(r"<(\w+)>", r"(?P<\1>.+?)", re.escape(words).replace(r"\<", "<").replace(r"\>", ">"))
    return re.compile(named)


_LABELS = [_pattern(reference, collection) for reference in (True, False) for collection in (True, False)]


def _our_label(text: str) -> tuple[str, str | None, str | None] | None:
    for pattern in _LABELS:
        if found := pattern.fullmatch(text):
            said = found.groupdict()
            return said["chunk"], said.get("reference"), said.get("collection")
    return None


OURS = Dialect(receipt=lambda text: text == wording.RECEIPT, capsule=_our_capsule, label=_our_label)


def read_ours(before: bytes, after: bytes) -> Rewrite:
    return read_rewrite(before, after, OURS)


# What holds of every request that goes upstream.


def assert_pairs(body: bytes) -> None:
    """Promise 4: each return has its call in the nearest assistant message, each call one return, all contiguous."""
    open_calls: list[str] = []
    came = cut(body).parsed
    if any("item" in message for message in came):
        return _assert_item_pairs(came)
    for index, message in enumerate(came):
        if message["role"] == "tool":
            assert message["tool_call_id"] in open_calls, f"message {index} answers no call that is open"
            open_calls.remove(message["tool_call_id"])
        elif message["role"] == "assistant" or (message["role"] == "user" and open_calls):
            assert not open_calls, f"calls without a return before message {index}: {open_calls}"
            open_calls = [call["id"] for call in message.get("tool_calls") or ()]
        # System messages may stand anywhere: frameworks put notices between a return and what follows.


def _assert_item_pairs(came: list[dict[str, Any]]) -> None:
    """In items, a reply may speak between its calls and their outputs; a user may not."""
    open_calls: list[str] = []
    for index, message in enumerate(came):
        if message.get("item") == "function_call_output":
            assert message["tool_call_id"] in open_calls, f"item {index} answers no call that is open"
            open_calls.remove(message["tool_call_id"])
        open_calls += [call["id"] for call in message.get("tool_calls") or ()]
        assert message["role"] != "user" or not open_calls, f"calls without an output before item {index}"


def assert_stable(before: Turn, turn: Turn) -> bool:
    """Promise 7, for two requests of one question: what goes up extends what went up, wherever what came did.

    Returns whether what came did.
    """
    if not turn.sent.startswith(cut(before.sent).through_last_message()):
        return False
    assert turn.forwarded.startswith(cut(before.forwarded).through_last_message()), "the prefix changed"
    return True


def pictures_in(body: bytes) -> list[bytes]:
    """The decoded bytes of every picture part."""
    return [
        picture_bytes(part["image_url"]["url"])
        for message in cut(body).parsed
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if part.get("type") == "image_url"
    ]


# Sending.


@dataclass(frozen=True)
class Turn:
    """One request through the proxy: what the client sent, what the provider got, what the reply header said."""

    sent: bytes
    forwarded: bytes
    evidence: str

    @property
    def figures(self) -> dict[str, str]:
        """The parameters of the reply header."""
        return dict(re.findall(r"([a-z-]+)=([^;]+)", self.evidence))

    def rewrite(self) -> Rewrite:
        return read_ours(self.sent, self.forwarded)


async def drive(
    url: str,
    provider: Provider,
    conversation: Iterable[tuple[bytes, dict[str, Any]]],
    *,
    stream: bool = False,
    headers: Sequence[tuple[str | bytes, str | bytes]] = (CREDENTIAL,),
    target: str = "/v1/chat/completions",
) -> list[Turn]:
    """Send requests one after another; each is answered with its completion, whole or as a stream.

    Holds promise 10 on the way: the reply is the provider's, to the byte.
    """
    turns = []
    for body, completion in conversation:
        if target.endswith("/responses"):
            said = completion if completion["object"] == "response" else of_completion(completion)
            reply = sse_reply(response_events(said)) if stream else json_reply(said)
        else:
            reply = sse_reply(events(completion)) if stream else json_reply(completion)
        provider.reply(reply)
        seen = await ask(url, body, target=target, headers=[("Content-Type", "application/json"), *headers])
        assert seen.status == 200, seen.body
        assert seen.body == b"".join(step for step in reply.steps if isinstance(step, bytes)), "promise 10"
        turns.append(Turn(body, provider.requests[-1].body, seen.evidence))
    return turns
