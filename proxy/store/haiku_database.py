"""A haiku.rag database, read only: whose document a cited chunk is of, and the pictures that the chunk shows.

Its tables are another program's. What is read of them, as haiku.rag 0.101 writes them (`haiku.rag.store.schema`):
`chunks` (id, document_id, metadata: JSON whose `doc_item_refs` name the items it is made of), `document_meta` (id, uri,
title) and `document_items` (document_id, position, self_ref, label, picture_data). A picture is an item whose reference
starts with `#/pictures/`; a caption belongs to the picture before it. Nothing is ever written, and no version of a
table is held: each read sees what is there at that moment.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Coroutine, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from proxy.evidence.documents import Document, Documents
from proxy.store.place import Place
from proxy.store.record import StoreError
from proxy.store.thread import StoreThread

if TYPE_CHECKING:
    from lancedb.table import AsyncTable

    from proxy.settings import Settings

log = logging.getLogger(__name__)

T = TypeVar("T")

_CHUNKS, _DOCUMENTS, _ITEMS = "chunks", "document_meta", "document_items"
_PICTURES = "#/pictures/"
#: An id is a piece of one line; a longer one is no id of this database.
_LONGEST_ID = 256
_MOST_IDS = 500
_MOST_PICTURES = 100
#: A question's settling waits for the database no longer than this: its reply's last byte waits with it.
_TAKES_AT_MOST = 2.0
_OPENING_TAKES_AT_MOST = 60.0


class HaikuDatabase:
    """One database: opened when it is first needed, and again after a failure. Its methods never raise."""

    def __init__(self, uri: str, thread: StoreThread) -> None:
        self._uri = uri
        self._place = Place.of(uri, Path())
        self._thread = thread
        self._tables: dict[str, AsyncTable] | None = None
        self._failing = False

    @property
    def uri(self) -> str:
        """Where it lies, as the settings say it."""
        return self._uri

    @property
    def collection(self) -> str:
        """What haiku.rag calls a database that was given no name: the last part of its path, without an ending."""
        return self._place.uri.rstrip("/").rsplit("/", 1)[-1].rsplit(".", 1)[0]

    async def warm(self) -> None:
        """Open it ahead of the first question, which would else pay for it."""
        await self._asked(self._opened(), None, _OPENING_TAKES_AT_MOST)

    async def documents(self, chunks: Iterable[str]) -> Documents:
        """The documents of these chunks (by id), without files; empty, with a line in the log, if it cannot be read."""
        return await self._asked(self._documents(_sensible(chunks)), Documents(), _TAKES_AT_MOST)

    async def files(self, pictures: Iterable[tuple[str, str]]) -> dict[tuple[str, str], bytes]:
        """The files of these pictures (document id, reference), those that are there and can be read."""
        return await self._asked(self._files(list(pictures)[:_MOST_PICTURES]), {}, _TAKES_AT_MOST)

    async def _asked(self, work: Coroutine[Any, Any, T], otherwise: T, within: float) -> T:
        try:
            answer = await self._thread.run(work, within=within)
        except Exception as fault:
            self._tables = None  # it may have been moved or replaced: the next one opens it anew
            if not self._failing:
                log.warning("%s; cited evidence goes without its titles and pictures", self._told(fault))
            self._failing = True
            return otherwise
        if self._failing:
            log.info("The haiku.rag database in %s can be read again.", self._place.shown)
        self._failing = False
        return answer

    def _told(self, fault: Exception) -> str:
        if isinstance(fault, _Unfit):
            return str(fault)
        why = "it did not answer in time" if isinstance(fault, (TimeoutError, StoreError)) else type(fault).__name__
        return f"The haiku.rag database in {self._place.shown} could not be read ({why})"

    async def _opened(self) -> dict[str, AsyncTable]:
        if self._tables is not None:
            return self._tables
        directory = self._place.directory
        # LanceDB makes the directory that it connects to; nothing may appear where nothing is.
        if directory is not None and not (directory / f"{_CHUNKS}.lance").exists():
            raise _Unfit(f"Expected a haiku.rag database in {self._place.shown}, but there is no table {_CHUNKS!r}")
        import lancedb

        db = await lancedb.connect_async(self._place.uri, read_consistency_interval=timedelta(0))
        tables = {name: await db.open_table(name) for name in (_CHUNKS, _DOCUMENTS, _ITEMS)}
        for name, needed in _COLUMNS.items():
            lacking = needed - set((await tables[name].schema()).names)
            if lacking:
                raise _Unfit(
                    f"Expected a database of haiku.rag 0.101 in {self._place.shown}, but its table {name!r} has no "
                    f"{', '.join(sorted(lacking))}. Migrate it with that version, or leave `database` out"
                )
        self._tables = tables
        return tables

    async def _documents(self, chunks: Sequence[str]) -> Documents:
        if not chunks:
            return Documents()
        tables = await self._opened()
        rows = await _rows(tables[_CHUNKS], f"id IN ({_listed(chunks)})", "id", "document_id", "metadata")
        items = {row["id"]: (row["document_id"], _items(row["metadata"])) for row in rows}
        if not items:
            return Documents()
        documents = {document for document, _ in items.values()}
        named = await _rows(tables[_DOCUMENTS], f"id IN ({_listed(documents)})", "id", "title", "uri")
        meta = {row["id"]: (_line(row["title"]), _line(row["uri"])) for row in named}
        captioned = await self._captioned(tables[_ITEMS], items.values())
        return Documents(
            {
                chunk: Document(document, *meta.get(document, (None, None)), _pictures(document, refs, captioned))
                for chunk, (document, refs) in items.items()
            }
        )

    async def _captioned(
        self, table: AsyncTable, items: Iterable[tuple[str, Sequence[str]]]
    ) -> dict[tuple[str, str], str]:
        """The picture before each caption, by document and the caption's reference."""
        texts: dict[str, set[str]] = {}
        for document, references in items:
            texts.setdefault(document, set()).update(ref for ref in references if not ref.startswith(_PICTURES))
        found: dict[tuple[str, str], str] = {}
        for document, named in texts.items():
            if not named:
                continue
            of = f"document_id = {_quoted(document)}"
            captions = await _rows(
                table, f"{of} AND label = 'caption' AND self_ref IN ({_listed(named)})", "self_ref", "position"
            )
            at = {int(row["position"]) - 1: row["self_ref"] for row in captions}
            if not at:
                continue
            before = f"{of} AND label = 'picture' AND position IN ({', '.join(map(str, sorted(at)))})"
            for row in await _rows(table, before, "self_ref", "position"):
                found[document, at[int(row["position"])]] = row["self_ref"]
        return found

    async def _files(self, pictures: Sequence[tuple[str, str]]) -> dict[tuple[str, str], bytes]:
        if not pictures:
            return {}
        table = (await self._opened())[_ITEMS]
        by_document: dict[str, list[str]] = {}
        for document, reference in pictures:
            by_document.setdefault(document, []).append(reference)
        clauses = [
            f"(document_id = {_quoted(document)} AND self_ref IN ({_listed(references)}))"
            for document, references in by_document.items()
        ]
        rows = await _rows(table, " OR ".join(clauses), "document_id", "self_ref", "picture_data")
        return {(row["document_id"], row["self_ref"]): row["picture_data"] for row in rows if row["picture_data"]}


