"""The captures of real programs' requests, which stand beside this repository (`../shared/captures`) where they are
at hand. Bodies are read as bytes and never written again; replies are those that the programs were given.
"""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.house.provider import completion
from tests.rewrites import Dialect, Entry, cut

CAPTURES = Path(__file__).resolve().parents[2] / "shared" / "captures"
HERE = CAPTURES.is_dir()
ABSENT = "the captures are not at hand: they are kept outside this repository, in ../shared/captures"


def each(names: list[str]) -> list[Any]:
    """Parameters for a test of each of these captures; one that is skipped, with the reason, where there are none."""
    return list(names) if HERE else [pytest.param("captures", marks=pytest.mark.skip(reason=ABSENT))]


def unroll(body: bytes) -> list[bytes]:
    """Every request of a conversation, cut out of its last one, by the captures' own script."""
    found = importlib.util.spec_from_file_location("captures_unroll", CAPTURES / "unroll.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    requests: list[bytes] = module.unroll(body)
    return requests


# haiku.rag.


@dataclass(frozen=True)
class Asked:
    """One captured request: its number (from 1), the question that it belongs to, its size, its body where that was
    kept, and the completion that answered it."""

    number: int
    question: int
    size: int
    body: bytes | None
    completion: dict[str, Any]

    @property
    def sent(self) -> bytes:
        assert self.body is not None
        return self.body


@dataclass(frozen=True)
class Scenario:
    """One scenario of `haiku/`. Arm A compacts in the agent, B does not, P has a policy and does not compact."""

    name: str
    about: str
    api: str
    policy: bool
    arms: dict[str, list[Asked]]

    def firsts(self, arm: str = "B") -> list[Asked]:
        """The first request of each question."""
        seen: set[int] = set()
        return [a for a in self.arms[arm] if not (a.question in seen or seen.add(a.question))]

    def conversation(self, arm: str = "B", stream: bool = False) -> list[tuple[bytes, dict[str, Any]]]:
        """The bodies that a client sends, each with the completion that answers it; asking for a stream where told."""
        return [(streamed(asked.sent) if stream else asked.sent, asked.completion) for asked in self.arms[arm]]


def streamed(body: bytes) -> bytes:
    """The same request, asking for a stream: the one word that differs between the two on these clients' wire."""
    return body.replace(b'"stream":false', b'"stream":true', 1)


@cache
def scenario(name: str) -> Scenario:
    folder = CAPTURES / "haiku" / name
    meta = json.loads((folder / "meta.json").read_bytes())
    arms = {}
    for arm, kept in meta["arms"].items():
        question_of = {number: run["question"] for run in kept["runs"] for number in run["requests"]}
        bodies = {r["n"]: (folder / r["file"]).read_bytes() for r in kept["requests"] if r["file"]}
        if len(bodies) < len(kept["requests"]) and arm == "B":
            bodies = dict(enumerate(unroll(bodies[max(bodies)]), 1))
        arms[arm] = [
            Asked(r["n"], question_of[r["n"]], r["bytes"], bodies.get(r["n"]), _completion(r["response"]))
            for r in kept["requests"]
        ]
    options = meta["options"]
    return Scenario(name, meta["about"], options["api"], options["policy"], arms)


def _completion(response: list[dict[str, Any]]) -> dict[str, Any]:
    text = "".join(piece["text"] for piece in response if piece["kind"] == "text")
    calls = [(piece["id"], piece["name"], piece["args"]) for piece in response if piece["kind"] == "call"]
    assert len(calls) + sum(piece["kind"] == "text" for piece in response) == len(response), response
    return completion(text or None, calls)


def scenarios(api: str = "chat", policy: bool | None = None) -> list[str]:
    """The names of the scenarios with this API and, where told, with or without a policy."""
    if not HERE:
        return []
    options = {
        folder.name: json.loads((folder / "meta.json").read_bytes())["options"]
        for folder in sorted((CAPTURES / "haiku").iterdir())
    }
    return [
        name for name, told in options.items() if told["api"] == api and (policy is None or told["policy"] == policy)
    ]


# haiku.rag's own words, as version 0.101.1 writes them.

_ID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
_ENTRY = re.compile(
    rf"(?m)(?:\A|\n\n)\[(?P<id>{_ID})\]"
    r"(?: Source: (?P<source>[^\n]*)|\nCollection: (?P<collection>[^\n]*)(?:\nSource: (?P<named>[^\n]*))?)?\n"
)
_LABEL = re.compile(
    rf"Page image retrieved from the knowledge base for cited evidence \[(?P<id>{_ID})\] \((?P<reference>[^()]*)\)\. "
    r"(?:Collection: (?P<collection>.*?)\. )?Not provided by the user\. \[haiku\.rag/retrieved-image\]"
)


def _unwrapped(text: str) -> str:
    """A failed tool's return is `{"error": ...}`, and stays one when its text is replaced."""
    return str(json.loads(text)["error"]) if text.startswith('{"error":') else text


def _capsule(text: str) -> list[list[Entry]] | None:
    text = _unwrapped(text)
    if not text.startswith("[Evidence cited earlier in this conversation"):
        return None
    groups = re.split(r"(?:^|\n\n)\[Cited evidence group \d+\]\n\n", text)[1:]
    return [
        [
            Entry((match["id"],), group[match.end() : end], match["source"] or match["named"], match["collection"])
            for match, end in zip(found, [f.start() for f in found[1:]] + [len(group)], strict=True)
        ]
        for group in groups
        if (found := list(_ENTRY.finditer(group)))
    ]


def _label(text: str) -> tuple[str, str | None, str | None] | None:
    found = _LABEL.fullmatch(text)
    return (found["id"], found["reference"], found["collection"]) if found else None


HAIKU = Dialect(
    receipt=lambda text: _unwrapped(text).startswith("[Evidence retrieved for an earlier question, no longer shown."),
    capsule=_capsule,
    label=_label,
)

_RESULT = re.compile(
    rf"(?:\A|\n\n---\n\n)\[(?P<id>{_ID})\] \[rank \d+ of \d+\]\n(?P<lines>(?:[A-Z][^\n]*\n)*?)Content:\n"
    rf"(?P<content>.*?)(?=\n\n---\n\n(?:Also matched, shown above: )?\[{_ID}\] \[rank|\Z)",
    re.DOTALL,
)


@dataclass(frozen=True)
class OnTheWire:
    """A chunk as a search returned it: in which message, with which source line, content and collection."""

    index: int
    chunk_id: str
    source: str | None
    collection: str | None
    content: str


def search_results(body: bytes) -> list[OnTheWire]:
    """Every chunk of haiku.rag's search returns in a request, in order."""
    found = []
    for index, message in enumerate(cut(body).parsed):
        if message["role"] == "tool" and isinstance(message["content"], str):
            for match in _RESULT.finditer(message["content"]):
                lines = dict(line.split(": ", 1) for line in match["lines"].splitlines() if ": " in line)
                place = (match["id"], lines.get("Source"), lines.get("Collection"), match["content"])
                found.append(OnTheWire(index, *place))
    return found


# The agent SDKs.


def clients(api: str) -> list[str]:
    """The names of the captured conversations of this API."""
    if not HERE:
        return []
    names = {re.sub(r"-\d+\.json$", "", path.name) for path in (CAPTURES / "clients").glob("*.json")}
    return sorted(name for name in names if re.search(r"-(chat|responses)", name).group(1) == api)  # type: ignore[union-attr]


@cache
def client(name: str) -> list[bytes]:
    """The bodies of one captured conversation, in order."""
    paths = (CAPTURES / "clients").glob(f"{name}-*.json")
    return [path.read_bytes() for path in sorted(paths, key=lambda path: int(path.stem.rpartition("-")[2]))]
