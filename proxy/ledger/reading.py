"""What the returns of a transcript hold, by the evidence tables; found out once for each return, however many requests
of its conversation ask.

Tables compare by identity here: a process has one tuple of them, and a request with its own reads everything anew.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple, TypeVar

from proxy.evidence import returns
from proxy.evidence.chunks import Chunk, Evidence, digest_text
from proxy.evidence.tables import Table, Tables, table_of
from proxy.ledger.citations import Read
from proxy.ledger.records import Place
from proxy.ledger.transcript import Return

Value = TypeVar("Value")


def once(found: Return, tables: Tables, what: object, find_out: Callable[[Return, Tables], Value]) -> Value:
    """What `find_out` says of a return by these tables, asked once for each `what`."""
    told = found.told.get(what)
    if told is None or told[0] is not tables:
        told = found.told[what] = (tables, find_out(found, tables))
    value: Value = told[1]
    return value


def table(found: Return, tables: Tables) -> Table | None:
    """The table whose evidence a return is, as it stands in this request; None where it is none."""
    return once(found, tables, "table", _table)


def _table(found: Return, tables: Tables) -> Table | None:
    return table_of(tables, found.tool, found.message.parts)


def evidence_table(found: Return, tables: Tables) -> Table | None:
    """The same, but for what asks for another try instead of returning anything."""
    return None if returns.is_retry_prompt(found.message.parts) else table(found, tables)


def read(found: Return, tables: Tables) -> Read | None:
    """An evidence return, read; None where it is no evidence, or where nothing of it could be replaced.

    It holds all the return's chunks, and is not remembered: most of them are never asked for again.
    """
    parts = found.message.parts
    if found.tool is None or not parts:
        return None
    own = evidence_table(found, tables)
    if own is None:
        return None
    read = Read(found, own, returns.read(own, found.tool, parts), returns.retrieved(own, found.tool, parts))
    once(found, tables, "outline", lambda *_: Outline(read.brought, frozenset(c.id for c in read.evidence.chunks)))
    return read


class Outline(NamedTuple):
    """What is remembered of an evidence return: whether it brought evidence, and the ids of its chunks."""

    brought: bool
    ids: frozenset[str]


def outline(found: Return, tables: Tables) -> Outline | None:
    """The outline of an evidence return that was read before; None of any other."""
    told = found.told.get("outline")
    known: Outline | None = told[1] if told is not None and told[0] is tables else None
    return known


def evidence(found: Return, tables: Tables) -> Evidence | None:
    """What an evidence return holds, of the content that was shown."""
    parts = found.message.parts
    own = evidence_table(found, tables) if found.tool is not None and parts else None
    return returns.read(own, found.tool or "", parts) if own is not None else None


def named(found: Return, tables: Tables, ids: Container[str]) -> list[Chunk]:
    """The chunks of an evidence return that have these ids: those that `evidence` holds, and no others are read."""
    parts = found.message.parts
    own = evidence_table(found, tables) if found.tool is not None and parts else None
    return returns.find(own, found.tool or "", parts, ids) if own is not None else []


def standing(
    found: Return, tables: Tables, chunk_id: str, place: Place, find_out: Callable[[Return, str, Place], Value]
) -> Value:
    """What `find_out` says of a place of this return, asked once."""
    return once(found, tables, (chunk_id, place), lambda *_: find_out(found, chunk_id, place))


def remember(found: Return, tables: Tables, chunk_id: str, place: Place, what: Chunk | str) -> None:
    """Let `standing` know what stands at a place, where somebody has just read it."""
    found.told[chunk_id, place] = tables, what


def at(evidence: Evidence | None, chunk_id: str, place: Place) -> Chunk | str | None:
    """The chunk that stands at a place of a return, or all of its text; None where it does not, or not any more."""
    if evidence is None:
        return None
    if place.chunk < 0:
        return evidence.text if digest_text(evidence.text) == place.digest else None
    if place.chunk < len(evidence.chunks):
        chunk = evidence.chunks[place.chunk]
        if chunk.id == chunk_id and chunk.digest == place.digest:
            return chunk
    return next((c for c in evidence.chunks if c.id == chunk_id and c.digest == place.digest), None)
