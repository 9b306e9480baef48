"""The words of this room: what a stored record is and how the store says no. No I/O, no LanceDB, no clock."""

from __future__ import annotations

from typing import NamedTuple


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


class Entry(NamedTuple):
    """A record and when this process was told of it, in microseconds since 1970 (UTC)."""

    record: StoredRecord
    created: int


Found = dict[bytes, dict[bytes, int]]
"""What stands under keys: key -> payload -> created, in microseconds since 1970."""


class StoreSlow(Exception):
    """The store did not answer within the time that a request may wait for it. The read goes on and fills the cache."""


class StoreError(Exception):
    """The store could not be opened, read or written. `str()` says where, what happened, and what to do if anything."""
