"""Read a tool's return as evidence, by the format of its table."""

from __future__ import annotations

import re
from collections.abc import Container

from proxy.evidence import auto, haiku, tagged
from proxy.evidence.chunks import Chunk, Evidence, OwnedPicture, stands_in, text_of
from proxy.evidence.tables import Table
from proxy.wire.messages import OtherPart, Part, Picture, Text

#: How pydantic-ai ends what it puts in the place of a return when it asks for another try.
_TRY_AGAIN = "\n\nFix the errors and try again."
_FAILED = re.compile(r"\s*error\s*[:!]", re.IGNORECASE)


def is_retry_prompt(parts: tuple[Part, ...]) -> bool:
    """Whether a tool message asks the model to try again: no return at all."""
    return bool(parts) and isinstance(parts[-1], Text) and parts[-1].text.rstrip().endswith(_TRY_AGAIN)


def says_failed(parts: tuple[Part, ...]) -> bool:
    """Whether a return says that its tool failed: it asks for another try, or names an error."""
    if is_retry_prompt(parts):
        return True
    text = text_of(parts)
    value = auto.parse(text)
    if isinstance(value, dict):
        return bool(value.get("error"))
    return _FAILED.match(text) is not None


def retrieved(table: Table, tool: str, parts: tuple[Part, ...]) -> bool:
    """Whether a return of an evidence tool brought evidence, be it an empty result. An error, a budget that was refused
    and a request for another try did not; a program that failed did, if it had printed something before."""
    if not says_failed(parts):
        return True
    if table.format != "haiku" or tool != haiku.CODE_TOOL or is_retry_prompt(parts):
        return False
    value = auto.parse(text_of(parts))
    error = value.get("error") if isinstance(value, dict) else text_of(parts)
    return isinstance(error, str) and haiku.printed_before_it_failed(error)


def read(table: Table, tool: str, parts: tuple[Part, ...]) -> Evidence:
    """The chunks and pictures of an evidence return; each text part is read alone."""
    if table.proof is not None:
        return tagged.read(table.proof, parts)
    chunks: list[Chunk] = []
    ends: dict[int, Chunk] = {}  # the last chunk that each part opened
    whole = table.format == "haiku" and tool == haiku.CODE_TOOL
    readable = not any(isinstance(part, OtherPart) for part in parts)
    for position, part in enumerate(parts):
        if not isinstance(part, Text) or whole:
            continue
        if table.format == "haiku":
            found = haiku.read(part.text, position)
            readable = readable and found is not None
        else:
            found = auto.read(part.text, table.fields, position)
        if found:
            chunks += found
            ends[position] = found[-1]
    pictures = _pictures(parts, chunks, ends)
    return Evidence(chunks=tuple(chunks), text=text_of(parts), pictures=pictures, whole=whole, readable=readable)


def find(table: Table, tool: str, parts: tuple[Part, ...], ids: Container[str]) -> list[Chunk]:
    """Those chunks of an evidence return that have these ids, as `read` gives them."""
    if table.proof is not None:
        return [chunk for chunk in tagged.read(table.proof, parts).chunks if chunk.id in ids]
    if table.format == "haiku" and tool == haiku.CODE_TOOL:
        return []
    found: list[Chunk] = []
    for position, part in enumerate(parts):
        if isinstance(part, Text) and table.format == "haiku":
            found += haiku.read(part.text, position, ids) or ()
        elif isinstance(part, Text):
            found += auto.find(part.text, table.fields, position, ids)
    return found


def _pictures(parts: tuple[Part, ...], chunks: list[Chunk], ends: dict[int, Chunk]) -> tuple[OwnedPicture, ...]:
    """Whose each picture is: the chunk that the line before it names, else the last chunk before it, else the first."""
    owned: list[OwnedPicture] = []
    current = chunks[0].id if chunks else None
    named: str | None = None
    reference: str | None = None
    for position, part in enumerate(parts):
        if isinstance(part, Text):
            named = reference = None
            label = haiku.read_label(part.text)
            if label is not None:
                named, reference = label.chunk_id, label.reference
            elif position in ends:
                current = ends[position].id
            else:
                mentioned = {chunk.id for chunk in chunks if stands_in(chunk.id, part.text)}
                named = mentioned.pop() if len(mentioned) == 1 else None
        elif isinstance(part, Picture):
            owned.append(OwnedPicture(nth=len(owned), chunk_id=named or current, reference=reference))
    return tuple(owned)
