"""Which evidence table would recognise what no table names yet: read off a transcript, for somebody who writes one.

A guess, made of what returns hold and what was cited of them. Nothing is decided by it: until a table names a tool, its
returns go up as they came.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from proxy.evidence import auto, citing, haiku, returns, tags
from proxy.evidence.chunks import Chunk
from proxy.evidence.tables import FieldNames, Format, Table
from proxy.ledger.transcript import Return, Transcript
from proxy.wire.messages import Text

_DEFAULTS = FieldNames()
#: One chunk alone that nobody cited must hold this much to look like evidence: tools answer `{"id": 7, "name": ...}`.
_MUCH = 80
_CONTENT = 40
_NAMES_AN_ID = re.compile(r"(?:^|_)(?:id|key|uuid|guid|ref|code|number|nr|slug)$|(?:Id|ID|Key|Ref)$", re.IGNORECASE)
_NAMES_CITING = re.compile(r"cit|source|ground|refer|support", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ToolSeen:
    """A tool of a transcript: how often it was called and answered, whose evidence that is (`table`), and whether it is
    a cite tool of a table (`cites`)."""

    name: str
    calls: int
    returns: int
    table: str | None = None
    cites: bool = False


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A table that would recognise the returns of these tools.

    `cite` is the tool, or "inline", by which something of them was cited; None where nothing was. `fields` are the
    names beside the usual ones under which the parts of a chunk stand. `chunks` is how many it would read here, and
    `example` the id of one.
    """

    tools: tuple[str, ...]
    format: Format
    cite: str | None
    fields: Mapping[str, str]
    chunks: int
    example: str


@dataclass(slots=True)
class _Looks:
    """What the returns of one tool look like."""

    format: Format
    chunks: list[Chunk]
    fields: dict[str, str] = field(default_factory=dict)
    most: int = 0


def tools_seen(transcript: Transcript, evidence: Mapping[int, Table], tables: Iterable[Table] = ()) -> list[ToolSeen]:
    """Every tool that a transcript shows, in order of first appearance. `evidence` are its evidence returns' tables."""
    calls = Counter(call.name for step in transcript.replies for call in step.calls)
    cite_tools = {table.cite_tool for table in tables}
    answered: Counter[str] = Counter()
    owner: dict[str, str] = {}
    for found in transcript.returns:
        if found.tool is not None:
            answered[found.tool] += 1
            if found.ordinal in evidence:
                owner.setdefault(found.tool, evidence[found.ordinal].name)
    return [ToolSeen(name, calls[name], answered[name], owner.get(name), name in cite_tools) for name in calls]


def strange_tags(transcript: Transcript, evidence: Mapping[int, Table]) -> int:
    """How many returns hold what looks like a tag of such a proxy, and are none by the keys that are known here."""
    return sum(
        found.ordinal not in evidence
        and any(isinstance(part, Text) and tags.RETURN_OPENS in part.text for part in found.message.parts)
        for found in transcript.returns
    )


def suggestions(transcript: Transcript, evidence: Mapping[int, Table]) -> list[Suggestion]:
    """The tables that would recognise what looks like evidence and is none by today's tables."""
    unclaimed: dict[str, list[Return]] = {}
    for found in transcript.returns:
        if found.tool and found.ordinal not in evidence and not returns.says_failed(found.message.parts):
            unclaimed.setdefault(found.tool, []).append(found)
    read = {tool: looks for tool, given in unclaimed.items() if (looks := _look(given)) is not None}
    cited = _cited(transcript, read)
    sure = {tool: looks for tool, looks in read.items() if _looks_like_evidence(looks, cited[tool])}
    if any(looks.format == "haiku" for looks in sure.values()) and haiku.CODE_TOOL in unclaimed:
        sure.setdefault(haiku.CODE_TOOL, _Looks("haiku", []))
    grouped: dict[tuple[Format, tuple[tuple[str, str], ...], str | None], list[str]] = {}
    for tool, looks in sure.items():
        way = _way(cited.get(tool, Counter()))
        grouped.setdefault((looks.format, tuple(looks.fields.items()), way), []).append(tool)
    return [
        Suggestion(
            tools=tuple(tools),
            format=kind,
            cite=way,
            fields=dict(fields),
            chunks=sum(len(sure[tool].chunks) for tool in tools),
            example=next((chunk.id for tool in tools for chunk in sure[tool].chunks), ""),
        )
        for (kind, fields, way), tools in _with_code(grouped).items()
    ]


