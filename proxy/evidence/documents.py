"""What a database says of a chunk that was cited: its document, and the pictures that it shows. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Document:
    """A chunk's document: its id, title and URI, and the references of the pictures in the chunk, in order."""

    id: str
    title: str | None = None
    uri: str | None = None
    pictures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents by the ids of their chunks, and files of their pictures by document id and reference."""

    of: Mapping[str, Document] = field(default_factory=dict)
    files: Mapping[tuple[str, str], bytes] = field(default_factory=dict)