_COLUMNS = {
    _CHUNKS: {"id", "document_id", "metadata"},
    _DOCUMENTS: {"id", "uri", "title"},
    _ITEMS: {"document_id", "position", "self_ref", "label", "picture_data"},
}


def open_databases(settings: Settings) -> dict[str, HaikuDatabase]:
    """The databases that the evidence tables name, by the tables' names; none is opened yet."""
    named = {table.name: table.database for table in settings.evidence if table.database is not None}
    by_uri = {uri: HaikuDatabase(uri, StoreThread()) for uri in set(named.values())}
    return {name: by_uri[uri] for name, uri in named.items()}


class _Unfit(Exception):
    """The place holds no such database; the message says so to the reader of the log."""


async def _rows(table: AsyncTable, where: str, *columns: str) -> list[dict[str, Any]]:
    return await table.query().where(where).select(list(columns)).to_list()


def _pictures(document: str, references: Sequence[str], captioned: dict[tuple[str, str], str]) -> tuple[str, ...]:
    found = (ref if ref.startswith(_PICTURES) else captioned.get((document, ref)) for ref in references)
    return tuple(dict.fromkeys(ref for ref in found if ref is not None))


def _items(metadata: str) -> list[str]:
    try:
        references = json.loads(metadata).get("doc_item_refs")
    except (ValueError, AttributeError, RecursionError):
        return []
    return [ref for ref in references if isinstance(ref, str)] if isinstance(references, list) else []


def _line(text: str | None) -> str | None:
    """A title or an address as one line, which the capsule's source line is."""
    return " ".join((text or "").split()) or None


def _sensible(chunks: Iterable[str]) -> list[str]:
    """Ids come from the wire: what could not be one is not asked for."""
    return [one for one in dict.fromkeys(chunks) if 0 < len(one) <= _LONGEST_ID and one.isprintable()][:_MOST_IDS]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(_quoted(text) for text in sorted(texts))