def _with_code(
    grouped: dict[tuple[Format, tuple[tuple[str, str], ...], str | None], list[str]],
) -> dict[tuple[Format, tuple[tuple[str, str], ...], str | None], list[str]]:
    """haiku.rag's code tool shows no chunks of its own, so nothing is seen cited of it: it goes with its search."""
    alone = next((key for key, tools in grouped.items() if tools == [haiku.CODE_TOOL]), None)
    home = next((key for key in grouped if key[0] == "haiku" and key != alone), None)
    if alone is None or home is None:
        return grouped
    return {key: [*tools, haiku.CODE_TOOL] if key == home else tools for key, tools in grouped.items() if key != alone}


def _look(given: list[Return]) -> _Looks | None:
    """What the returns of a tool hold, by the first format that reads any of them."""
    texts = [[part.text for part in found.message.parts if isinstance(part, Text)] for found in given]
    by_haiku = [[chunk for text in parts for chunk in haiku.read(text) or ()] for parts in texts]
    if any(by_haiku):
        return _Looks("haiku", [chunk for chunks in by_haiku for chunk in chunks], most=max(map(len, by_haiku)))
    looks = _by_names(texts, _DEFAULTS)
    if looks is not None:
        return looks
    for text in (text for parts in texts for text in parts):
        named = _names_in(auto.parse(text))
        if named is not None:
            chunk_id, content = named
            names = replace(_DEFAULTS, id=(chunk_id, *_DEFAULTS.id), content=(content, *_DEFAULTS.content))
            looks = _by_names(texts, names)
            if looks is not None:
                looks.fields = {
                    key: name
                    for key, name, usual in (("id", chunk_id, _DEFAULTS.id), ("content", content, _DEFAULTS.content))
                    if name not in usual
                }
                return looks
    return None


def _by_names(texts: list[list[str]], names: FieldNames) -> _Looks | None:
    read = [[c for text in parts for c in auto.read(text, names) if c.content.strip()] for parts in texts]
    if not any(read):
        return None
    return _Looks("auto", [chunk for chunks in read for chunk in chunks], most=max(map(len, read)))


def _names_in(value: object, depth: int = 0) -> tuple[str, str] | None:
    """Under which names the records of a JSON value have an id and a content; None where there are no such records."""
    if depth > 4:
        return None
    if isinstance(value, dict):
        return next((found for inner in value.values() if (found := _names_in(inner, depth + 1)) is not None), None)
    if not isinstance(value, list) or not value or not all(isinstance(record, dict) for record in value):
        return None
    names = [name for name in value[0] if isinstance(name, str) and all(name in record for record in value)]
    ids = [name for name in (*_DEFAULTS.id, *filter(_NAMES_AN_ID.search, names)) if name in names]
    ids = [name for name in ids if _tells_apart([record[name] for record in value])]
    texts = {name: _mean_length([record[name] for record in value]) for name in names if name not in ids}
    content = max(texts, key=lambda name: texts[name], default=None)
    if not ids or content is None or texts[content] < _CONTENT:
        return None
    return ids[0], content


def _tells_apart(values: list[object]) -> bool:
    written = [str(value) for value in values if isinstance(value, str | int) and not isinstance(value, bool)]
    return len(written) == len(values) == len(set(written)) and all(0 < len(text) <= 200 for text in written)


def _mean_length(values: list[object]) -> float:
    return sum(len(value) for value in values if isinstance(value, str)) / len(values)


def _looks_like_evidence(looks: _Looks, cited: Counter[str]) -> bool:
    return looks.most > 1 or bool(cited) or sum(len(chunk.content) for chunk in looks.chunks) >= _MUCH


def _cited(transcript: Transcript, read: Mapping[str, _Looks]) -> dict[str, Counter[str]]:
    """In which ways the chunks of each tool were named: by which other tool's calls, or "inline"."""
    owners: dict[str, list[str]] = {}
    for tool, looks in read.items():
        for chunk_id in {chunk.id for chunk in looks.chunks}:
            owners.setdefault(chunk_id, []).append(tool)
    ways: dict[str, Counter[str]] = {tool: Counter() for tool in read}
    for step in transcript.replies:
        named: list[tuple[str, str]] = [
            (call.name, chunk_id)
            for call in step.calls
            if call.name not in read
            for written in citing.written(call.arguments).ids
            for chunk_id in citing.spellings(written)
        ]
        if not step.calls:
            brackets, _ = citing.bracketed(step.text)
            named += [("inline", chunk_id) for inner in brackets for chunk_id in citing.ids_in(inner)]
        for way, chunk_id in dict.fromkeys(named):
            for tool in owners.get(chunk_id, ()):
                ways[tool][way] += 1
    return ways


def _way(cited: Counter[str]) -> str | None:
    """A tool whose name says that it cites comes first, then the tool that names most, then brackets."""
    tools = {way: times for way, times in cited.items() if way != "inline"}
    if not tools:
        return "inline" if cited else None
    return max(tools, key=lambda way: (_NAMES_CITING.search(way) is not None, tools[way]))
