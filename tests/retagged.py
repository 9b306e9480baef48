"""The haiku captures as they would be if their search tool had used our library: the same results, tagged.

A search's return becomes a tagged return, the label of a retrieved picture one of ours; every other byte stays.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from proxy.evidence.haiku import read_label
from proxy.tagging import Picture, Result, Tagged, tag
from tests.captures import CAPTURES, search_results
from tests.house.keys import KEYS
from tests.rewrites import cut, picture_bytes


@dataclass(frozen=True)
class Retagged:
    """A body with tagged returns. `untagged` are the indexes of returns that were no results: they stay as they are."""

    body: bytes
    untagged: frozenset[int]
    uris: dict[str, str | None]  # by chunk id


@cache
def _documents(name: str) -> dict[str, dict[str, Any]]:
    told = json.loads((CAPTURES / "haiku" / name / "meta.json").read_bytes())["documents"]
    return dict(told) if isinstance(told, dict) else {}


def retagged(name: str, body: bytes, tools: frozenset[str] = frozenset({"search"})) -> Retagged:
    """A captured body of a scenario, with what its search returned tagged."""
    pieces = cut(body)
    messages = pieces.parsed
    written = list(pieces.messages)
    results = search_results(body)
    untagged: set[int] = set()
    uris: dict[str, str | None] = {}
    called: dict[str, str] = {}
    group: list[tuple[int, list[Result]]] = []
    for index, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            called[call["id"]] = call["function"]["name"]
        if message["role"] == "assistant":
            group = []
        if message["role"] == "tool" and called[message["tool_call_id"]] != "cite":
            found = [_result(name, result) for result in results if result.index == index]
            if called[message["tool_call_id"]] not in tools or not (found or message["content"] == "No results found."):
                untagged.add(index)
                continue
            uris |= {result.id: result.uri for result in found}
            group.append((index, found))
            written[index] = _with(written[index], tag(found, KEYS).text)
        if message["role"] == "user" and isinstance(message["content"], list) and group:
            parts = message["content"]
            labels = [read_label(part["text"]) if part["type"] == "text" else None for part in parts[::2]]
            if all(labels) and len(parts) % 2 == 0:
                # One user message of pictures for each return that has some, in the order of the returns.
                at, found = next((at, found) for at, found in group if labels[0].chunk_id in {r.id for r in found})  # type: ignore[union-attr]
                tagged = _with_pictures(found, labels, parts[1::2])
                written[at] = _with(written[at], tagged.text)
                written[index] = json.dumps({"role": "user", "content": tagged.chat()[1:]}).encode()
    gaps = [*pieces.gaps, b""]
    joined = b"".join(m + g for m, g in zip(written, gaps, strict=True)) if written else b""
    return Retagged(pieces.head + joined + pieces.tail, frozenset(untagged), uris)


def _with(message: bytes, text: str) -> bytes:
    value = json.loads(message)
    return json.dumps({**value, "content": text}, ensure_ascii=False, separators=(",", ":")).encode()


def _result(name: str, shown: Any) -> Result:
    title, *headings = re.findall(r'"[^"]*"|[^>]+?(?= > |\Z)', shown.source) if shown.source else [None]
    if title is not None and not title.startswith('"'):
        title, headings = None, [title, *headings]
    title = title.strip('"') if title else None
    matching = [
        (key, value)
        for key, value in _documents(name).items()
        if value["title"] == title and (shown.collection is None or key.startswith(f"{shown.collection}/"))
    ]
    key, value = matching[0] if len(matching) == 1 else (None, {"uri": None})
    return Result(
        id=shown.chunk_id,
        content=shown.content,
        title=title,
        headings=[heading.removeprefix(" > ").strip() for heading in headings],
        uri=value["uri"],
        document_id=key,
        collection=shown.collection,
    )


def _with_pictures(found: list[Result], labels: list[Any], pictures: list[Any]) -> Tagged:
    """The results with the pictures that stood beside them, each with the chunk that its label names."""
    shown: dict[str, list[Picture]] = {}
    for label, picture in zip(labels, pictures, strict=True):
        data = picture_bytes(picture["image_url"]["url"])
        shown.setdefault(label.chunk_id, []).append(Picture(data, label.reference))
    return tag([replace(result, pictures=shown.get(result.id, ())) for result in found], KEYS)
