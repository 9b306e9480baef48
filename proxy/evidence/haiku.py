"""haiku.rag's text format, as version 0.101 writes it. Its words are matched here, never written."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass

from proxy.evidence.chunks import Chunk

#: The tool whose printed output has no chunks: an id cited out of it retains the whole output.
CODE_TOOL = "execute_code"

PICTURE_TAG = "[haiku.rag/retrieved-image]"

_SEPARATOR = "\n\n---\n\n"
_HEADER = re.compile(
    r"(?P<again>Also matched, shown above: )?"
    r"\[(?P<id>[^\[\]\n]+)\] \[rank (?P<rank>\d{1,6}) of (?P<of>\d{1,6})\](?=\n|\Z)"
)
#: What stands between a header and the content, line by line; the last of each name counts.
_HEAD = re.compile(
    r"(?>(?!Content:\n)(?:Source: (?P<source>[^\n]*)|Collection: (?P<collection>[^\n]*)|[^\n]*)\n)*+Content:\n"
)
#: Where `_HEAD` ends, of a header's end.
_CONTENT = "\nContent:\n"
#: Something that looks like a header, wherever it stands: a return with one but no chunks cannot be read.
_RANK = re.compile(r"\[rank \d")
_LONGEST_LABEL = 2000
_LABEL = re.compile(
    r"\[(?P<id>[^\[\]\n]+)\] \((?P<reference>[^()\n]*)\)\. "
    r"(?:Collection: (?P<collection>.*?)\. )?Not provided by the user\. " + re.escape(PICTURE_TAG) + r"\Z"
)
_REGISTERED = re.compile(r"\b(?:registered|recorded)\b", re.IGNORECASE)


def read(text: str, part: int = 0, ids: Container[str] | None = None) -> list[Chunk] | None:
    """The chunks of a search return, or only those of these ids; None where it cannot be read: its headers' ranks must
    run from 1 to n.

    A header counts at the start or after a separator. Content may hold both; but a forged header beside the real
    ones breaks the ranks, and then nothing of this return is taken for a chunk.
    """
    headers = [header for at in _starts(text) if (header := _HEADER.match(text, at)) is not None]
    total = len(headers)
    if not headers:
        return None if _RANK.search(text) else []
    if headers[0].start() != 0:
        return None
    chunks: list[Chunk] = []
    for rank, (header, following) in enumerate(zip(headers, [*headers[1:], None], strict=True), 1):
        again, chunk_id, said, of = header.groups()
        if int(said) != rank or int(of) != total:
            return None
        end = following.start() - len(_SEPARATOR) if following else len(text)
        if again:
            continue  # a mark of a chunk whose content stands in an earlier return
        if ids is not None and chunk_id not in ids:
            if text.find(_CONTENT, header.end(), end) < 0:
                return None
            continue
        chunk = _chunk(chunk_id, text, header.end() + 1, end, part)
        if chunk is None:
            return None
        chunks.append(chunk)
    return chunks


def _starts(text: str) -> Iterator[int]:
    """Where a header may stand: at the start, and after each separator, also after one that overlaps another."""
    yield 0
    at = text.find(_SEPARATOR)
    while at >= 0:
        yield at + len(_SEPARATOR)
        at = text.find(_SEPARATOR, at + 1)


def _chunk(chunk_id: str, text: str, start: int, end: int, part: int) -> Chunk | None:
    head = _HEAD.match(text, start, end)
    if head is None:
        return None
    return Chunk(chunk_id, text[head.end() : end], head["source"], head["collection"], part=part)


@dataclass(frozen=True, slots=True)
class Label:
    """What the line before a retrieved picture says."""

    chunk_id: str
    reference: str
    collection: str | None = None


def read_label(text: str) -> Label | None:
    """The label of a retrieved picture, or None."""
    line = text[text.rfind("\n") + 1 :]
    if not line.endswith(PICTURE_TAG) or len(line) > _LONGEST_LABEL:
        return None
    found = _LABEL.search(line)
    return Label(found["id"], found["reference"], found["collection"]) if found else None


def printed_before_it_failed(error: str) -> bool:
    """Whether the error of a program tells what it had printed: that much was retrieved."""
    return bool(error.partition("\n\nOutput:")[2].strip())


def says_registered(text: str) -> bool:
    """Whether a cite call's return says that the citation was registered or recorded."""
    return _REGISTERED.search(text) is not None
