"""What a conversation needs beside its wire and its records: who it is, and contents that are kept for it.

It joins what `ledger.aside` names and `ledger.provenance` finds out with the store and with haiku.rag's databases. A
content's key binds tenant and conversation, so that none reaches another's request.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from proxy.evidence.documents import Documents
from proxy.evidence.tables import Table, Tables
from proxy.gateway.shown import ShownReturns
from proxy.ledger import aside, provenance, trimmed
from proxy.ledger.aside import NOTHING, Aside
from proxy.ledger.provenance import RegisteredPicture
from proxy.ledger.records import Record
from proxy.ledger.transcript import Transcript
from proxy.store import StoredRecord
from proxy.store.haiku_database import HaikuDatabase
from proxy.store.thread import StoreThread

if TYPE_CHECKING:
    from proxy.settings import Settings
    from proxy.store import RecordStore

log = logging.getLogger("evidence_proxy.keeping")


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


class Conversation(msgspec.Struct, frozen=True):
    """Whose conversation a request belongs to. `ids` are the ways to call it, as people may see them: by the host's
    name for it, where it gives one (`named`), and by how it begins."""

    tenant: bytes
    ids: tuple[bytes, ...]
    named: bool

    @classmethod
    def of(cls, tenant: bytes, name: str | None, transcript: Transcript | None) -> Conversation:
        """That of a transcript; None stands for one that holds no return of a tool."""
        beginning = transcript.beginning if transcript is not None else None
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


class Settled(msgspec.Struct, frozen=True):
    """A question that settled: its record, the transcript and tables that it was read by, where it began.

    Where its host rewrote returns meanwhile, `as_shown` is the transcript with what the model was shown, and
    `rewritten` the ordinals of those returns.
    """

    record: Record
    transcript: Transcript
    tables: Tables
    from_reply: int
    as_shown: Transcript
    rewritten: frozenset[int] = frozenset()


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
        self._shown = ShownReturns()

    def renewed(self, settings: Settings, registered: Registered | None) -> Keeping:
        """The same by other evidence tables; a database that is still named stays open."""
        named = {table.name: table.database for table in settings.evidence if table.database is not None}
        known: dict[str, Database] = {one.uri: one for one in self._databases.values()}
        known |= {uri: HaikuDatabase(uri, StoreThread()) for uri in {*named.values()} - {*known}}
        new = Keeping(self._contents, registered, {name: known[uri] for name, uri in named.items()})
        new._shown = self._shown
        return new

    def see(self, conversation: Conversation, transcript: Transcript, evidence: Iterable[int], from_reply: int) -> None:
        """Remember what the current question retrieved (`evidence`, by ordinal), where its host names conversations."""
        if conversation.named:
            own = set(trimmed.own_returns(transcript, from_reply))
            for found in (transcript.returns[ordinal] for ordinal in evidence if ordinal in own):
                self._shown.see(conversation.digests[0], trimmed.call_mark(found), found.message.parts)

    def as_shown(
        self, conversation: Conversation, transcript: Transcript, from_reply: int
    ) -> tuple[Transcript, frozenset[int]]:
        """The transcript as the model was shown it, and the returns that the host rewrote since then."""
        if not conversation.named:
            return transcript, frozenset()
        digest = conversation.digests[0]
        return trimmed.restored(transcript, from_reply, lambda call: self._shown.get(digest, call))

    def forget(self) -> None:
        """Something was erased: remember no contents any more."""
        self._shown.clear()

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
        rows = dict(await self._contents.find(list(keys)))
        there = {keys[key] for key in rows}
        if lacking := [key for key, name in keys.items() if name not in there]:
            # Another replica writes them with the record, in another table: what is not seen yet may be there.
            rows |= await self._contents.find(lacking, fresh=True)
        return Aside({keys[key]: payload for key, payloads in rows.items() for payload in payloads})

    async def completed(self, settled: Settled, conversation: Conversation) -> tuple[Record, list[StoredRecord]]:
        """The record with all that others than the wire say of what was cited, and the contents to keep for it.

        Whatever goes wrong here costs only that: the question is settled all the same.
        """
        try:
            return await self._completed(settled, conversation)
        except Exception:
            log.exception("a record goes without what others than the wire say of it")
            return settled.record, []

    async def _completed(self, settled: Settled, conversation: Conversation) -> tuple[Record, list[StoredRecord]]:
        record, shown = settled.record, settled.as_shown
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
            record = trimmed.found_by_returns(record, settled.transcript, settled.from_reply)
            files |= await asyncio.to_thread(provenance.all_that_was_cited, record, shown, settled.tables)
            record = trimmed.off_the_wire(record, settled.rewritten)
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
