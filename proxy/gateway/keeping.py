"""What a conversation needs beside its wire and its records: who it is, and contents that are kept for it.

It joins what `ledger.aside` names and `ledger.provenance` finds out with the store and with haiku.rag's databases. A
content's key binds tenant and conversation, so that none reaches another's request.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from proxy.evidence.documents import Documents
from proxy.evidence.tables import Table, Tables
from proxy.ledger import aside, provenance, trimmed
from proxy.ledger.aside import NOTHING, Aside
from proxy.ledger.provenance import RegisteredPicture
from proxy.ledger.records import Record
from proxy.ledger.transcript import Transcript
from proxy.store import StoredRecord

if TYPE_CHECKING:
    from proxy.settings import Settings
    from proxy.store import RecordStore


class Registered(Protocol):
    """What tools had tagged through this proxy."""

    async def registered(self, tenant: bytes, tags: Iterable[str]) -> dict[str, str]:
        """The whole returns of a tenant, by their tags; those that are not known are absent."""

    async def pictures(self, tenant: bytes, tags: Iterable[str]) -> list[RegisteredPicture]:
        """The pictures that were registered with these returns of a tenant."""


class Database(Protocol):
    """A haiku.rag database."""

    @property
    def uri(self) -> str: ...

    @property
    def collection(self) -> str: ...

    async def documents(self, chunks: Iterable[str]) -> Documents: ...

    async def files(self, pictures: Iterable[tuple[str, str]]) -> dict[tuple[str, str], bytes]: ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """Whose conversation a request belongs to. `ids` are the ways to call it, as people may see them: by the host's
    name for it, where it gives one (`named`), and by how it begins."""

    tenant: bytes
    ids: tuple[bytes, ...]
    named: bool

    @classmethod
    def of(cls, tenant: bytes, name: str | None, transcript: Transcript) -> Conversation:
        beginning = transcript.beginning
        ids = [named_id(name)] if name is not None else []
        if beginning is not None:
            ids.append(hashlib.sha256(b"conversation that begins\0" + beginning).digest())
        return cls(tenant, tuple(ids), name is not None)

    @property
    def digests(self) -> tuple[bytes, ...]:
        """What stands for it in the store, by each of its ids."""
        return tuple(conversation_digest(self.tenant, one) for one in self.ids)

    @property
    def digest(self) -> bytes | None:
        """What is written down for this conversation is written under this; None before it retrieved anything."""
        return self.digests[0] if self.ids else None


def named_id(name: str) -> bytes:
    """The id of a conversation that its host calls `name` (Evidence-Conversation)."""
    return hashlib.sha256(b"conversation named\0" + name.encode("utf-8", "surrogatepass")).digest()


def conversation_digest(tenant: bytes, conversation: bytes) -> bytes:
    """What stands for a tenant's conversation in the store: another tenant's id leads nowhere."""
    return _digest(b"conversation", tenant, conversation)


def ids_called(said: str) -> list[bytes]:
    """What a person may mean by a conversation's id: its host's name for it, or its id as the record API shows it."""
    found = [named_id(said)]
    if len(said) == 64 and all(character in "0123456789abcdef" for character in said):
        found.append(bytes.fromhex(said))
    return found


@dataclass(frozen=True, slots=True)
class Settled:
    """A question that settled: its record, the transcript and tables that it was read by, where it began."""

    record: Record
    transcript: Transcript
    tables: Tables
    from_reply: int


class Keeping:
    """One per process. `databases` are haiku.rag's, by the names of their tables."""

    def __init__(
        self,
        contents: RecordStore | None,
        registered: Registered | None = None,
        databases: Mapping[str, Database] | None = None,
    ) -> None:
        self._contents = contents
        self._registered = registered
        self._databases = databases or {}

    def renewed(self, settings: Settings, registered: Registered | None) -> Keeping:
        """The same by other evidence tables; a database that is still named stays open."""
        from proxy.store.haiku_database import open_databases

        open_now = {database.uri: database for database in self._databases.values()}
        named = {name: open_now.get(one.uri, one) for name, one in open_databases(settings).items()}
        return Keeping(self._contents, registered, named)

    async def flush(self) -> None:
        """Return when what was kept is where others find it. Raises StoreError."""
        if self._contents is not None:
            await self._contents.flush()

    async def aside(self, conversation: Conversation, record: Record) -> Aside:
        """What a rewrite by this record takes from elsewhere than the wire. Raises StoreSlow and StoreError."""
        names = aside.needed(record)
        if not names or self._contents is None:
            return NOTHING
        keys = {_key(conversation.tenant, one, name): name for name in names for one in conversation.digests}
        rows = await self._contents.find(list(keys))
        found: dict[bytes, bytes] = {}
        for key, payloads in rows.items():
            for payload in payloads:
                found[keys[key]] = payload
        return Aside(found)

    async def completed(self, settled: Settled, conversation: Conversation) -> tuple[Record, list[StoredRecord]]:
        """The record with all that others than the wire say of what was cited, and the contents to keep for it."""
        record, shown = settled.record, settled.transcript
        files: dict[bytes, bytes] = {}
        registered: list[str] = []
        for table in settled.tables:
            additions = None
            if (database := self._databases.get(table.name)) is not None:
                additions = await self._described(record, shown, table, database)
            elif table.proof is not None and self._registered is not None:
                if tags := provenance.cited_tags(record, shown, table):
                    pictures = await self._registered.pictures(conversation.tenant, tags)
                    additions = provenance.registered(record, shown, table, pictures)
                registered += provenance.tags_of(shown, table, trimmed.own_returns(shown, settled.from_reply))
            if additions is not None:
                record = provenance.with_additions(record, additions)
                files |= additions.files
        if conversation.named:
            record = trimmed.found_by_returns(record, shown, settled.from_reply)
            files |= await asyncio.to_thread(provenance.all_that_was_cited, record, shown, settled.tables)
        names = [*aside.needed(record), *files, *map(aside.registered_name, registered)]
        record = msgspec.structs.replace(record, names=tuple(dict.fromkeys((*record.names, *names))))
        return record, [self._row(conversation, name, payload) for name, payload in files.items()]

    async def _described(
        self, record: Record, transcript: Transcript, table: Table, database: Database
    ) -> provenance.Additions:
        shown = provenance.shown_pictures(transcript, table)
        cited = [entry.id for entry in provenance.cited_here(record, table)]
        if not cited:
            return provenance.Additions()
        documents = await database.documents([*cited, *(chunk_id for chunk_id, _, _ in shown)])
        additions, fetch = provenance.described(record, table, shown, documents, database.collection)
        if fetch:
            provenance.fetched(additions, fetch, await database.files(list(fetch)))
        return additions

    def keep(self, rows: Iterable[StoredRecord]) -> None:
        """Findable in this process from now on, and soon on disk."""
        for row in rows:
            if self._contents is not None:
                self._contents.add(row)

    def _row(self, conversation: Conversation, name: bytes, payload: bytes) -> StoredRecord:
        digest = conversation.digest
        assert digest is not None  # what was cited was returned
        return StoredRecord(_key(conversation.tenant, digest, name), conversation.tenant, name, payload, digest)


def _key(tenant: bytes, conversation: bytes, name: bytes) -> bytes:
    return _digest(b"content", tenant, conversation + name)


def _digest(kind: bytes, tenant: bytes, what: bytes) -> bytes:
    return hashlib.sha256(kind + b"\0" + tenant + what).digest()
