"""An evidence table: what a host told us to recognise, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from proxy.evidence import tagged
from proxy.evidence.tagged import Proof
from proxy.wire.messages import Part

Format = Literal["haiku", "auto", "tagged"]

#: The ways of citing that are no name of a client's tool: the proxy's own tool, and ids in the answer itself.
MANAGED = "managed"
INLINE = "inline"


@dataclass(frozen=True, slots=True)
class FieldNames:
    """Under which JSON names `auto` finds what; the first name that is there counts."""

    id: tuple[str, ...] = ("chunk_id", "chunkId", "id", "_id", "node_id", "doc_id", "file_id")
    content: tuple[str, ...] = ("content", "text", "page_content", "snippet", "body")
    title: tuple[str, ...] = ("title", "document_title", "name", "filename")
    uri: tuple[str, ...] = ("url", "uri", "document_uri", "source", "link", "path")
    collection: tuple[str, ...] = ("collection",)
    headings: tuple[str, ...] = ("headings",)
    pages: tuple[str, ...] = ("page_numbers", "pages", "page")


@dataclass(frozen=True, slots=True)
class Table:
    """One `[[evidence]]` table.

    `cite` is the name of a cite tool, "inline", "managed", or None: then its evidence is never compacted. `ids` says
    whether an id names one chunk everywhere ("global"), or only together with its content ("local"); "auto" takes ids
    that are only digits for local. `undeclared` says what becomes of the evidence of a question that never declared.
    `proof` is how a table of tagged evidence knows its own: it needs no tool's name.
    """

    name: str
    format: Format
    tools: frozenset[str]
    cite: str | None
    ids: Literal["global", "local", "auto"] = "auto"
    undeclared: Literal["keep", "receipt"] = "keep"
    fields: FieldNames = field(default_factory=FieldNames)
    proof: Proof | None = None

    @property
    def cites_inline(self) -> bool:
        return self.cite == INLINE

    @property
    def cites_managed(self) -> bool:
        return self.cite == MANAGED

    @property
    def cite_tool(self) -> str | None:
        return None if self.cite in (INLINE, MANAGED) else self.cite

    def is_local(self, chunk_id: str) -> bool:
        """Whether this id names a chunk only together with its content (`[1]` of two searches are two chunks)."""
        return self.ids == "local" or (self.ids == "auto" and self.format == "auto" and chunk_id.isdigit())


Tables = tuple[Table, ...]


def table_of(tables: Tables, tool: str | None, parts: tuple[Part, ...]) -> Table | None:
    """The table whose evidence a return with these parts is: by its tag, whichever tool wrote it, else by its tool."""
    for table in tables:
        if table.proof is not None and tagged.is_ours(table.proof, parts):
            return table
    return next((table for table in tables if tool in table.tools), None)
