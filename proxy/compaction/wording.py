"""Every word that we put into a request: receipts, the capsule's frame, labels. Short, since they stand in each one."""

from __future__ import annotations

from collections.abc import Sequence

RECEIPT = "[From an earlier question; no longer shown. Search again if needed.]"
HEADER = "[Evidence that earlier answers cited, newest first. Cite these ids as they stand.]"

#: Layout `append`: above what one question cited, and above what a question without returns of its own adds to it.
APPENDED = "[Evidence that the answer cited. Cite these ids as they stand.]"
ADDED_LATER = "[Cited by a later answer:]"


def group(position: int) -> str:
    """The line above a group of entries that one question cited."""
    return f"[Group {position}]"


def entry(ids: Sequence[str], source: str | None, collection: str | None, content: str, details: str | None) -> str:
    """A chunk, under its id and source as the model saw them."""
    named = "[" + "]\n[".join(ids) + "]"
    lines = [f"{named} Source: {source}" if source and collection is None else named]
    if collection is not None:
        lines.append(f"Collection: {collection}")
        if source:
            lines.append(f"Source: {source}")
    if details:
        lines.append(details)
    if content:
        lines.append(content)
    return "\n".join(lines)


def still_above(ids: list[str]) -> str:
    """The line that names chunks which were cited again and stand above. With short ids: at most 12 tokens for each."""
    return f"Still above: {', '.join(f'[{chunk_id}]' for chunk_id in ids)}"


def label(chunk_id: str, reference: str | None, collection: str | None) -> str:
    """The line before a picture that is sent again."""
    place = f" ({reference})" if reference else ""
    named = f" Collection: {collection}." if collection is not None else ""
    return f"Picture of cited evidence [{chunk_id}]{place}.{named}"
