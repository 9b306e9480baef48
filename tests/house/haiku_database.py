"""Small haiku.rag databases: one that haiku.rag wrote, and ones made here with its public schema."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

WRITTEN = Path(__file__).parents[1] / "haiku_database" / "kb-0.101.1.tar.xz"

#: The chunks of the database that haiku.rag wrote, in order.
PUMP, VALVE, CAPTION = (
    "84d12e17-78ff-45d2-8811-19b343c1ea3a",
    "08c1c86a-6ab7-4062-930e-3965717bc4f2",
    "22958b30-e332-4b0a-8ebb-53c546494e54",
)


def written_by_haiku_rag(directory: Path) -> Path:
    """The path of a fresh copy of the database that haiku.rag 0.101.1 wrote (see haiku_database/make.py)."""
    with tarfile.open(WRITTEN) as packed:
        packed.extractall(directory, filter="data")
    return directory / "kb.lancedb"


@dataclass(frozen=True)
class Manual:
    """A document: its chunks (id to the references of their items), and its pictures' files by reference."""

    id: str
    title: str | None = None
    uri: str | None = None
    chunks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pictures: Mapping[str, bytes] = field(default_factory=dict)


def made(path: Path, *manuals: Manual) -> Path:
    """A database with these documents."""
    import lancedb
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    chunks = [
        (chunk, m.id, "", "", json.dumps({"doc_item_refs": list(refs)}), 0)
        for m in manuals
        for chunk, refs in m.chunks.items()
    ]
    items = [
        (m.id, position, reference, "picture", "", "[]", data, 0, 0)
        for m in manuals
        for position, (reference, data) in enumerate(m.pictures.items())
    ]
    meta = [(m.id, m.uri, m.title, "{}", "", "") for m in manuals]
    db = lancedb.connect(str(path))
    for name, rows, columns in (
        ("chunks", chunks, [("id", text), ("document_id", text), ("content", text), ("content_fts", text),
                            ("metadata", text), ("order", number)]),
        ("document_meta", meta, [("id", text), ("uri", text), ("title", text), ("metadata", text),
                                 ("created_at", text), ("updated_at", text)]),
        ("document_items", items, [("document_id", text), ("position", number), ("self_ref", text), ("label", text),
                                   ("text", text), ("page_numbers", text), ("picture_data", pa.large_binary()),
                                   ("heading_level", number), ("tree_depth", number)]),
    ):  # fmt: skip
        schema = pa.schema([pa.field(column, kind) for column, kind in columns])
        table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
        db.create_table(name, data=table, mode="overwrite")
    return path
