"""The words of this room: what a stored record is and how the store says no. No I/O, no LanceDB, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

REPLY_BYTES = 16


class StoredRecord(NamedTuple):
    """One settled question as the store sees it. Its digests are plain; none lies on a disk as it is."""

    key: bytes
    """32 bytes: the digest of the tenant and of the conversation."""
    tenant: bytes
    """32 bytes: the digest of the tenant."""
    reply: bytes
    """16 bytes: the digest of the reply that settled the question."""
    payload: bytes
    """The encoded record; opaque here. Equal payloads under one key are one record."""
    conversation: bytes | None = None
    """32 bytes: the digest of the tenant and of what names the conversation, where that is known."""


class Entry(NamedTuple):
    """A record as this process keeps it. `row` is the reply's digest and the payload in one.

    One object of bytes instead of two or a tuple: caches hold many of them, and bytes are nothing to the garbage
    collector.
    """

    key: bytes
    tenant: bytes
    row: bytes
    conversation: bytes | None
    created: int
    """When this process was told of it, in microseconds since 1970 (UTC)."""

    @classmethod
    def of(cls, record: StoredRecord, created: int) -> Entry:
        """The entry for a record."""
        return cls(record.key, record.tenant, record.reply + record.payload, record.conversation, created)


Found = dict[bytes, dict[bytes, int]]
"""What stands under keys: key -> row (see Entry) -> created, in microseconds since 1970."""


def payloads(rows: Iterable[bytes]) -> tuple[bytes, ...]:
    """What rows hold, each once, in bytewise order."""
    return tuple(sorted({row[REPLY_BYTES:] for row in rows}))


class Read(NamedTuple):
    """What one query gave."""

    found: Found
    crowded: frozenset[bytes] = frozenset()
    """Keys with so many rows that only those of the reply that was asked for are in `found`."""
    damaged: int = 0
    """Rows that were passed over because their seal did not fit."""


class StoredRow(NamedTuple):
    """A row as it lies in the store: its digests are keyed with the store's secret."""

    key: bytes
    tenant: bytes
    reply: bytes
    created: int
    payload: bytes
    conversation: bytes | None
    seal: bytes
    intact: bool
    """Whether the seal fits the rest."""


class StoreSlow(Exception):
    """The store did not answer within the time that a request may wait for it. The read goes on and fills the cache."""


class StoreError(Exception):
    """The store could not be opened, read or written. `str()` says where, what happened, and what to do if anything."""
